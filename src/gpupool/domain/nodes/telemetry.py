"""Measured use of machines, GPUs and programs: one sample a second, and their rollups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from gpupool.domain.ids import WorkloadId


class RollupStep(IntEnum):
    """The length of a rollup row in seconds; rows begin at multiples of it since the epoch."""

    MINUTE = 60
    HOUR = 3600


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One sample of one GPU; None where the GPU or its driver gives no value.

    ``xids`` were reported since the start of the agent, ``ecc_corrected``, ``ecc_uncorrected``, ``pcie_replays`` and
    ``nvlink_errors`` are counted by the driver. ``slowdown`` are the reasons for reduced clocks, joined by commas.
    """

    gpu_uuid: str
    utilisation_percent: float | None
    memory_used_mib: int
    processes: int = 0
    power_w: float | None = None
    temperature_c: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    xids: int | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    slowdown: str | None = None
    pcie_replays: int | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    nvlink_errors: int | None = None


@dataclass(frozen=True, slots=True)
class ReplicaSample:
    """One sample of a running program, by its attempt key.

    ``gpu_percent`` is the compute time of its processes, summed over its GPUs (200: two GPUs all the time).
    ``shared_percent`` is the same, measured by the arbiter of slices; None without an arbiter. ``cpu_percent`` is 100
    for one core. Bytes count since the program began. ``gpus`` is the number of its GPUs whose use by the program can
    be measured; with 0 there is no busy or idle time. ``lease`` is the epoch of its lease, 0 for none.
    """

    key: str
    gpu_percent: float
    gpu_memory_mib: int
    cpu_percent: float
    memory_mib: int
    read_bytes: int
    written_bytes: int
    processes: int
    shared_percent: float | None = None
    gpus: int = 0
    lease: int = 0


@dataclass(frozen=True, slots=True)
class NodeSample:
    """One sample of a node, ``at`` seconds since the epoch.

    ``number`` counts the seconds of the agent's life, so a missing number is a second without a sample. It continues
    above the numbers of an earlier agent.
    """

    node: str
    number: int
    at: float
    cpu_percent: float
    memory_used_mib: int
    gpus: tuple[GpuSample, ...] = ()
    replicas: tuple[ReplicaSample, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuRollup:
    """The rollup of a GPU's samples in one step: ``busy_s`` seconds of computing, ``energy_j`` joules.

    ``samples``, here and below, is the number of sampled seconds in the step.
    """

    step: RollupStep
    at: int
    gpu_uuid: str
    node: str
    samples: int
    busy_s: float
    utilisation_max: float
    memory_mean_mib: float
    memory_max_mib: int
    energy_j: float | None
    temperature_max_c: float | None
    sm_clock_mean_mhz: float | None


@dataclass(frozen=True, slots=True)
class ReplicaRollup:
    """The rollup of one attempt's samples in one step.

    ``busy_s`` are seconds of computing summed over its GPUs; ``idle_s`` are seconds in which it held GPUs and computed
    on none of them. With GPUs, ``samples`` counts only seconds in which its use of them could be measured. Bytes are
    those of the step.
    """

    step: RollupStep
    at: int
    workload: WorkloadId
    index: int
    attempt: int
    samples: int
    busy_s: float
    idle_s: float
    gpu_memory_mean_mib: float
    gpu_memory_max_mib: int
    cpu_s: float
    memory_max_mib: int
    read_bytes: int
    written_bytes: int


@dataclass(frozen=True, slots=True)
class NodeRollup:
    """The rollup of a node's samples in one step."""

    step: RollupStep
    at: int
    node: str
    samples: int
    cpu_s: float
    memory_mean_mib: float
    memory_max_mib: int


@dataclass(frozen=True, slots=True)
class Rollups:
    """Rollup rows of one or several steps; rows of the same object and step add up."""

    gpus: tuple[GpuRollup, ...] = ()
    replicas: tuple[ReplicaRollup, ...] = ()
    nodes: tuple[NodeRollup, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.gpus or self.replicas or self.nodes)


@dataclass(frozen=True, slots=True)
class Series:
    """Columns over time: ``values[name][i]`` covers ``step_s`` seconds from ``times[i]``, None where unknown.

    Times rise. Steps without a sample are left out, except for one in each gap, so that a drawn line breaks there. With
    ``step_s`` 1 these are the samples themselves.
    """

    step_s: int
    times: tuple[float, ...] = ()
    values: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
