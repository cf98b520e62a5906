"""Snapshot of the pool for the metrics of one scrape: frozen values of the same moment."""

from __future__ import annotations

import asyncio
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpupool.domain.ids import WorkloadId
from gpupool.domain.nodes.gpu import Node
from gpupool.domain.nodes.telemetry import NodeSample, ReplicaSample
from gpupool.domain.units import WHOLE_GPU
from gpupool.domain.work.workload import GpuLease, Replica, ReplicaState, Workload, WorkloadState, holder_index
from gpupool.services.control.engine import Engine
from gpupool.services.state.node_registry import NodeRegistry

IDLE_AFTER_S = 300.0
AT_ONCE = 200  # leases processed before other tasks may run
DATABASE_FILES = ("pool.db", "pool.db-wal")


@dataclass(frozen=True, slots=True)
class OpenLease:
    """An open lease with its workload, its replica and its number of GPUs; slices count as fractions.

    ``idle_s`` is None if the replica starts, stops or is unknown. ``looks`` are the latest samples of its programs.
    """

    lease: GpuLease
    workload: Workload | None
    replica: Replica | None
    idle_s: float | None
    gpus: float
    looks: tuple[ReplicaSample, ...] = ()

    @property
    def busy_percent(self) -> float | None:
        """Return the use of its GPUs in percent, summed over its programs; None if it is not measured."""
        seen = [look.gpu_percent for look in self.looks if look.gpus]
        return sum(seen) if seen else None

    @property
    def idle(self) -> bool:
        """Return True if its GPUs were not used for ``IDLE_AFTER_S``."""
        return self.idle_s is not None and self.idle_s >= IDLE_AFTER_S


@dataclass(frozen=True, slots=True)
class WaitingCounts:
    """Waiting replicas by project, and workloads by state and kind."""

    replicas: Counter[str] = field(default_factory=Counter)
    oldest: dict[str, float] = field(default_factory=dict)  # submission time of the oldest queued workload
    workloads: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, workload: Workload, pending: int) -> None:
        """Count a workload with ``pending`` waiting replicas."""
        self.workloads[workload.state.value, workload.kind.value] += 1
        self.replicas[workload.project] += pending
        if workload.state is WorkloadState.QUEUED and pending:
            before = self.oldest.get(workload.project, workload.created_at)
            self.oldest[workload.project] = min(before, workload.created_at)


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """The pool at ``now``; ``workloads`` are those that have not ended, with their number of waiting replicas."""

    now: float
    nodes: tuple[Node, ...]
    holdings: tuple[OpenLease, ...]
    workloads: tuple[tuple[Workload, int], ...]
    samples: Mapping[str, NodeSample]


@dataclass(frozen=True, slots=True)
class RawState:
    """The raw state of one moment, from which ``make_snapshot`` computes a ``MetricsSnapshot``."""

    now: float
    nodes: tuple[Node, ...]
    leases: tuple[tuple[GpuLease, Workload | None, Replica | None], ...]
    workloads: tuple[tuple[Workload, int], ...]
    samples: Mapping[str, NodeSample]


def read_state(engine: Engine, book: NodeRegistry, samples: Mapping[str, NodeSample]) -> RawState:
    """Copy the present state of the pool. Call it only while no write is in progress."""
    mirror = engine.mirror
    counts, workloads, replicas = mirror.counts, mirror.workloads, mirror.replicas
    pending = ReplicaState.PENDING
    return RawState(
        now=engine.ports.clock.now(),
        nodes=book.all(),
        leases=tuple(
            (lease, workloads.get(lease.workload), replicas.get(lease.workload, _NONE).get(holder_index(lease.index)))
            for lease in mirror.leases.values()
        ),
        workloads=tuple((w, counts.get(key, _NOTHING).get(pending, 0)) for key, w in workloads.items()),
        samples=dict(samples),
    )


_NONE: dict[int, Replica] = {}
_NOTHING: Counter[ReplicaState] = Counter()


async def make_snapshot(engine: Engine, raw: RawState) -> MetricsSnapshot:
    """Compute the snapshot of a raw state, and let other tasks run in between."""
    looks = _by_lease(raw.samples)
    holdings: list[OpenLease] = []
    for count, (lease, workload, replica) in enumerate(raw.leases):
        holdings.append(_holding(engine, raw.now, (lease, workload, replica), tuple(looks[lease.epoch])))
        if count % AT_ONCE == 0:
            await asyncio.sleep(0)
    return MetricsSnapshot(raw.now, raw.nodes, tuple(holdings), raw.workloads, raw.samples)


def _by_lease(samples: Mapping[str, NodeSample]) -> dict[int, list[ReplicaSample]]:
    found: dict[int, list[ReplicaSample]] = defaultdict(list)
    for sample in samples.values():
        for row in sample.replicas:
            found[row.lease].append(row)
    return found


def _holding(
    engine: Engine,
    now: float,
    row: tuple[GpuLease, Workload | None, Replica | None],
    looks: tuple[ReplicaSample, ...],
) -> OpenLease:
    lease, workload, replica = row
    gpus = lease.permille / WHOLE_GPU
    if workload is None or replica is None or replica.attempt != lease.attempt:
        return OpenLease(lease, workload, replica, None, gpus, looks)
    if replica.state is not ReplicaState.RUNNING:
        return OpenLease(lease, workload, replica, None, gpus, looks)
    idle_s = max(0.0, now - engine.last_active(workload, replica, now))
    return OpenLease(lease, workload, replica, idle_s, gpus, looks)


def by_workload(holdings: tuple[OpenLease, ...]) -> dict[WorkloadId, list[OpenLease]]:
    """Group leases by workload, the largest workloads first."""
    found: dict[WorkloadId, list[OpenLease]] = {}
    for holding in holdings:
        found.setdefault(holding.lease.workload, []).append(holding)
    return dict(sorted(found.items(), key=lambda item: (-held_permille(item[1]), item[0])))


def held_permille(holdings: Iterable[OpenLease]) -> int:
    """Return the sum of leases in thousandths of a GPU; exact, unlike a sum of fractions."""
    return sum(holding.lease.permille for holding in holdings)


@dataclass(frozen=True, slots=True)
class Disk:
    """The file system of the pool's state, in bytes."""

    size: int
    free: int
    database: int


def look_at_disk(state_dir: str) -> Disk | None:
    """Return the sizes of the file system and the database; None if they cannot be read."""
    try:
        found = os.statvfs(state_dir)
        files = [Path(state_dir) / name for name in DATABASE_FILES]
        database = sum(path.stat().st_size for path in files if path.exists())
    except (OSError, ValueError):
        return None
    return Disk(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize, database)
