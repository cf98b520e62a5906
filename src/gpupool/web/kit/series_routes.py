"""Data of charts as JSON, or CSV with ``format=csv``. The time is ``range``, or ``since`` and ``until``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from starlette.requests import Request
from starlette.responses import Response

from gpupool.api.deps import Index, NodeName, Ref
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.people.access import Actor
from gpupool.domain.usage import GroupBy, UsageFilter
from gpupool.domain.work.workload import Workload, holder_index
from gpupool.services.pool import PoolServices
from gpupool.web.deps import Services, Visitor, reads
from gpupool.web.headers import PAGE_HEADERS
from gpupool.web.kit import series
from gpupool.web.kit.charts import Chart
from gpupool.web.kit.ranges import RANGE_NAMES, TimeRange, read_range

SCOPES = ("project", "user", "node", "model")
router = APIRouter(prefix="/ui/series", dependencies=[reads(*RANGE_NAMES, *SCOPES, "format")])

_HEADERS = {name: value for name, value in PAGE_HEADERS.items() if name != "cache-control"}
GROUPINGS = (GroupBy.PROJECT, GroupBy.DEPARTMENT, GroupBy.USER, GroupBy.NODE, GroupBy.MODEL)


@dataclass(frozen=True, slots=True)
class _SeriesRequest:
    """Visitor, time range and filter (``project``, ``user``, ``node``, ``model``) of a chart request."""

    request: Request
    services: PoolServices
    visitor: Actor
    span: TimeRange
    scope: UsageFilter


async def _read_request(request: Request, services: Services, visitor: Visitor) -> _SeriesRequest:
    query, accounting = request.query_params, services.accounting
    span = read_range(query, accounting.now(), accounting.time_zone)
    asked = {name: query.get(name) for name in SCOPES}
    return _SeriesRequest(
        request, services, visitor, span, UsageFilter(**{name: text[:253] for name, text in asked.items() if text})
    )


SeriesRequest = Annotated[_SeriesRequest, Depends(_read_request)]
Metric = Annotated[str, Query(max_length=40)]


def _answer(request: Request, chart: Chart) -> Response:
    """Return a chart as JSON or CSV; a browser may cache it until its values change."""
    headers = _HEADERS | {"cache-control": f"private, max-age={int(min(chart.span.cache_s, 20))}"}
    if request.query_params.get("format") != "csv":
        return Response(chart.json(), headers=headers, media_type="application/json")
    name = request.url.path.removeprefix("/ui/series/").replace("/", "-")
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in name)
    headers["content-disposition"] = f'attachment; filename="gpupool-{kept}.csv"'
    return Response(chart.csv(), headers=headers, media_type="text/csv; charset=utf-8")


@router.get("/pool/gpus")
async def gpus(look: SeriesRequest, by: Metric = "pool", what: Metric = "held") -> Response:
    """Return GPUs held and computing; with ``by`` grouped, and ``what`` is held, used or idle."""
    analytics = look.services.analytics
    if by == GroupBy.POOL:
        return _answer(look.request, await series.pool_gpus(analytics, look.span, look.scope))
    known = {one.value: one for one in GROUPINGS}
    parts = {one.value: one for one in series.GpuTimePart}
    if by not in known or what not in parts:
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST,
            "GPU time cannot be grouped like this.",
            f"by: pool, {', '.join(known)}; what: {', '.join(parts)}.",
        )
    chart = await series.gpus_by(analytics, look.span, known[by], parts[what], look.scope)
    return _answer(look.request, chart)


@router.get("/pool/queue")
async def queue(look: SeriesRequest) -> Response:
    """Return the number of workloads that waited for their first start."""
    return _answer(look.request, await series.queue_length(look.services.analytics, look.span))


@router.get("/pool/waiting")
async def waiting(look: SeriesRequest) -> Response:
    """Return the waiting time until the first start, by time of submission."""
    chart = await series.waiting_time(look.services.analytics, look.span, look.scope)
    return _answer(look.request, chart)


@router.get("/pool/free")
async def free(look: SeriesRequest) -> Response:
    """Return free GPUs, whole and in parts."""
    return _answer(look.request, await series.free_gpus(look.services.analytics, look.span))


@router.get("/gpu/{uuid}")
async def gpu(look: SeriesRequest, uuid: str, what: Metric = "use") -> Response:
    """Return samples of a GPU: use, memory, power, temperature or clock."""
    draw = series.measured_chart_of(series.GPU, what)
    found = await look.services.telemetry.gpu_series(uuid[:100], look.span.since, look.span.until)
    return _answer(look.request, draw(found, look.span))


@router.get("/node/{name}")
async def node(look: SeriesRequest, name: NodeName, what: Metric = "cpu") -> Response:
    """Return samples of a node (cpu, memory), or its GPUs held and computing (gpus)."""
    if what == "gpus":
        scope = UsageFilter(node=name)
        return _answer(look.request, await series.pool_gpus(look.services.analytics, look.span, scope))
    draw = series.measured_chart_of(series.NODE, what)
    found = await look.services.telemetry.node_series(name, look.span.since, look.span.until)
    return _answer(look.request, draw(found, look.span))


@router.get("/workload/{ref}")
async def workload(look: SeriesRequest, ref: Ref, what: Metric = "gpu", index: Index = 0) -> Response:
    """Return samples of a replica: gpu, gpu_memory, cpu, memory or io."""
    draw = series.measured_chart_of(series.WORKLOAD, what)
    found = await look.services.workloads.get(look.visitor, ref)
    measured = await look.services.telemetry.replica_series(found.id, index, look.span.since, look.span.until)
    chart = draw(measured, look.span)
    if what == "gpu_memory":
        chart = series.with_limit(chart, await _granted_memory_mib(look.services, found, index))
    return _answer(look.request, chart)


async def _granted_memory_mib(services: PoolServices, workload: Workload, index: int) -> int:
    """Return the GPU memory of the latest lease of a replica; 0 without one."""
    leases = [lease for lease in await services.workloads.leases_of(workload) if holder_index(lease.index) == index]
    return sum(share.memory_mib for share in leases[-1].shares) if leases else 0
