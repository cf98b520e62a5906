"""The pool at one moment, as ``gpupool top`` shows it."""

from __future__ import annotations

from gpupool.api.schemas.base import View
from gpupool.domain.nodes.gpu import GpuHealth, NodeState
from gpupool.domain.work.workload import WorkloadKind, WorkloadState


class TopSliceView(View):
    """A slice that is held. ``busy_percent`` (of one GPU) and the memory are null where they are not measured."""

    workload: str
    name: str
    index: int
    user: str
    project: str
    permille: int
    memory_mib: int
    since: float
    idle_s: float | None
    busy_percent: float | None
    memory_used_mib: int | None


class TopGpuView(View):
    """One GPU with its slices, oldest first; null where the GPU reports no value."""

    index: int
    model: str
    memory_mib: int
    memory_used_mib: int
    utilisation_percent: float | None
    power_w: float | None
    temperature_c: float | None
    sm_clock_mhz: int | None
    health: GpuHealth
    health_note: str
    available: bool
    emulated: bool
    slices: list[TopSliceView]


class TopNodeView(View):
    """One node with its GPUs."""

    name: str
    state: NodeState
    cordon_reason: str
    cpus: float
    cpus_used: float | None
    memory_mib: int
    memory_used_mib: int | None
    gpus: list[TopGpuView]


class TopWorkloadView(View):
    """A workload that has not ended: its GPUs (``permille``), resource use, and running and waiting replicas."""

    id: str
    name: str
    kind: WorkloadKind
    state: WorkloadState
    user: str
    project: str
    created_at: float
    permille: int
    running: int
    waiting: int
    idle_s: float | None
    busy_percent: float | None
    memory_used_mib: int | None
    cpu_percent: float | None
    ram_used_mib: int | None


class TopUserView(View):
    """A user with held or queued GPUs."""

    user: str
    permille: int
    idle_permille: int
    busy_percent: float | None
    running: int
    waiting: int


class TopView(View):
    """All data at the time ``at``; at most a thousand workloads: first by held GPUs, then by waiting time."""

    at: float
    nodes: list[TopNodeView]
    workloads: list[TopWorkloadView]
    workloads_left_out: int
    users: list[TopUserView]
