"""The formats of traces: the openb pod list, the flat Philly list, and a plain one of our own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from enum import StrEnum

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.gpu import GpuRequest
from gpupool.domain.units import WHOLE_GPU
from gpupool.domain.workload import WorkloadKind
from gpupool.simulate.rows import MOST_GPUS, MOST_SECONDS, Row, header_of, rows
from gpupool.simulate.values import Job, Trace


class TraceFormat(StrEnum):
    """How a trace is written."""

    GPUPOOL = "gpupool"  # OWN: submitted_s, duration_s, gpus and, where wanted, the columns of OWN_MORE
    OPENB = "openb"  # pods of the Alibaba cluster trace of 2023
    PHILLY = "philly"  # jobs of the Philly traces as one flat table


OWN = ("submitted_s", "duration_s", "gpus")
OWN_MORE = ("gpu_permille", "gpu_memory_mib", "cpus", "memory_mib", "model", "project", "user", "kind")
OPENB = ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec", "qos", "creation_time", "deletion_time")
PHILLY = ("timestamp", "duration", "num_gpus", "cluster")
_BEST_EFFORT = "BE"


def format_of(header: str) -> TraceFormat:
    """Which format a file has, by its first line; raises ``GpupoolError(INVALID_FILE)``."""
    names = set(header_of(header.strip()))
    for kind, needed in ((TraceFormat.GPUPOOL, OWN), (TraceFormat.OPENB, OPENB), (TraceFormat.PHILLY, PHILLY)):
        if names.issuperset(needed):
            return kind
    raise GpupoolError(
        ErrorCode.INVALID_FILE,
        "The first line of the trace is not that of a known format.",
        f"A trace is a CSV table with at least the columns {', '.join(OWN)}.",
    )


def parse_trace(lines: Iterable[str], kind: TraceFormat, most: int | None = None) -> Trace:
    """The jobs of a trace, at most the first ``most`` to be submitted; raises ``GpupoolError``."""
    found = parse_all(lines, kind)
    jobs = sorted((job for job in found if job.request.count), key=lambda job: job.submitted_s)
    if not jobs:
        raise GpupoolError(ErrorCode.INVALID_FILE, "The trace has no job that asks for a GPU.", "Name another file.")
    return Trace(tuple(jobs[:most]), len(found) - len(jobs))


def parse_all(lines: Iterable[str], kind: TraceFormat) -> list[Job]:
    """The jobs of a trace as they stand, those without a GPU included; raises ``GpupoolError``."""
    needed, reader = _READERS[kind]
    return [reader(row) for row in rows(lines, needed)]


def _own(row: Row) -> Job:
    gpus = row.whole("gpus", most=MOST_GPUS)
    memory = row.whole("gpu_memory_mib", 0)
    permille = row.whole("gpu_permille", WHOLE_GPU, WHOLE_GPU)
    if not permille:
        raise row.wrong("gpu_permille is 0, not a part of a GPU from 1 to 1000")
    request = GpuRequest(gpus, permille, memory or None, _models(row.text("model")))
    return _own_job(row, request)


def _own_job(row: Row, request: GpuRequest) -> Job:
    return Job(
        row.number("submitted_s", most=MOST_SECONDS),
        row.number("duration_s", most=MOST_SECONDS),
        request,
        row.text("project", "default"),
        row.text("user", "default"),
        _kind(row) is WorkloadKind.TRAINING,
        row.number("cpus", 0.0),
        row.whole("memory_mib", 0),
    )


def _kind(row: Row) -> WorkloadKind:
    text = row.text("kind", WorkloadKind.TRAINING)
    known = (WorkloadKind.TRAINING, WorkloadKind.INTERACTIVE, WorkloadKind.RUN, WorkloadKind.LEASE)
    if text not in known:
        raise row.wrong(f"kind is '{text[:40]}', not one of {', '.join(known)}")
    return WorkloadKind(text)


def _openb(row: Row) -> Job:
    """A pod. It ran from its scheduling (else its creation) to its deletion."""
    created = row.number("creation_time", most=MOST_SECONDS)
    began = row.number("scheduled_time", created, MOST_SECONDS)
    ended = row.number("deletion_time", most=MOST_SECONDS)
    gpus, permille = row.whole("num_gpu", most=MOST_GPUS), row.whole("gpu_milli", 0, WHOLE_GPU)
    request = GpuRequest(gpus if permille else 0, permille or WHOLE_GPU, models=_models(row.text("gpu_spec")))
    return Job(
        created,
        max(0.0, ended - began),
        request,
        preemptible=row.text("qos") == _BEST_EFFORT,
        cpus=row.whole("cpu_milli") / 1000,
        memory_mib=row.whole("memory_mib"),
    )


def _philly(row: Row) -> Job:
    """A job; its virtual cluster is its project. The flat table names no users."""
    try:
        submitted = datetime.fromisoformat(row.text("timestamp")).replace(tzinfo=UTC).timestamp()
    except ValueError as error:
        raise row.wrong("timestamp is not like 2017-10-09 07:01:55") from error
    gpus = row.whole("num_gpus", most=MOST_GPUS)
    project = row.text("cluster", "default")
    duration = row.number("duration", most=MOST_SECONDS)
    return Job(submitted, duration, GpuRequest(gpus), project, project)


def _models(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split("|")))


_READERS: dict[TraceFormat, tuple[tuple[str, ...], Callable[[Row], Job]]] = {
    TraceFormat.GPUPOOL: (OWN, _own),
    TraceFormat.OPENB: (OPENB, _openb),
    TraceFormat.PHILLY: (PHILLY, _philly),
}
