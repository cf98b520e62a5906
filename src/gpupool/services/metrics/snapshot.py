"""What the metrics of one scrape are made from: frozen values, all of the same moment."""

from __future__ import annotations

import asyncio
import os
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpupool.domain.gpu import Node
from gpupool.domain.ids import WorkloadId, attempt_key
from gpupool.domain.telemetry import NodeSample, ReplicaSample
from gpupool.domain.units import WHOLE_GPU
from gpupool.domain.workload import Lease, Replica, ReplicaState, Workload, WorkloadState
from gpupool.services.engine import Engine
from gpupool.services.holdings import last_active
from gpupool.services.nodebook import NodeBook

IDLE_AFTER_S = 300.0
AT_ONCE = 200  # leases looked at before others may run
DATABASE_FILES = ("pool.db", "pool.db-wal")


@dataclass(frozen=True, slots=True)
class Held:
    """A lease that is open, with whoever holds it and so many GPUs, slices as fractions.

    ``idle_s`` None: it starts, stops, or is not known any more. ``looks`` are the newest at the programs on it.
    """

    lease: Lease
    workload: Workload | None
    replica: Replica | None
    idle_s: float | None
    gpus: float
    looks: tuple[ReplicaSample, ...] = ()

    @property
    def lease_key(self) -> str:
        """The attempt that it was granted to."""
        return attempt_key(self.lease.workload, self.lease.index, self.lease.attempt)

    @property
    def busy_percent(self) -> float | None:
        """Time computed on its GPUs, summed over them; None where nobody sees it."""
        seen = [look.gpu_percent for look in self.looks if look.gpus]
        return sum(seen) if seen else None

    @property
    def idle(self) -> bool:
        """Whether it holds GPUs for nothing."""
        return self.idle_s is not None and self.idle_s >= IDLE_AFTER_S


@dataclass(frozen=True, slots=True)
class Waiting:
    """What waits, by project, and the workloads by state and kind."""

    replicas: Counter[str] = field(default_factory=Counter)
    oldest: dict[str, float] = field(default_factory=dict)  # when it was submitted
    workloads: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, workload: Workload, pending: int) -> None:
        """Count one workload with so many replicas that wait."""
        self.workloads[workload.state.value, workload.kind.value] += 1
        self.replicas[workload.project] += pending
        if workload.state is WorkloadState.QUEUED and pending:
            before = self.oldest.get(workload.project, workload.created_at)
            self.oldest[workload.project] = min(before, workload.created_at)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The pool at ``now``; ``workloads`` are those that have not ended, to be counted by the piece."""

    now: float
    nodes: tuple[Node, ...]
    holdings: tuple[Held, ...]
    workloads: tuple[tuple[Workload, int], ...]
    samples: Mapping[str, NodeSample]


@dataclass(frozen=True, slots=True)
class Grasp:
    """What has to be of one moment, with nothing worked out yet."""

    now: float
    nodes: tuple[Node, ...]
    leases: tuple[tuple[Lease, Workload | None, Replica | None], ...]
    workloads: tuple[tuple[Workload, int], ...]
    samples: Mapping[str, NodeSample]


def grasp(engine: Engine, book: NodeBook, samples: Mapping[str, NodeSample]) -> Grasp:
    """The pool as it is now. To be called while nothing is half written."""
    mirror = engine.mirror
    counts, workloads, replicas = mirror.counts, mirror.workloads, mirror.replicas
    pending = ReplicaState.PENDING
    return Grasp(
        now=engine.ports.clock.now(),
        nodes=book.all(),
        leases=tuple(
            (lease, workloads.get(lease.workload), replicas.get(lease.workload, _NONE).get(lease.index))
            for lease in mirror.leases.values()
        ),
        workloads=tuple((w, counts.get(key, _NOTHING).get(pending, 0)) for key, w in workloads.items()),
        samples=dict(samples),
    )


_NONE: dict[int, Replica] = {}
_NOTHING: Counter[ReplicaState] = Counter()


async def take(engine: Engine, grasped: Grasp) -> Snapshot:
    """Work the rest out; others run meanwhile."""
    looks = _by_lease(grasped.samples)
    holdings: list[Held] = []
    for count, (lease, workload, replica) in enumerate(grasped.leases):
        holdings.append(_holding(engine, grasped.now, (lease, workload, replica), tuple(looks[lease.epoch])))
        if count % AT_ONCE == 0:
            await asyncio.sleep(0)
    return Snapshot(grasped.now, grasped.nodes, tuple(holdings), grasped.workloads, grasped.samples)


def _by_lease(samples: Mapping[str, NodeSample]) -> dict[int, list[ReplicaSample]]:
    found: dict[int, list[ReplicaSample]] = defaultdict(list)
    for sample in samples.values():
        for row in sample.replicas:
            found[row.lease].append(row)
    return found


def _holding(
    engine: Engine,
    now: float,
    row: tuple[Lease, Workload | None, Replica | None],
    looks: tuple[ReplicaSample, ...],
) -> Held:
    lease, workload, replica = row
    gpus = lease.permille / WHOLE_GPU
    if workload is None or replica is None or replica.attempt != lease.attempt:
        return Held(lease, workload, replica, None, gpus, looks)
    if replica.state is not ReplicaState.RUNNING:
        return Held(lease, workload, replica, None, gpus, looks)
    idle_s = max(0.0, now - last_active(engine, workload, replica, now))
    return Held(lease, workload, replica, idle_s, gpus, looks)


def by_workload(holdings: tuple[Held, ...]) -> dict[WorkloadId, list[Held]]:
    """Holdings of each workload, those that hold most first."""
    found: dict[WorkloadId, list[Held]] = {}
    for holding in holdings:
        found.setdefault(holding.lease.workload, []).append(holding)
    return dict(sorted(found.items(), key=lambda item: (-sum(h.gpus for h in item[1]), item[0])))


@dataclass(frozen=True, slots=True)
class Disk:
    """The file system of the pool's state, in bytes."""

    size: int
    free: int
    database: int


def look_at_disk(state_dir: str) -> Disk | None:
    """How full it is; None where it cannot be told."""
    try:
        found = os.statvfs(state_dir)
        files = [Path(state_dir) / name for name in DATABASE_FILES]
        database = sum(path.stat().st_size for path in files if path.exists())
    except (OSError, ValueError):
        return None
    return Disk(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize, database)
