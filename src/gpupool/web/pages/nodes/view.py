"""Values of the node and GPU pages: state, replicas and allocations."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.gpu import Gpu, GpuHealth, GpuShare, Node, NodeState
from gpupool.domain.nodes.sharing import describe_guarantee
from gpupool.domain.nodes.telemetry import GpuSample, NodeSample
from gpupool.domain.units import WHOLE_GPU, format_holders, format_permille
from gpupool.domain.work.workload import holder_index
from gpupool.services.nodes.service import Occupant
from gpupool.services.pool import PoolServices
from gpupool.services.workloads.leases import LeaseUse
from gpupool.web.kit.filters import colour

WIDTH = 1000.0  # of the drawing


@dataclass(frozen=True, slots=True)
class GpuSlice:
    """An allocated slice of a GPU.

    ``x`` and ``width`` are its position in a drawing; ``colour`` is the colour class of its project, ``c0`` to ``c7``.
    """

    workload: str
    name: str
    index: int
    user: str
    project: str
    permille: int
    memory_mib: int
    since: float
    sharing: str
    compute: str
    colour: int
    x: float
    width: float

    @property
    def label(self) -> str:
        """Return ``train of ann: 0.50 GPU``."""
        return f"{self.name} of {self.user}: {format_permille(self.permille)} GPU"

    @property
    def promise(self) -> str:
        """Return the guarantee of its sharing mode."""
        return describe_guarantee(self.sharing, self.compute) if self.sharing else ""


@dataclass(frozen=True, slots=True)
class GpuLine:
    """One GPU with its latest sample (``look``) and its allocation."""

    gpu: Gpu
    node: str
    look: GpuSample | None
    slices: tuple[GpuSlice, ...]
    mode: str
    cordon_reason: str = ""

    @property
    def index(self) -> int:
        """Index on the node."""
        return self.gpu.index

    @property
    def url(self) -> str:
        """Return the address of its page."""
        return f"/nodes/{quote(self.node, safe='')}/gpus/{self.gpu.index}"

    @property
    def held(self) -> int:
        """Return the allocated thousandths."""
        return sum(part.permille for part in self.slices)

    @property
    def health(self) -> str:
        """Return the health; ``foreign`` if foreign processes use it, ``cordoned`` if it is healthy but cordoned."""
        if self.cordon_reason and self.gpu.health is GpuHealth.OK:
            return "cordoned"
        return "foreign" if self.gpu.foreign and self.gpu.health is GpuHealth.OK else str(self.gpu.health)

    @property
    def note(self) -> str | None:
        """Return the problems; None without any."""
        count = len(self.gpu.foreign)
        strangers = f"{count} foreign process{'es' if count > 1 else ''}: not allocated" if count else ""
        cordon = f"cordoned: {self.cordon_reason}" if self.cordon_reason else ""
        return "; ".join(part for part in (self.gpu.health_note, cordon, strangers) if part) or None

    @property
    def use(self) -> float | None:
        """Return the utilisation in percent; None if not measured."""
        return None if self.look is None else self.look.utilisation_percent

    @property
    def memory_used(self) -> float | None:
        """Return the used memory in bytes; None if not measured."""
        return None if self.look is None else self.look.memory_used_mib * 2.0**20

    @property
    def temperature(self) -> float | None:
        """Return the temperature in degrees Celsius; None if not measured."""
        return None if self.look is None else self.look.temperature_c

    @property
    def power(self) -> float | None:
        """Return the power in watts; None if not measured."""
        return None if self.look is None else self.look.power_w

    @property
    def holders(self) -> str | None:
        """Return the users and workloads that hold it."""
        return ", ".join(format_holders((part.user, part.name, part.permille) for part in self.slices)) or None


@dataclass(frozen=True, slots=True)
class NodeLine:
    """One node. ``heard_at`` is the time of the latest sample; None if there is none of the last ten seconds."""

    node: Node
    gpus: tuple[GpuLine, ...]
    heard_at: float | None
    cpu_percent: float | None
    memory_used_mib: int | None
    cpus_held: float
    memory_held_mib: int

    @property
    def name(self) -> str:
        """Name."""
        return self.node.name

    @property
    def url(self) -> str:
        """Return the address of its page."""
        return f"/nodes/{quote(self.node.name, safe='')}"

    @property
    def models(self) -> str:
        """Return ``2 x Tesla T4``."""
        counted = Counter(line.gpu.model for line in self.gpus)
        return ", ".join(f"{count} x {model}" for model, count in counted.items()) or "none"

    @property
    def held(self) -> int:
        """Return the allocated thousandths of its GPUs."""
        return sum(line.held for line in self.gpus)

    @property
    def free(self) -> int | None:
        """Free thousandths; None unless the node is up."""
        if self.node.state is not NodeState.UP:
            return None
        return sum(WHOLE_GPU - line.held for line in self.gpus if self.node.accepts(line.gpu))

    @property
    def labels(self) -> str | None:
        """Return the labels in one line."""
        return ", ".join(f"{key}={value}" for key, value in sorted(self.node.all_labels.items())) or None

    @property
    def notes(self) -> str | None:
        """Return the reason of the cordon, and warnings."""
        return "; ".join(part for part in (self.node.cordon_reason, *self.node.report.warnings) if part) or None


@dataclass(frozen=True, slots=True)
class NodeReplica:
    """A replica on a node. ``drained``: a drain would evict it."""

    workload: str
    name: str
    index: int
    kind: str
    state: str
    user: str
    project: str
    permille: int
    since: float | None
    drained: bool

    @property
    def fate(self) -> str:
        """Return the effect of a drain."""
        if self.state == "stopping":
            return "already stopping"
        return "evicted and queued again" if self.drained else "continues (protected)"


@dataclass(frozen=True, slots=True)
class Topology:
    """Matrix of the links between the GPUs of a node; ``X`` is the GPU itself."""

    indices: tuple[int, ...]
    rows: tuple[tuple[int, tuple[str, ...]], ...]


async def node_lines(services: PoolServices) -> list[NodeLine]:
    """Return all nodes by name."""
    held = await services.workloads.current_leases.held()
    by_node: dict[str, list[LeaseUse]] = defaultdict(list)
    for holding in held:
        by_node[holding.lease.node].append(holding)
    looks, slots = services.telemetry.latest(), await _slots(services)
    return [node_line(node, by_node[node.name], looks.get(node.name), slots) for node in await services.nodes.nodes()]


async def one_node(services: PoolServices, name: str) -> NodeLine:
    """Return one node; raise UNKNOWN_NODE."""
    node = await services.nodes.node(name)
    held = [holding for holding in await services.workloads.current_leases.held() if holding.lease.node == name]
    return node_line(node, held, services.telemetry.latest().get(name), await _slots(services))


async def _slots(services: PoolServices) -> dict[str, int]:
    """Return the colour slot of each project, the same as on the overview."""
    return {project.name: slot for slot, project in enumerate(await services.access.projects())}


def node_line(node: Node, held: Sequence[LeaseUse], look: NodeSample | None, slots: Mapping[str, int]) -> NodeLine:
    """Return a node with its allocations; ``slots`` are the colour slots of projects."""
    parts: dict[str, list[tuple[LeaseUse, GpuShare]]] = defaultdict(list)
    for holding in held:
        for share in holding.lease.shares:
            parts[share.gpu_uuid].append((holding, share))
    looks = {} if look is None else {sample.gpu_uuid: sample for sample in look.gpus}
    return NodeLine(
        node=node,
        gpus=tuple(
            GpuLine(
                gpu,
                node.name,
                looks.get(gpu.uuid),
                tuple(_slices(parts[gpu.uuid], slots)),
                _mode(node, gpu),
                node.cordon_of(gpu),
            )
            for gpu in node.report.gpus
        ),
        heard_at=None if look is None else look.at,
        cpu_percent=None if look is None else look.cpu_percent,
        memory_used_mib=None if look is None else look.memory_used_mib,
        cpus_held=sum(holding.lease.cpus for holding in held),
        memory_held_mib=sum(holding.lease.memory_mib for holding in held),
    )


def _mode(node: Node, gpu: Gpu) -> str:
    return str(node.policy_of(gpu.uuid) or next(iter(node.report.sharing), ""))


def _slices(held: Sequence[tuple[LeaseUse, GpuShare]], slots: Mapping[str, int]) -> Iterable[GpuSlice]:
    at = 0.0
    for holding, share in held:
        lease, width = holding.lease, share.permille / WHOLE_GPU * WIDTH
        yield GpuSlice(
            workload=lease.workload,
            name=lease.workload if holding.workload is None else holding.workload.name,
            index=holder_index(lease.index),
            user=lease.user,
            project=lease.project,
            permille=share.permille,
            memory_mib=share.memory_mib,
            since=lease.granted_at,
            sharing=lease.sharing,
            compute=str(lease.compute),
            colour=colour(slots.get(lease.project, 0)),
            x=round(at, 2),
            width=round(width, 2),
        )
        at += width


def find_gpu(line: NodeLine, index: int) -> GpuLine:
    """Return one GPU of a node; raise NOT_FOUND."""
    found = next((gpu for gpu in line.gpus if gpu.index == index), None)
    if found is None:
        known = ", ".join(str(gpu.index) for gpu in line.gpus[:16]) or "none"
        raise GpupoolError(ErrorCode.NOT_FOUND, f"{line.name} has no GPU {index}.", f"It has: {known}.")
    return found


def running(occupants: Iterable[Occupant]) -> list[NodeReplica]:
    """Return the replicas on a node and the effect of a drain on each."""
    return [
        NodeReplica(
            workload=one.workload.id,
            name=one.workload.name,
            index=one.replica.index,
            kind=str(one.workload.kind),
            state=str(one.replica.state),
            user=one.workload.user,
            project=one.workload.project,
            permille=0 if one.lease is None else one.lease.permille,
            since=one.replica.started_at,
            drained=one.drained,
        )
        for one in occupants
    ]


def topology(node: Node) -> Topology | None:
    """Return the matrix of GPU links, or None if the node reports none."""
    gpus = node.report.gpus
    if len(gpus) < 2 or not any(gpu.links for gpu in gpus):
        return None
    indices = tuple(gpu.index for gpu in gpus)
    rows = tuple(
        (gpu.index, tuple("X" if other == gpu.index else gpu.links.get(other, "?") for other in indices))
        for gpu in gpus
    )
    return Topology(indices, rows)


LINKS = {  # as `nvidia-smi topo -m` explains them
    "NV": "number of NVLinks",
    "PIX": "at most one PCIe bridge between them",
    "PXB": "several PCIe bridges, without the host bridge",
    "PHB": "through the PCIe host bridge",
    "NODE": "through the bridges of one NUMA node",
    "SYS": "through the link between NUMA nodes",
}


def link_meanings(found: Topology) -> list[tuple[str, str]]:
    """Return the link types of a matrix with their meaning."""
    seen = {link.rstrip("0123456789") for _, links in found.rows for link in links}
    return [(link, about) for link, about in LINKS.items() if link in seen]


def siblings(line: NodeLine, gpu: Gpu) -> list[GpuLine]:
    """Return all MIG instances of the same physical GPU, including this one."""
    if not gpu.parent_uuid:
        return []
    return [other for other in line.gpus if other.gpu.parent_uuid == gpu.parent_uuid]
