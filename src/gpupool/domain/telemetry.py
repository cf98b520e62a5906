"""What machines, GPUs and programs were measured to use: looks once a second, and what they add up to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from gpupool.domain.ids import WorkloadId


class Step(IntEnum):
    """How long a rolled-up row lasts, in seconds; rows begin at multiples of it since the epoch."""

    MINUTE = 60
    HOUR = 3600


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One look at one GPU; None where the card or its driver does not tell."""

    gpu_uuid: str
    utilisation_percent: float | None
    memory_used_mib: int
    processes: int = 0
    power_w: float | None = None
    temperature_c: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None


@dataclass(frozen=True, slots=True)
class ReplicaSample:
    """One look at a program that runs, by its attempt key.

    ``gpu_percent`` is the time that its processes computed on its GPUs, summed over them (200: two GPUs all the time);
    ``shared_percent`` is that measured by the arbiter of slices, None where none measures. ``cpu_percent`` is 100 for
    one core. Bytes are since the program began. ``gpus`` is how many GPUs it holds of which it can be seen whether it
    computes on them: with none, nothing is said of busy or idle time. ``lease`` is the epoch of the lease that they
    come from, 0 for none.
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
    """One look at a node, ``at`` seconds since the epoch.

    ``number`` counts the seconds of the agent's life: a number that is left out is a second in which nobody looked. It
    goes on above those of an earlier agent.
    """

    node: str
    number: int
    at: float
    cpu_percent: float
    memory_used_mib: int
    gpus: tuple[GpuSample, ...] = ()
    replicas: tuple[ReplicaSample, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuUse:
    """What the looks at a GPU came to in one step: ``busy_s`` seconds of computing, ``energy_j`` joules.

    ``samples``, here and below, is how many seconds of the step were looked at.
    """

    step: Step
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
class ReplicaUse:
    """What the looks at one attempt of a replica came to in one step.

    ``busy_s`` are seconds of computing summed over its GPUs; ``idle_s`` seconds in which it held GPUs and computed on
    none of them. Of one that holds GPUs ``samples`` are the seconds in which it could be seen what it did on them.
    Bytes are those of the step.
    """

    step: Step
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
class NodeUse:
    """What the looks at a node came to in one step."""

    step: Step
    at: int
    node: str
    samples: int
    cpu_s: float
    memory_mean_mib: float
    memory_max_mib: int


@dataclass(frozen=True, slots=True)
class Uses:
    """Rows of one or several steps; those of the same thing and step add up."""

    gpus: tuple[GpuUse, ...] = ()
    replicas: tuple[ReplicaUse, ...] = ()
    nodes: tuple[NodeUse, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.gpus or self.replicas or self.nodes)


@dataclass(frozen=True, slots=True)
class Series:
    """Columns over time: ``values[name][i]`` is of the ``step_s`` seconds from ``times[i]`` on, None where unknown.

    Times rise; steps in which nothing was measured are left out, but for one between two others, so that a line drawn
    through the values breaks there. With ``step_s`` 1 these are the looks themselves.
    """

    step_s: int
    times: tuple[float, ...] = ()
    values: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
