"""Lines over time for charts: JSON, or CSV with ``format=csv``. The time is ``range``, or ``since`` and ``until``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from starlette.requests import Request
from starlette.responses import Response

from gpupool.api.deps import Index, NodeName, Ref
from gpupool.domain.access import Actor
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.usage import By, Scope
from gpupool.services.pool import PoolServices
from gpupool.web.deps import Services, Visitor
from gpupool.web.headers import PAGE_HEADERS
from gpupool.web.ranges import TimeRange, read_range
from gpupool.web.views import series
from gpupool.web.views.charts import Chart

router = APIRouter(prefix="/ui/series")

_HEADERS = {name: value for name, value in PAGE_HEADERS.items() if name != "cache-control"}
TOLD_APART = (By.PROJECT, By.DEPARTMENT, By.USER, By.NODE, By.MODEL)


@dataclass(frozen=True, slots=True)
class _Look:
    """Who looks at which time, and of which part of the GPU time (``project``, ``user``, ``node``, ``model``)."""

    request: Request
    services: PoolServices
    visitor: Actor
    span: TimeRange
    scope: Scope


async def _look(request: Request, services: Services, visitor: Visitor) -> _Look:
    query, accounting = request.query_params, services.accounting
    span = read_range(query, accounting.now(), accounting.time_zone)
    asked = {name: query.get(name) for name in ("project", "user", "node", "model")}
    return _Look(request, services, visitor, span, Scope(**{name: text[:253] for name, text in asked.items() if text}))


Look = Annotated[_Look, Depends(_look)]
What = Annotated[str, Query(max_length=40)]


def _answer(request: Request, chart: Chart) -> Response:
    """A chart in the form that is asked for; a browser may keep it for as long as it would stay the same."""
    headers = _HEADERS | {"cache-control": f"private, max-age={int(min(chart.span.lasts_s, 20))}"}
    if request.query_params.get("format") != "csv":
        return Response(chart.json(), headers=headers, media_type="application/json")
    name = request.url.path.removeprefix("/ui/series/").replace("/", "-")
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in name)
    headers["content-disposition"] = f'attachment; filename="gpupool-{kept}.csv"'
    return Response(chart.csv(), headers=headers, media_type="text/csv; charset=utf-8")


@router.get("/pool/gpus")
async def gpus(look: Look, by: What = "pool", what: What = "held") -> Response:
    """GPUs held and computing; told apart with ``by``, and then ``what`` is held, used or idle."""
    analytics = look.services.analytics
    if by == By.POOL:
        return _answer(look.request, await series.pool_gpus(analytics, look.span, look.scope))
    known = {one.value: one for one in TOLD_APART}
    parts = {one.value: one for one in series.What}
    if by not in known or what not in parts:
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST,
            "GPU time is not told apart like this.",
            f"by: pool, {', '.join(known)}; what: {', '.join(parts)}.",
        )
    chart = await series.gpus_by(analytics, look.span, known[by], parts[what], look.scope)
    return _answer(look.request, chart)


@router.get("/pool/queue")
async def queue(look: Look) -> Response:
    """How many workloads waited for their first start."""
    return _answer(look.request, await series.queue_length(look.services.analytics, look.span))


@router.get("/pool/waiting")
async def waiting(look: Look) -> Response:
    """How long work waited for its first start, by when it was submitted."""
    chart = await series.waiting_time(look.services.analytics, look.span, look.scope)
    return _answer(look.request, chart)


@router.get("/pool/free")
async def free(look: Look) -> Response:
    """What was free, whole and in pieces."""
    return _answer(look.request, await series.free_gpus(look.services.analytics, look.span))


@router.get("/gpu/{uuid}")
async def gpu(look: Look, uuid: str, what: What = "use") -> Response:
    """What a GPU was measured to do: use, memory, power, temperature, clock."""
    draw = series.chosen(series.GPU, what)
    found = await look.services.telemetry.gpu_series(uuid[:100], look.span.since, look.span.until)
    return _answer(look.request, draw(found, look.span))


@router.get("/node/{name}")
async def node(look: Look, name: NodeName, what: What = "cpu") -> Response:
    """What a machine was measured to do (cpu, memory), or how many of its GPUs were held and computed (gpus)."""
    if what == "gpus":
        scope = Scope(node=name)
        return _answer(look.request, await series.pool_gpus(look.services.analytics, look.span, scope))
    draw = series.chosen(series.NODE, what)
    found = await look.services.telemetry.node_series(name, look.span.since, look.span.until)
    return _answer(look.request, draw(found, look.span))


@router.get("/workload/{ref}")
async def workload(look: Look, ref: Ref, what: What = "gpu", index: Index = 0) -> Response:
    """What a replica of a workload was measured to do: gpu, gpu_memory, cpu, memory, io."""
    draw = series.chosen(series.WORKLOAD, what)
    found = await look.services.workloads.get(look.visitor, ref)
    measured = await look.services.telemetry.replica_series(found.id, index, look.span.since, look.span.until)
    return _answer(look.request, draw(measured, look.span))
