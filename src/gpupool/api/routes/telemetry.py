"""Routes of samples, current and past."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query
from fastapi.params import Path
from starlette.responses import Response

from gpupool.api.deps import Caller, Index, Moment, NodeName, Ref, Services, Word, answer
from gpupool.api.paging import Paged, matches
from gpupool.api.schemas.base import PageView, View
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.telemetry import NodeSample, ReplicaSample, RollupStep, Series

StepName = Literal["minute", "hour"]


class GpuLookView(View):
    """A sample of one GPU; null where the GPU or its driver reports no value."""

    gpu_uuid: str
    utilisation_percent: float | None
    memory_used_mib: int
    processes: int
    power_w: float | None
    temperature_c: float | None
    sm_clock_mhz: int | None
    memory_clock_mhz: int | None


class ReplicaLookView(View):
    """A sample of a running program. Percentages are of one GPU or one core; bytes are since its start.

    ``gpu_percent`` is null where it cannot be measured. ``shared_percent`` is the time that the arbiter granted.
    """

    key: str
    gpu_percent: float | None
    shared_percent: float | None
    gpu_memory_mib: int
    cpu_percent: float
    memory_mib: int
    read_bytes: int
    written_bytes: int
    processes: int


class NodeLookView(View):
    """A sample of a node, its GPUs and the programs on it. ``cpu_percent`` is 100 for one core."""

    node: str
    at: float
    cpu_percent: float
    memory_used_mib: int
    gpus: list[GpuLookView]
    replicas: list[ReplicaLookView]


class TelemetryView(PageView):
    """The latest sample of each node, except nodes that have been silent for ten seconds."""

    nodes: list[NodeLookView]


class SeriesView(View):
    """Columns over time: each value covers the ``step_s`` seconds from its time on, null where unknown.

    Steps without measurements are omitted, except one between two others. With ``step_s`` 1, the values are the
    samples.
    """

    step_s: int
    times: list[float]
    values: dict[str, list[float | None]]


router = APIRouter(prefix="/v1", tags=["telemetry"])

DEFAULT_SPAN_S = 600.0
LONGEST_SPAN_S = 3 * 366 * 86400.0
_STEPS: dict[StepName | None, RollupStep | None] = {None: None, "minute": RollupStep.MINUTE, "hour": RollupStep.HOUR}

GpuUuid = Annotated[str, Path(pattern=r"^[A-Za-z0-9-]{1,96}$", description="A GPU's UUID.")]


@dataclass(frozen=True, slots=True)
class TelemetrySpan:
    """A period, and the wanted resolution."""

    since: float
    until: float
    step: RollupStep | None


async def get_span(
    services: Services,
    since: Annotated[Moment | None, Query(description="Default: ten minutes before the end.")] = None,
    until: Annotated[Moment | None, Query(description="Default: now.")] = None,
    step: Annotated[StepName | None, Query(description="Default: the smallest possible step.")] = None,
) -> TelemetrySpan:
    """Return the time range; raise ``GpupoolError(INVALID_REQUEST)`` if it is too long or empty."""
    end = services.telemetry.now() if until is None else until
    begin = max(0.0, end - DEFAULT_SPAN_S) if since is None else since
    if not begin <= end <= begin + LONGEST_SPAN_S:
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST,
            "since, until: the period ends before it starts, or is longer than three years.",
            "Give seconds since the epoch.",
        )
    return TelemetrySpan(begin, end, _STEPS[step])


SpanAsked = Annotated[TelemetrySpan, Depends(get_span)]


@router.get("/telemetry", response_model=TelemetryView)
async def get_latest_samples(services: Services, _caller: Caller, page: Paged, node: Word | None = None) -> Response:
    """Return the latest sample of each node, or of one, its GPUs and its programs."""
    looks = services.telemetry.latest()
    rows, following = page.cut([name for name in sorted(looks) if matches(node, name)])
    return answer(TelemetryView(nodes=[_node(looks[name]) for name in rows], next_cursor=following))


@router.get("/nodes/{name}/telemetry", response_model=SeriesView)
async def get_node_telemetry(services: Services, _caller: Caller, name: NodeName, span: SpanAsked) -> Response:
    """Return the use of a node over time: ``cpu_percent`` (100 for one core), ``memory_used_mib``."""
    await services.nodes.node(name)
    return _answer(await services.telemetry.node_series(name, span.since, span.until, span.step))


@router.get("/gpus/{uuid}/telemetry", response_model=SeriesView)
async def get_gpu_telemetry(services: Services, _caller: Caller, uuid: GpuUuid, span: SpanAsked) -> Response:
    """Return the use of a GPU over time, also of a GPU that was removed.

    Columns: ``utilisation_percent``, ``memory_used_mib``, ``power_w``, ``temperature_c``, ``sm_clock_mhz``.
    """
    return _answer(await services.telemetry.gpu_series(uuid, span.since, span.until, span.step))


@router.get("/workloads/{ref}/telemetry", response_model=SeriesView)
async def get_workload_telemetry(
    services: Services, caller: Caller, ref: Ref, span: SpanAsked, replica: Index = 0
) -> Response:
    """Return the resource use of a replica over all its attempts.

    Columns: ``gpu_percent``, ``cpu_percent`` (100: one GPU or core all the time), ``gpu_memory_mib``, ``memory_mib``,
    ``read_bytes_per_s``, ``written_bytes_per_s``.
    """
    workload = await services.workloads.get(caller, ref)
    found = await services.telemetry.replica_series(workload.id, replica, span.since, span.until, span.step)
    return _answer(found)


def _answer(series: Series) -> Response:
    values = {name: list(column) for name, column in series.values.items()}
    return answer(SeriesView(step_s=series.step_s, times=list(series.times), values=values))


def _node(look: NodeSample) -> NodeLookView:
    return NodeLookView.of(look, replicas=[_replica(row) for row in look.replicas])


def _replica(row: ReplicaSample) -> ReplicaLookView:
    known = row.gpus > 0 or row.lease == 0
    return ReplicaLookView(**asdict(row) | {"gpu_percent": row.gpu_percent if known else None})
