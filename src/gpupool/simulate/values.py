"""Jobs and their outcomes as plain values. Times are seconds, GPU quantities thousandths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, tzinfo

from gpupool.domain.nodes.gpu import GpuRequest
from gpupool.domain.nodes.reservation import Reservation
from gpupool.domain.people.access import Department, Project


@dataclass(frozen=True, slots=True)
class TraceJob:
    """A job of a trace: ``cpus`` and ``memory_mib`` (of the host) are for all GPUs of ``request`` together.

    ``members``: the number of replicas with ``request`` each, which start together; a replica that needs more GPUs than
    a node has is split. ``checkpoint_s``: the interval of its own checkpoints; None: that of ``Rules``. ``windows``:
    the time windows in which it may run.
    """

    submitted_s: float
    duration_s: float
    request: GpuRequest
    project: str = "default"
    user: str = "default"
    preemptible: bool = True
    cpus: float = 0.0
    memory_mib: int = 0
    members: int = 1
    priority: int = 0
    checkpoint_s: float | None = None
    windows: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Trace:
    """Jobs in the order of their submission; ``skipped`` counts jobs in the file that need no GPU pool.

    ``projects`` are those with a department.
    """

    jobs: tuple[TraceJob, ...]
    skipped: int = 0
    projects: tuple[Project, ...] = ()
    departments: tuple[Department, ...] = ()
    reservations: tuple[Reservation, ...] = ()

    @property
    def timed(self) -> bool:
        """Return True if something in it depends on the time of day: time windows or reservations."""
        return bool(self.reservations) or any(job.windows for job in self.jobs)


@dataclass(frozen=True, slots=True)
class Rules:
    """The behaviour of the simulated pool: an evicted replica holds its GPUs for ``grace_s`` more.

    ``checkpoint_s``: evicted work has saved its progress every so often (0: it loses nothing) and continues from there,
    ``restart_s`` after its next start; None: it starts from the beginning. ``samples`` is the number of cluster
    samples, evenly between the first submission and the last. ``told``: the queue is ordered by the actual run times,
    which no real pool knows; for comparison. ``reservations`` are known from the start; ``zone`` is the time zone of
    time windows.
    """

    grace_s: float = 10.0
    samples: int = 100
    checkpoint_s: float | None = None
    restart_s: float = 0.0
    told: bool = False
    departments: tuple[Department, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    zone: tzinfo = UTC


@dataclass(frozen=True, slots=True)
class Sample:
    """The cluster at a moment: allocated GPU thousandths, and free ones that are stranded.

    ``held`` and ``asked`` are thousandths by project: of running work, and of running and waiting work.
    """

    at_s: float
    allocated_permille: int
    stranded_permille: float
    waiting: int
    held: Mapping[str, int]
    asked: Mapping[str, int]


@dataclass(slots=True)
class Fate:
    """The outcome of a job: ``started_s`` is when the last of its replicas first started.

    ``wasted_permille_s`` is work lost by evictions, or spent on starting again.
    """

    job: TraceJob
    replicas: int = 1
    starts: dict[int, float] = field(default_factory=dict)
    finished: int = 0
    ended_s: float | None = None
    impossible: str = ""
    preemptions: int = 0
    wasted_permille_s: float = 0.0
    used_permille_s: float = 0.0

    @property
    def started_s(self) -> float | None:
        """Return the start time; None while one of its replicas has never started."""
        return max(self.starts.values()) if len(self.starts) == self.replicas else None

    @property
    def wait_s(self) -> float | None:
        """Return the time from submission until it had started as a whole; None if it never did."""
        started = self.started_s
        return None if started is None else started - self.job.submitted_s

    @property
    def delay_s(self) -> float | None:
        """Return the delay of its end compared with running alone; None if it did not end."""
        if self.ended_s is None or self.finished < self.replicas:
            return None
        return max(0.0, self.ended_s - self.job.submitted_s - self.job.duration_s)


@dataclass(frozen=True, slots=True)
class Record:
    """A finished simulation: every job's outcome, in the order of the trace, and the cluster over time.

    ``busy_permille_s`` is what was allocated between the first submission and the last, summed over that time;
    ``evictions`` are counted by their kind.
    """

    fates: tuple[Fate, ...]
    samples: tuple[Sample, ...]
    capacity_permille: int
    busy_permille_s: float
    window_s: float
    ended_s: float
    decisions: int
    starts: int
    projects: tuple[Project, ...] = ()
    evictions: Mapping[str, int] = field(default_factory=dict)
