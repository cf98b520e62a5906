"""What was measured: of now, and over time."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from fastapi.params import Path
from starlette.responses import Response

from gpupool.api.deps import Caller, Index, Moment, NodeName, Ref, Services, answer
from gpupool.api.schemas.telemetry import (
    GpuLookView,
    NodeLookView,
    ReplicaLookView,
    SeriesView,
    StepName,
    TelemetryView,
)
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.telemetry import NodeSample, ReplicaSample, Series, Step

router = APIRouter(prefix="/v1", tags=["telemetry"])

DEFAULT_SPAN_S = 600.0
LONGEST_SPAN_S = 3 * 366 * 86400.0
_STEPS: dict[StepName | None, Step | None] = {None: None, "minute": Step.MINUTE, "hour": Step.HOUR}

GpuUuid = Annotated[str, Path(pattern=r"^[A-Za-z0-9-]{1,96}$", description="A GPU's UUID.")]


@dataclass(frozen=True, slots=True)
class Span:
    """A time, and how finely it is wanted."""

    since: float
    until: float
    step: Step | None


async def get_span(
    services: Services,
    since: Annotated[Moment | None, Query(description="Ten minutes before the end where it is left out.")] = None,
    until: Annotated[Moment | None, Query(description="Now where it is left out.")] = None,
    step: Annotated[StepName | None, Query(description="As fine as it can be where it is left out.")] = None,
) -> Span:
    """The time asked for. Raises ``GpupoolError(INVALID_REQUEST)`` for one that is too long or ends too early."""
    end = services.telemetry.now() if until is None else until
    begin = max(0.0, end - DEFAULT_SPAN_S) if since is None else since
    if not begin <= end <= begin + LONGEST_SPAN_S:
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST,
            "since, until: the time ends before it begins, or is longer than three years.",
            "Give seconds since the epoch.",
        )
    return Span(begin, end, _STEPS[step])


SpanAsked = Annotated[Span, Depends(get_span)]


@router.get("/telemetry", response_model=TelemetryView)
async def latest(services: Services, _caller: Caller) -> Response:
    """The latest look at each machine, its GPUs and the programs on it."""
    looks = services.telemetry.latest()
    return answer(TelemetryView(nodes=[_node(looks[name]) for name in sorted(looks)]))


@router.get("/nodes/{name}/telemetry", response_model=SeriesView)
async def of_node(services: Services, _caller: Caller, name: NodeName, span: SpanAsked) -> Response:
    """How busy a machine was: ``cpu_percent`` (100 for one core), ``memory_used_mib``."""
    await services.nodes.node(name)
    return _answer(await services.telemetry.node_series(name, span.since, span.until, span.step))


@router.get("/gpus/{uuid}/telemetry", response_model=SeriesView)
async def of_gpu(services: Services, _caller: Caller, uuid: GpuUuid, span: SpanAsked) -> Response:
    """How busy a GPU was, also one that is no longer there.

    ``utilisation_percent``, ``memory_used_mib``, ``power_w``, ``temperature_c``, ``sm_clock_mhz``.
    """
    return _answer(await services.telemetry.gpu_series(uuid, span.since, span.until, span.step))


@router.get("/workloads/{ref}/telemetry", response_model=SeriesView)
async def of_replica(services: Services, caller: Caller, ref: Ref, span: SpanAsked, replica: Index = 0) -> Response:
    """What a replica used, over all its attempts.

    ``gpu_percent``, ``cpu_percent`` (100: one GPU or core all the time), ``gpu_memory_mib``, ``memory_mib``,
    ``read_bytes_per_s``, ``written_bytes_per_s``.
    """
    workload = await services.workloads.get(caller, ref)
    found = await services.telemetry.replica_series(workload.id, replica, span.since, span.until, span.step)
    return _answer(found)


def _answer(series: Series) -> Response:
    values = {name: list(column) for name, column in series.values.items()}
    return answer(SeriesView(step_s=series.step_s, times=list(series.times), values=values))


def _node(look: NodeSample) -> NodeLookView:
    return NodeLookView(
        node=look.node,
        at=look.at,
        cpu_percent=look.cpu_percent,
        memory_used_mib=look.memory_used_mib,
        gpus=[GpuLookView(**asdict(gpu)) for gpu in look.gpus],
        replicas=[_replica(row) for row in look.replicas],
    )


def _replica(row: ReplicaSample) -> ReplicaLookView:
    known = row.gpus > 0 or row.lease == 0
    return ReplicaLookView(**asdict(row) | {"gpu_percent": row.gpu_percent if known else None})
