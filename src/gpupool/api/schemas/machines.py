"""The pool, its machines and their GPUs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gpupool.api.schemas.base import View
from gpupool.domain.gpu import ComputePolicy, GpuHealth, NodeState, Sharing
from gpupool.domain.heads import HeadStanding


class HealthView(View):
    """Whether the control plane answers; ``term`` is the number of its lead, where others may lead too."""

    status: Literal["ok"] = "ok"
    version: str
    pool_id: str
    pid: int
    term: int | None = None


class PoolHeadView(View):
    """A machine that may lead the pool, and where its API is."""

    name: str
    standing: HeadStanding
    url: str


class HeadAddressView(PoolHeadView):
    """The same with its certificate (PEM): the only one that a client accepts there."""

    certificate: str


class HeadAddressList(View):
    """Where the pool may be reached; empty where only one machine can lead it."""

    heads: list[HeadAddressView]


class PoolView(View):
    """The pool as a whole; ``dashboard`` is its address for browsers of its machine.

    ``heads`` are the machines that may lead a cluster; none where only this one can.
    """

    version: str
    pool_id: str
    kind: Literal["user", "system"]
    started_at: float
    state_dir: str
    emulated: bool
    warnings: list[str]
    nodes: int
    nodes_up: int
    gpus: int
    gpu_permille_total: int
    gpu_permille_allocated: int
    queued: int
    running: int
    listen: str | None
    time_zone: str = "UTC"
    dashboard: str | None = None
    heads: list[PoolHeadView] = Field(default_factory=list)


class ForeignView(View):
    """A process on a GPU that the pool did not start."""

    pid: int
    user: str
    name: str
    memory_mib: int


class HolderView(View):
    """Who holds a part of a GPU."""

    workload: str
    name: str
    index: int
    user: str
    project: str
    permille: int
    memory_mib: int
    since: float
    sharing: str = ""
    compute: ComputePolicy = ComputePolicy.GUARANTEE


class GpuView(View):
    """One GPU, what it does now, and who holds it. ``available`` is about the card itself, not about free shares.

    A MIG instance is a GPU of its own; it has a ``mig_profile`` and the UUID of its card, ``parent_uuid``. ``sharing``
    is the mode that a part of it gets by itself (empty: the node does not say), ``sharing_policy`` what the
    administrator chose for it.
    """

    uuid: str
    node: str
    index: int
    model: str
    memory_mib: int
    emulated: bool
    pci_bus_id: str
    health: GpuHealth
    health_note: str
    links: dict[int, str]
    mig_profile: str
    parent_uuid: str
    foreign: list[ForeignView]
    memory_used_mib: int
    utilisation_percent: int
    allocated_permille: int
    allocated_memory_mib: int
    available: bool
    holders: list[HolderView]
    sharing: str = ""
    sharing_policy: Sharing | None = None


class ResourcesView(View):
    """What a machine has, or may give away of it when nothing runs there."""

    gpus: int
    cpus: float
    memory_mib: int


class NodeView(View):
    """One machine. ``address`` is what other machines reach it by.

    ``capacity`` is what it has, ``allocatable`` what can be given away of it: GPUs that are well.

    ``sharing`` are the modes it can use for parts of GPUs, its default first; ``sharing_policy`` what the administrator
    chose for those of its GPUs that have no policy of their own. ``silent_s``: for how long it has not answered.
    ``head``: in a cluster of several heads, whether this one leads or waits.
    """

    name: str
    state: NodeState
    cordon_reason: str
    cpus: float
    memory_mib: int
    emulated: bool
    agent_version: str
    driver_version: str
    cuda_version: str
    labels: dict[str, str]
    warnings: list[str]
    gpus: list[GpuView]
    cpus_allocated: float
    memory_allocated_mib: int
    sharing: list[str] = Field(default_factory=list)
    sharing_policy: Sharing | None = None
    address: str = ""
    capacity: ResourcesView
    allocatable: ResourcesView
    silent_s: float | None = None
    head: HeadStanding | None = None


class NodeLost(View):
    """How much work was given up with a machine."""

    replicas: int


class NodeList(View):
    """All machines of the pool."""

    nodes: list[NodeView]


class GpuList(View):
    """All GPUs of the pool."""

    gpus: list[GpuView]
