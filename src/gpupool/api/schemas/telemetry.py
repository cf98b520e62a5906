"""What was measured, now and in the past."""

from __future__ import annotations

from typing import Literal

from gpupool.api.schemas.base import View

StepName = Literal["minute", "hour"]


class GpuLookView(View):
    """One look at one GPU; null where the card or its driver does not tell."""

    gpu_uuid: str
    utilisation_percent: float | None
    memory_used_mib: int
    processes: int
    power_w: float | None
    temperature_c: float | None
    sm_clock_mhz: int | None
    memory_clock_mhz: int | None


class ReplicaLookView(View):
    """One look at a program that runs. Percentages are of one GPU or one core; bytes since the program began.

    ``gpu_percent`` is null where nobody can tell. ``shared_percent`` is the time that the arbiter of slices gave it.
    """

    key: str
    gpu_percent: float | None
    shared_percent: float | None
    gpu_memory_mib: int
    cpu_percent: float
    memory_mib: int
    read_bytes: int
    written_bytes: int
    processes: int


class NodeLookView(View):
    """One look at a machine, its GPUs and the programs on it. ``cpu_percent`` is 100 for one core."""

    node: str
    at: float
    cpu_percent: float
    memory_used_mib: int
    gpus: list[GpuLookView]
    replicas: list[ReplicaLookView]


class TelemetryView(View):
    """The latest look at each machine; one that has been silent for ten seconds is not among them."""

    nodes: list[NodeLookView]


class SeriesView(View):
    """Columns over time: each value is of the ``step_s`` seconds from its time on, null where unknown.

    Steps in which nothing was measured are left out, but for one between two others. With ``step_s`` 1 these are the
    looks themselves.
    """

    step_s: int
    times: list[float]
    values: dict[str, list[float | None]]
