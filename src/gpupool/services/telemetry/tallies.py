"""Looks added up to rows of minutes, and rows put together. No clock, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from gpupool.domain.ids import WorkloadId
from gpupool.domain.telemetry import GpuSample, GpuUse, NodeSample, NodeUse, ReplicaUse, Step, Uses

MOST_COVERED = 5  # seconds that one look may stand for, when those between it and the one before are missing
Attempt = tuple[WorkloadId, int, int]


@dataclass(frozen=True, slots=True)
class ReplicaLook:
    """What a look says of an attempt: bytes are those since the look before.

    ``seen``: it holds no GPU, or at least on one of them it can be seen whether it computes.
    """

    gpu_percent: float
    gpu_memory_mib: int
    cpu_percent: float
    memory_mib: int
    read_bytes: int
    written_bytes: int
    holds_gpus: bool
    seen: bool


def covered(number: int, before: int | None) -> int:
    """Seconds that a look stands for, by its number and that of the look before it."""
    missing = 1 if before is None else number - before
    return missing if 1 <= missing <= MOST_COVERED else 1


@dataclass(slots=True)
class GpuTally:
    """A ``GpuUse`` in the making; sums are over seconds."""

    node: str
    samples: int = 0
    busy_s: float = 0.0
    utilisation_max: float = 0.0
    memory: float = 0.0
    memory_max: int = 0
    energy_j: float | None = None
    temperature_max: float | None = None
    clock: float = 0.0
    clock_samples: int = 0

    def add(self, look: GpuSample, utilisation: float, seconds: int) -> None:
        """One look."""
        self.samples += seconds
        self.busy_s += utilisation * seconds / 100
        self.utilisation_max = max(self.utilisation_max, utilisation)
        self.memory += look.memory_used_mib * seconds
        self.memory_max = max(self.memory_max, look.memory_used_mib)
        if look.power_w is not None:
            self.energy_j = (self.energy_j or 0.0) + look.power_w * seconds
        if look.temperature_c is not None:
            self.temperature_max = max(self.temperature_max or look.temperature_c, look.temperature_c)
        if look.sm_clock_mhz is not None:
            self.clock += look.sm_clock_mhz * seconds
            self.clock_samples += seconds

    def row(self, at: int, uuid: str) -> GpuUse:
        """As it is now."""
        return GpuUse(
            step=Step.MINUTE,
            at=at,
            gpu_uuid=uuid,
            node=self.node,
            samples=self.samples,
            busy_s=self.busy_s,
            utilisation_max=self.utilisation_max,
            memory_mean_mib=self.memory / self.samples,
            memory_max_mib=self.memory_max,
            energy_j=self.energy_j,
            temperature_max_c=self.temperature_max,
            sm_clock_mean_mhz=self.clock / self.clock_samples if self.clock_samples else None,
        )


@dataclass(slots=True)
class ReplicaTally:
    """A ``ReplicaUse`` in the making; sums are over seconds."""

    samples: int = 0
    busy_s: float = 0.0
    idle_s: float = 0.0
    gpu_memory: float = 0.0
    gpu_memory_max: int = 0
    cpu_s: float = 0.0
    memory_max: int = 0
    read_bytes: int = 0
    written_bytes: int = 0

    def add(self, look: ReplicaLook, seconds: int) -> None:
        """One look."""
        if look.seen:
            self.samples += seconds
            self.busy_s += look.gpu_percent * seconds / 100
            self.idle_s += seconds if look.holds_gpus and not look.gpu_percent else 0
            self.gpu_memory += look.gpu_memory_mib * seconds
        self.gpu_memory_max = max(self.gpu_memory_max, look.gpu_memory_mib)
        self.cpu_s += look.cpu_percent * seconds / 100
        self.memory_max = max(self.memory_max, look.memory_mib)
        self.read_bytes += look.read_bytes
        self.written_bytes += look.written_bytes

    def row(self, at: int, attempt: Attempt) -> ReplicaUse:
        """As it is now."""
        return ReplicaUse(
            Step.MINUTE,
            at,
            *attempt,
            samples=self.samples,
            busy_s=self.busy_s,
            idle_s=self.idle_s,
            gpu_memory_mean_mib=self.gpu_memory / self.samples if self.samples else 0.0,
            gpu_memory_max_mib=self.gpu_memory_max,
            cpu_s=self.cpu_s,
            memory_max_mib=self.memory_max,
            read_bytes=self.read_bytes,
            written_bytes=self.written_bytes,
        )


@dataclass(slots=True)
class NodeTally:
    """A ``NodeUse`` in the making; sums are over seconds."""

    samples: int = 0
    cpu_s: float = 0.0
    memory: float = 0.0
    memory_max: int = 0

    def add(self, look: NodeSample, seconds: int) -> None:
        """One look."""
        self.samples += seconds
        self.cpu_s += look.cpu_percent * seconds / 100
        self.memory += look.memory_used_mib * seconds
        self.memory_max = max(self.memory_max, look.memory_used_mib)

    def row(self, at: int, node: str) -> NodeUse:
        """As it is now."""
        return NodeUse(Step.MINUTE, at, node, self.samples, self.cpu_s, self.memory / self.samples, self.memory_max)


@dataclass(slots=True)
class Minute:
    """All tallies of one minute, and the number of the last look at each node that is in them."""

    at: int
    gpus: dict[str, GpuTally] = field(default_factory=dict)
    replicas: dict[Attempt, ReplicaTally] = field(default_factory=dict)
    nodes: dict[str, NodeTally] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)

    def add(self, look: NodeSample, replicas: Mapping[Attempt, ReplicaLook], seconds: int) -> None:
        """One look at a node. GPUs whose use nobody knows are left out: a row of them would say that they were idle."""
        self.numbers[look.node] = look.number
        self.nodes.setdefault(look.node, NodeTally()).add(look, seconds)
        for gpu in look.gpus:
            if gpu.utilisation_percent is not None:
                tally = self.gpus.get(gpu.gpu_uuid)
                if tally is None:
                    tally = self.gpus[gpu.gpu_uuid] = GpuTally(look.node)
                tally.add(gpu, gpu.utilisation_percent, seconds)
        for attempt, replica in replicas.items():
            known = self.replicas.get(attempt)
            if known is None:
                known = self.replicas[attempt] = ReplicaTally()
            known.add(replica, seconds)

    def rows(self) -> Uses:
        """As it is now."""
        return Uses(
            tuple(tally.row(self.at, uuid) for uuid, tally in self.gpus.items()),
            tuple(tally.row(self.at, attempt) for attempt, tally in self.replicas.items()),
            tuple(tally.row(self.at, node) for node, tally in self.nodes.items()),
        )


# -- rows put together -----------------------------------------------------------------------------------------------


class _Row(Protocol):
    @property
    def at(self) -> int: ...

    @property
    def samples(self) -> int: ...


R = TypeVar("R", bound=_Row)


def all_of(minutes: Iterable[Minute]) -> Uses:
    """The rows of several minutes."""
    parts = [minute.rows() for minute in minutes]
    return Uses(
        tuple(row for part in parts for row in part.gpus),
        tuple(row for part in parts for row in part.replicas),
        tuple(row for part in parts for row in part.nodes),
    )


def by_step(rows: Iterable[R], step_s: int) -> dict[int, list[R]]:
    """Rows by the beginning of the step that theirs lies in, in order."""
    found: dict[int, list[R]] = {}
    for row in rows:
        found.setdefault(row.at // step_s * step_s, []).append(row)
    return dict(sorted(found.items()))
