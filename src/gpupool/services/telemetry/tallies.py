"""Tallies: samples added up to rollup rows of minutes, and rows grouped by step. No clock, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from gpupool.domain.ids import WorkloadId
from gpupool.domain.nodes.telemetry import (
    GpuRollup,
    GpuSample,
    NodeRollup,
    NodeSample,
    ReplicaRollup,
    Rollups,
    RollupStep,
)

MAX_COVERED_S = 5  # seconds that one sample may stand for when earlier ones are missing
Attempt = tuple[WorkloadId, int, int]


@dataclass(frozen=True, slots=True)
class AttemptSample:
    """A sample of an attempt; bytes are those since the previous sample.

    ``seen``: it holds no GPU, or the use of at least one of its GPUs is measured.
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
    """Return the seconds that a sample stands for, from its number and the number of the previous sample."""
    missing = 1 if before is None else number - before
    return missing if 1 <= missing <= MAX_COVERED_S else 1


@dataclass(slots=True)
class GpuTally:
    """Running sums for a ``GpuRollup``, weighted with seconds."""

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

    def add(self, sample: GpuSample, utilisation: float, seconds: int) -> None:
        """Add a sample that stands for ``seconds``."""
        self.samples += seconds
        self.busy_s += utilisation * seconds / 100
        self.utilisation_max = max(self.utilisation_max, utilisation)
        self.memory += sample.memory_used_mib * seconds
        self.memory_max = max(self.memory_max, sample.memory_used_mib)
        if sample.power_w is not None:
            self.energy_j = (self.energy_j or 0.0) + sample.power_w * seconds
        if sample.temperature_c is not None:
            self.temperature_max = max(self.temperature_max or sample.temperature_c, sample.temperature_c)
        if sample.sm_clock_mhz is not None:
            self.clock += sample.sm_clock_mhz * seconds
            self.clock_samples += seconds

    def row(self, at: int, uuid: str) -> GpuRollup:
        """Return the rollup of the samples so far."""
        return GpuRollup(
            step=RollupStep.MINUTE,
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
    """Running sums for a ``ReplicaRollup``, weighted with seconds."""

    samples: int = 0
    busy_s: float = 0.0
    idle_s: float = 0.0
    gpu_memory: float = 0.0
    gpu_memory_max: int = 0
    cpu_s: float = 0.0
    memory_max: int = 0
    read_bytes: int = 0
    written_bytes: int = 0

    def add(self, sample: AttemptSample, seconds: int) -> None:
        """Add a sample that stands for ``seconds``."""
        if sample.seen:
            self.samples += seconds
            self.busy_s += sample.gpu_percent * seconds / 100
            self.idle_s += seconds if sample.holds_gpus and not sample.gpu_percent else 0
            self.gpu_memory += sample.gpu_memory_mib * seconds
        self.gpu_memory_max = max(self.gpu_memory_max, sample.gpu_memory_mib)
        self.cpu_s += sample.cpu_percent * seconds / 100
        self.memory_max = max(self.memory_max, sample.memory_mib)
        self.read_bytes += sample.read_bytes
        self.written_bytes += sample.written_bytes

    def row(self, at: int, attempt: Attempt) -> ReplicaRollup:
        """Return the rollup of the samples so far."""
        return ReplicaRollup(
            RollupStep.MINUTE,
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
    """Running sums for a ``NodeRollup``, weighted with seconds."""

    samples: int = 0
    cpu_s: float = 0.0
    memory: float = 0.0
    memory_max: int = 0

    def add(self, sample: NodeSample, seconds: int) -> None:
        """Add a sample that stands for ``seconds``."""
        self.samples += seconds
        self.cpu_s += sample.cpu_percent * seconds / 100
        self.memory += sample.memory_used_mib * seconds
        self.memory_max = max(self.memory_max, sample.memory_used_mib)

    def row(self, at: int, node: str) -> NodeRollup:
        """Return the rollup of the samples so far."""
        return NodeRollup(
            RollupStep.MINUTE, at, node, self.samples, self.cpu_s, self.memory / self.samples, self.memory_max
        )


@dataclass(slots=True)
class Minute:
    """All tallies of one minute; ``numbers`` is by node the number of the last sample in them."""

    at: int
    gpus: dict[str, GpuTally] = field(default_factory=dict)
    replicas: dict[Attempt, ReplicaTally] = field(default_factory=dict)
    nodes: dict[str, NodeTally] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)

    def add(self, sample: NodeSample, replicas: Mapping[Attempt, AttemptSample], seconds: int) -> None:
        """Add a sample of a node, without GPUs of unknown use, because their row would say that they were idle."""
        self.numbers[sample.node] = sample.number
        self.nodes.setdefault(sample.node, NodeTally()).add(sample, seconds)
        for gpu in sample.gpus:
            if gpu.utilisation_percent is not None:
                tally = self.gpus.get(gpu.gpu_uuid)
                if tally is None:
                    tally = self.gpus[gpu.gpu_uuid] = GpuTally(sample.node)
                tally.add(gpu, gpu.utilisation_percent, seconds)
        for attempt, replica in replicas.items():
            known = self.replicas.get(attempt)
            if known is None:
                known = self.replicas[attempt] = ReplicaTally()
            known.add(replica, seconds)

    def rows(self) -> Rollups:
        """Return the rollup of the samples so far."""
        return Rollups(
            tuple(tally.row(self.at, uuid) for uuid, tally in self.gpus.items()),
            tuple(tally.row(self.at, attempt) for attempt, tally in self.replicas.items()),
            tuple(tally.row(self.at, node) for node, tally in self.nodes.items()),
        )


# -- rows put together -----------------------------------------------------------------------------------------------


class _SampleRow(Protocol):
    @property
    def at(self) -> int: ...

    @property
    def samples(self) -> int: ...


R = TypeVar("R", bound=_SampleRow)


def all_of(minutes: Iterable[Minute]) -> Rollups:
    """Return the rows of several minutes."""
    parts = [minute.rows() for minute in minutes]
    return Rollups(
        tuple(row for part in parts for row in part.gpus),
        tuple(row for part in parts for row in part.replicas),
        tuple(row for part in parts for row in part.nodes),
    )


def by_step(rows: Iterable[R], step_s: int) -> dict[int, list[R]]:
    """Group rows by the start of the step that contains them, in order of time."""
    found: dict[int, list[R]] = {}
    for row in rows:
        found.setdefault(row.at // step_s * step_s, []).append(row)
    return dict(sorted(found.items()))
