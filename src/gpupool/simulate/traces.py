"""The formats of traces: the openb pod list, the flat Philly list, and a plain one of our own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.gpu import GpuRequest, Node
from gpupool.domain.units import WHOLE_GPU
from gpupool.domain.work.workload import WorkloadKind
from gpupool.simulate.clusters import parse_nodes
from gpupool.simulate.rows import MAX_GPUS, MAX_SECONDS, Row, header_of, rows
from gpupool.simulate.values import Job, Trace

MAX_BYTES = 512 * 1024 * 1024


class TraceFormat(StrEnum):
    """The format of a trace."""

    GPUPOOL = "gpupool"  # the columns of OWN; `gpupool simulate --help` names the optional ones
    OPENB = "openb"  # pods of the Alibaba cluster trace of 2023
    PHILLY = "philly"  # jobs of the Philly traces as one flat table


OWN = ("submitted_s", "duration_s", "gpus")
OPENB = ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec", "qos", "creation_time", "deletion_time")
PHILLY = ("timestamp", "duration", "num_gpus", "cluster")
_BEST_EFFORT = "BE"


def format_of(header: str) -> TraceFormat:
    """Return the format of a file by its first line; raise ``GpupoolError(INVALID_FILE)``."""
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
    """Return the jobs of a trace, at most the first ``most`` to be submitted; raise ``GpupoolError``."""
    found = parse_all(lines, kind)
    jobs = sorted((job for job in found if job.request.count), key=lambda job: job.submitted_s)
    if not jobs:
        raise GpupoolError(ErrorCode.INVALID_FILE, "The trace has no job that asks for a GPU.", "Use another file.")
    return Trace(tuple(jobs[:most]), len(found) - len(jobs))


def parse_all(lines: Iterable[str], kind: TraceFormat) -> list[Job]:
    """Return the jobs of a trace in file order, including those without a GPU; raise ``GpupoolError``."""
    needed, reader = _READERS[kind]
    return [reader(row) for row in rows(lines, needed)]


def _own(row: Row) -> Job:
    gpus = row.whole("gpus", most=MAX_GPUS)
    memory = row.whole("gpu_memory_mib", 0)
    permille = row.whole("gpu_permille", WHOLE_GPU, WHOLE_GPU)
    if not permille:
        raise row.wrong("gpu_permille is 0, not a part of a GPU from 1 to 1000")
    request = GpuRequest(gpus, permille, memory or None, _models(row.text("model")))
    return _own_job(row, request)


def _own_job(row: Row, request: GpuRequest) -> Job:
    return Job(
        row.number("submitted_s", most=MAX_SECONDS),
        row.number("duration_s", most=MAX_SECONDS),
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
    """Return the job of a pod. It ran from its scheduling (else its creation) to its deletion."""
    created = row.number("creation_time", most=MAX_SECONDS)
    began = row.number("scheduled_time", created, MAX_SECONDS)
    ended = row.number("deletion_time", most=MAX_SECONDS)
    gpus, permille = row.whole("num_gpu", most=MAX_GPUS), row.whole("gpu_milli", 0, WHOLE_GPU)
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
    """Return a job; its virtual cluster is its project. The flat table names no users."""
    try:
        submitted = datetime.fromisoformat(row.text("timestamp")).replace(tzinfo=UTC).timestamp()
    except ValueError as error:
        raise row.wrong("timestamp is not like 2017-10-09 07:01:55") from error
    gpus = row.whole("num_gpus", most=MAX_GPUS)
    project = row.text("cluster", "default")
    duration = row.number("duration", most=MAX_SECONDS)
    return Job(submitted, duration, GpuRequest(gpus), project, project)


def _models(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split("|")))


_READERS: dict[TraceFormat, tuple[tuple[str, ...], Callable[[Row], Job]]] = {
    TraceFormat.GPUPOOL: (OWN, _own),
    TraceFormat.OPENB: (OPENB, _openb),
    TraceFormat.PHILLY: (PHILLY, _philly),
}


def read_trace(path: Path, kind: TraceFormat | None = None, most: int | None = None) -> Trace:
    """Read the jobs of a file, whose first line tells the format unless it is given; raise ``GpupoolError``."""
    lines = read_lines(path)
    return parse_trace(lines, kind or format_of(lines[0] if lines else ""), most)


def read_nodes(path: Path) -> tuple[Node, ...]:
    """Read the nodes of a file; raise ``GpupoolError``."""
    return parse_nodes(read_lines(path))


def read_lines(path: Path) -> list[str]:
    """Read the lines of a file that is not too large; raise ``GpupoolError`` (INVALID_FILE, TOO_LARGE)."""
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            sentence = f"{path} is larger than {MAX_BYTES // 1024**2} MiB."
            raise GpupoolError(ErrorCode.TOO_LARGE, sentence, "Cut it.")
        with path.open(encoding="utf-8", newline="") as file:
            return file.readlines()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        sentence = f"{path} cannot be read: {why}."
        raise GpupoolError(ErrorCode.INVALID_FILE, sentence, "Give a readable CSV file.") from error
