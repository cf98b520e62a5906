"""The pool, its nodes, their GPUs and container images."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gpupool.api.schemas.base import Body, PageView, View
from gpupool.domain.nodes.gpu import GpuHealth, NodeState
from gpupool.domain.nodes.heads import HeadStatus
from gpupool.domain.nodes.sharing import ComputePolicy, Sharing


class HealthView(View):
    """Health of the control plane; ``term`` is the leader's term if the pool has several heads."""

    status: Literal["ok"] = "ok"
    version: str
    pool_id: str
    pid: int
    term: int | None = None


class PoolHeadView(View):
    """A head, and the address of its API.

    ``ready``: it leads, or could take over; ``faults`` are the reasons if it could not.
    """

    name: str
    standing: HeadStatus
    url: str
    ready: bool = True
    faults: list[str] = Field(default_factory=list)


class HeadAddressView(PoolHeadView):
    """A head with its certificate (PEM), the only one that a client accepts there."""

    certificate: str


class HeadAddressList(View):
    """Addresses of the heads; empty if only one node can lead."""

    heads: list[HeadAddressView]


class PoolView(View):
    """The pool; ``dashboard`` is its address for browsers on the node of the control plane.

    ``address`` is the one for other machines, as given by ``--address``.

    ``heads`` is empty if only one node can lead. ``refused`` are the sentences of ``warnings`` about clients that
    exceeded a limit in the last minutes.
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
    address: str | None = None
    time_zone: str = "UTC"
    dashboard: str | None = None
    heads: list[PoolHeadView] = Field(default_factory=list)
    refused: list[str] = Field(default_factory=list)


class ForeignView(View):
    """A process on a GPU that the pool did not start."""

    pid: int
    user: str
    name: str
    memory_mib: int


class HolderView(View):
    """A holder of a part of a GPU."""

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


class GpuCheckView(View):
    """The latest result of ``gpupool verify`` for a GPU: ``outcome`` is ``ok``, ``suspect`` or ``fail``."""

    at: float
    outcome: str
    level: int
    note: str
    workload: str


class GpuView(View):
    """One GPU, its measurements and its holders. ``available``: workloads may start there if enough of it is free.

    A MIG instance is a GPU with a ``mig_profile`` and the UUID of its card, ``parent_uuid``; ``on_demand`` if the pool
    created it. ``sharing`` is the default mode for parts of it (empty: not reported), ``sharing_policy`` the mode that
    the administrator chose. ``check`` is the latest result of ``gpupool verify``.
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
    cordon_reason: str = ""
    check: GpuCheckView | None = None
    on_demand: bool = False


class ResourcesView(View):
    """Resources of a node, or the part that workloads can use while nothing runs."""

    gpus: int
    cpus: float
    memory_mib: int


class NodeView(View):
    """One node. ``address`` is the one that other nodes use.

    ``capacity`` is the total of the node, ``allocatable`` the part that workloads can get, such as healthy GPUs.

    ``sharing`` are the sharing modes of the node, the default first; ``sharing_policy`` is the administrator's choice
    for GPUs without a policy of their own. ``silent_s``: seconds without an answer. ``head``: in a cluster of several
    heads, whether this one leads or waits.
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
    head: HeadStatus | None = None


class NodeLost(View):
    """Number of replicas that were lost with a node."""

    replicas: int


class NodeList(PageView):
    """All nodes of the pool."""

    nodes: list[NodeView]


class GpuList(PageView):
    """All GPUs of the pool."""

    gpus: list[GpuView]


Upload = Annotated[str, Field(pattern=r"^[a-z0-9]{8,64}$", description="A name of your choice for the upload.")]
ImageName = Annotated[str, Field(max_length=512, description="An image's name.")]


class ImageView(View):
    """An image on a node."""

    node: str
    name: str
    id: str
    size_bytes: int
    created_at: str


class ImageList(PageView):
    """All images; ``unknown`` gives the reason for each node whose images are unknown."""

    images: list[ImageView]
    unknown: dict[str, str] = Field(default_factory=dict)


class PieceBody(Body):
    """A piece of an archive (base64), and its offset."""

    upload: Upload
    offset: Annotated[int, Field(ge=0, le=1 << 40)] = 0
    data: Annotated[str, Field(max_length=6 << 20)]


class PieceView(View):
    """Report the number of bytes that have arrived so far."""

    size: int


class ImageBody(Body):
    """An archive that was uploaded to the node, or the name of an image to pull."""

    upload: Upload | None = None
    name: ImageName = ""


class ImageJobView(View):
    """A job that may take long; ``names`` are the resulting images."""

    job: str
    done: bool = False
    names: list[str] = Field(default_factory=list)
