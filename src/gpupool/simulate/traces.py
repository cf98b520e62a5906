"""The formats of traces: the openb pod list, the flat Philly list, and a plain one of our own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.gpu import GpuRequest, Node
from gpupool.domain.nodes.reservation import Reservation
from gpupool.domain.people.access import Project
from gpupool.domain.units import WHOLE_GPU
from gpupool.domain.work.time_windows import parse_windows
from gpupool.domain.work.workload import WorkloadKind
from gpupool.simulate.clusters import parse_nodes
from gpupool.simulate.rows import MAX_GPUS, MAX_SECONDS, Row, header_of, rows
from gpupool.simulate.values import Trace, TraceJob

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
_RESERVATION = "reservation"  # a row of this kind reserves nodes


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
    table = list(_rows(lines, kind))
    reserved = [row for row in table if _reserves(row, kind)]
    found = [_READERS[kind][1](row) for row in table if not _reserves(row, kind)]
    jobs = sorted((job for job in found if job.request.count), key=lambda job: job.submitted_s)
    if not jobs:
        raise GpupoolError(ErrorCode.INVALID_FILE, "The trace has no job that asks for a GPU.", "Use another file.")
    reservations = tuple(_reservation(row, number) for number, row in enumerate(reserved, 1))
    projects = _projects(table) if kind is TraceFormat.GPUPOOL else ()
    return Trace(tuple(jobs[:most]), len(found) - len(jobs), projects, reservations=reservations)


def parse_all(lines: Iterable[str], kind: TraceFormat) -> list[TraceJob]:
    """Return the jobs of a trace in file order, including those without a GPU; raise ``GpupoolError``."""
    return [_READERS[kind][1](row) for row in _rows(lines, kind)]


def _rows(lines: Iterable[str], kind: TraceFormat) -> Iterable[Row]:
    return rows(lines, _READERS[kind][0])


def _reserves(row: Row, kind: TraceFormat) -> bool:
    return kind is TraceFormat.GPUPOOL and row.text("kind") == _RESERVATION


def _reservation(row: Row, number: int) -> Reservation:
    """Return the reservation of a row: its nodes, for a project or user, or for maintenance if neither is named."""
    starts_at = row.number("submitted_s", most=MAX_SECONDS)
    nodes = _models(row.text("nodes"))
    if not nodes:
        raise row.wrong("a reservation names no nodes")
    projects, users = (tuple(filter(None, (row.text(name),))) for name in ("project", "user"))
    ends_at = starts_at + row.number("duration_s", most=MAX_SECONDS)
    return Reservation(str(number), f"reservation {number}", nodes, starts_at, ends_at, projects, users)


def _projects(table: Sequence[Row]) -> tuple[Project, ...]:
    found: dict[str, Project] = {}
    for row in table:
        department = row.text("department")
        project = Project(row.text("project", "default"), department=department)
        if department and found.setdefault(project.name, project) != project:
            raise row.wrong(f"project {project.name} is in another department before")
    return tuple(found.values())


def _own(row: Row) -> TraceJob:
    gpus = row.whole("gpus", most=MAX_GPUS)
    memory = row.whole("gpu_memory_mib", 0)
    permille = row.whole("gpu_permille", WHOLE_GPU, WHOLE_GPU)
    if not permille:
        raise row.wrong("gpu_permille is 0, not a part of a GPU from 1 to 1000")
    request = GpuRequest(gpus, permille, memory or None, _models(row.text("model")))
    return _own_job(row, request)


def _own_job(row: Row, request: GpuRequest) -> TraceJob:
    return TraceJob(
        row.number("submitted_s", most=MAX_SECONDS),
        row.number("duration_s", most=MAX_SECONDS),
        request,
        row.text("project", "default"),
        row.text("user", "default"),
        _kind(row) is WorkloadKind.TRAINING,
        row.number("cpus", 0.0),
        row.whole("memory_mib", 0),
        priority=row.whole("priority", 0),
        checkpoint_s=row.number("checkpoint_s", most=MAX_SECONDS) if row.text("checkpoint_s") else None,
        windows=_windows(row),
    )


def _windows(row: Row) -> tuple[str, ...]:
    windows = tuple(filter(None, (text.strip() for text in row.text("windows").split(";"))))
    try:
        parse_windows(windows)
    except GpupoolError as error:
        raise row.wrong(error.message.rstrip(".")) from error
    return windows


def _kind(row: Row) -> WorkloadKind:
    text = row.text("kind", WorkloadKind.TRAINING)
    known = (WorkloadKind.TRAINING, WorkloadKind.INTERACTIVE, WorkloadKind.RUN, WorkloadKind.LEASE)
    if text not in known:
        raise row.wrong(f"kind is '{text[:40]}', not one of {', '.join(known)}")
    return WorkloadKind(text)


def _openb(row: Row) -> TraceJob:
    """Return the job of a pod. It ran from its scheduling (else its creation) to its deletion."""
    created = row.number("creation_time", most=MAX_SECONDS)
    began = row.number("scheduled_time", created, MAX_SECONDS)
    ended = row.number("deletion_time", most=MAX_SECONDS)
    gpus, permille = row.whole("num_gpu", most=MAX_GPUS), row.whole("gpu_milli", 0, WHOLE_GPU)
    request = GpuRequest(gpus if permille else 0, permille or WHOLE_GPU, models=_models(row.text("gpu_spec")))
    return TraceJob(
        created,
        max(0.0, ended - began),
        request,
        preemptible=row.text("qos") == _BEST_EFFORT,
        cpus=row.whole("cpu_milli") / 1000,
        memory_mib=row.whole("memory_mib"),
    )


def _philly(row: Row) -> TraceJob:
    """Return a job; its virtual cluster is its project. The flat table names no users."""
    try:
        submitted = datetime.fromisoformat(row.text("timestamp")).replace(tzinfo=UTC).timestamp()
    except ValueError as error:
        raise row.wrong("timestamp is not like 2017-10-09 07:01:55") from error
    gpus = row.whole("num_gpus", most=MAX_GPUS)
    project = row.text("cluster", "default")
    duration = row.number("duration", most=MAX_SECONDS)
    return TraceJob(submitted, duration, GpuRequest(gpus), project, project)


def _models(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split("|")))


_READERS: dict[TraceFormat, tuple[tuple[str, ...], Callable[[Row], TraceJob]]] = {
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
