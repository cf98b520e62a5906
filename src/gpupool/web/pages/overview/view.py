"""Values of the overview: nodes and GPUs with their allocation, free GPUs and warnings."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpupool.domain.nodes.gpu import Gpu, GpuHealth, Node, NodeState
from gpupool.domain.nodes.telemetry import GpuSample
from gpupool.domain.units import WHOLE_GPU
from gpupool.domain.work.workload import ReplicaState, WorkloadState
from gpupool.services.metrics.snapshot import MetricsSnapshot, OpenLease

MAX_WARNINGS = 12
MAX_LEGEND_ENTRIES = 40
LEASES_PER_BATCH = 250  # leases processed before other tasks run


class ColourBy(StrEnum):
    """The meaning of the colours of the map."""

    PROJECT = "project"
    USER = "user"


@dataclass(frozen=True, slots=True)
class MapSlice:
    """An allocated slice of a GPU. ``order`` sorts the slices of a GPU by owner.

    ``use`` is used by allocated GPU time, above 1 if it uses idle time of other slices; None: not measured.
    """

    order: tuple[str, int]
    permille: int
    owner: str
    name: str
    href: str
    about: str
    use: float | None
    idle: bool
    leaving: bool


@dataclass(frozen=True, slots=True)
class GpuRow:
    """One GPU: its slices from left to right. ``trouble`` says why it is unavailable."""

    index: int
    model: str
    href: str
    slices: tuple[MapSlice, ...]
    allocated: int
    utilisation: float | None
    trouble: str


@dataclass(frozen=True, slots=True)
class NodeCard:
    """One node."""

    name: str
    state: NodeState
    note: str
    models: str
    allocated: int
    gpus: tuple[GpuRow, ...]

    @property
    def total(self) -> int:
        """Return the thousandths of all its GPUs."""
        return len(self.gpus) * WHOLE_GPU


@dataclass(frozen=True, slots=True)
class Owner:
    """An entry of the legend: a project or user, its colour slot, and its allocation."""

    name: str
    slot: int
    permille: int
    idle: int


@dataclass(frozen=True, slots=True)
class GpuModelRow:
    """GPUs of a model: all, allocated and available now."""

    name: str
    gpus: int
    allocated: int
    whole_free: int
    largest_free: int
    unusable: int


@dataclass(frozen=True, slots=True)
class PageWarning:
    """A warning with a link to its object."""

    sentence: str
    href: str
    bad: bool


@dataclass(slots=True)
class PoolTotals:
    """The numbers at the top, thousandths for GPUs; ``used`` is the mean of what is measured, None without."""

    nodes: int = 0
    ready: int = 0
    gpus: int = 0
    allocated: int = 0
    idle: int = 0
    idle_holders: int = 0
    running: int = 0
    replicas: int = 0
    waiting: int = 0
    waiting_replicas: int = 0
    suspended: int = 0
    longest_wait_s: float | None = None
    used_percent: float | None = None
    models: int = 0

    @property
    def allocated_percent(self) -> float:
        """Return the share of all GPUs that is allocated."""
        return 100 * self.allocated / (self.gpus * WHOLE_GPU) if self.gpus else 0.0


@dataclass(frozen=True, slots=True)
class Overview:
    """Everything on the page. ``owners`` have allocations; the largest come first."""

    totals: PoolTotals
    nodes: tuple[NodeCard, ...]
    owners: tuple[Owner, ...]
    models: tuple[GpuModelRow, ...]
    warnings: tuple[PageWarning, ...]
    more_warnings: int
    by: ColourBy
    quiet: bool
    slots: Mapping[str, int] = field(default_factory=dict)


async def overview(
    snapshot: MetricsSnapshot, by: ColourBy, names: Iterable[str], head_warnings: Mapping[str, str]
) -> Overview:
    """Return the page's values from a snapshot; ``names`` are all projects or users, so that colours are stable.

    ``head_warnings`` give the reason why a head cannot take over, by name of the head. Other tasks run in between,
    because a large pool takes some milliseconds.
    """
    measured = {gpu.gpu_uuid: gpu for look in snapshot.samples.values() for gpu in look.gpus}
    held: dict[str, list[MapSlice]] = defaultdict(list)
    for begin in range(0, len(snapshot.holdings), LEASES_PER_BATCH):
        _put_slices(held, snapshot.holdings[begin : begin + LEASES_PER_BATCH], by)
        await asyncio.sleep(0)
    nodes = tuple(_node(node, held, measured) for node in snapshot.nodes)
    await asyncio.sleep(0)
    warnings = [warned for node, card in zip(snapshot.nodes, nodes, strict=True) for warned in _warnings(node, card)]
    warnings.extend(PageWarning(said, f"/nodes/{name}", bad=True) for name, said in head_warnings.items())
    warnings.sort(key=lambda warned: not warned.bad)
    slots = {name: slot for slot, name in enumerate(sorted({*names, *(_owner(h, by) for h in snapshot.holdings)}))}
    return Overview(
        totals=_totals(snapshot, nodes, measured),
        nodes=nodes,
        owners=_owners(nodes, slots),
        models=_models(snapshot.nodes, nodes),
        warnings=tuple(warnings[:MAX_WARNINGS]),
        more_warnings=max(0, len(warnings) - MAX_WARNINGS),
        by=by,
        quiet=not snapshot.workloads and not snapshot.holdings,
        slots=slots,
    )


def _owner(holding: OpenLease, by: ColourBy) -> str:
    return holding.lease.project if by is ColourBy.PROJECT else holding.lease.user


# The map


def _put_slices(held: dict[str, list[MapSlice]], holdings: Iterable[OpenLease], by: ColourBy) -> None:
    """Add the slices of leases to each GPU, by UUID."""
    for holding in holdings:
        piece: MapSlice | None = None
        for share in holding.lease.shares:
            if piece is None or piece.permille != share.permille:
                piece = _slice(holding, share.permille, by)
            held[share.gpu_uuid].append(piece)


def _node(node: Node, held: Mapping[str, list[MapSlice]], measured: Mapping[str, GpuSample]) -> NodeCard:
    gpus = tuple(_gpu(node, gpu, held.get(gpu.uuid, []), measured) for gpu in node.report.gpus)
    counted = Counter(gpu.model for gpu in node.report.gpus)
    models = ", ".join(f"{count} x {model}" for model, count in counted.items())
    if node.report.emulated:
        models += ", emulated"
    return NodeCard(node.name, node.state, node.cordon_reason, models, sum(gpu.allocated for gpu in gpus), gpus)


def _gpu(node: Node, gpu: Gpu, held: list[MapSlice], measured: Mapping[str, GpuSample]) -> GpuRow:
    sample = measured.get(gpu.uuid)
    return GpuRow(
        gpu.index,
        gpu.model,
        f"/nodes/{node.name}/gpus/{gpu.index}",
        tuple(sorted(held, key=_in_order)) if len(held) > 1 else tuple(held),
        sum(piece.permille for piece in held),
        sample.utilisation_percent if sample is not None else None,
        _trouble(node, gpu),
    )


def _in_order(piece: MapSlice) -> tuple[str, int]:
    return piece.order


def _trouble(node: Node, gpu: Gpu) -> str:
    if reason := node.cordon_of(gpu):
        return f"cordoned: {reason}"
    if gpu.health is GpuHealth.FAILED:
        return gpu.health_note or "failed"
    if gpu.foreign:
        process = gpu.foreign[0]
        return f"used outside the pool: {process.name} of {process.user}"
    return ""


def _slice(holding: OpenLease, permille: int, by: ColourBy) -> MapSlice:
    lease, workload, replica = holding.lease, holding.workload, holding.replica
    name = workload.name if workload is not None else lease.workload
    if workload is not None and workload.completions > 1:
        name = f"{name}/{lease.index}"
    owner = _owner(holding, by)
    return MapSlice(
        (owner, lease.epoch),
        permille,
        owner,
        name,
        f"/workloads/{lease.workload}",
        f"{name} · {lease.user} · {lease.project}",
        _use(holding),
        holding.idle,
        replica is None or replica.state is ReplicaState.STOPPING,
    )


def _use(holding: OpenLease) -> float | None:
    """Return the used share of the allocated GPU time, over all GPUs of the lease."""
    busy = holding.busy_percent
    return None if busy is None or not holding.gpus else busy / 100 / holding.gpus


# The numbers


def _totals(snapshot: MetricsSnapshot, nodes: tuple[NodeCard, ...], measured: Mapping[str, GpuSample]) -> PoolTotals:
    totals = PoolTotals(
        nodes=len(nodes),
        ready=sum(card.state is NodeState.UP for card in nodes),
        gpus=sum(len(card.gpus) for card in nodes),
        allocated=sum(card.allocated for card in nodes),
        models=len({gpu.model for card in nodes for gpu in card.gpus}),
        replicas=len(snapshot.holdings),
    )
    for holding in snapshot.holdings:
        if holding.idle:
            totals.idle += holding.lease.permille
            totals.idle_holders += 1
    _count_work(snapshot, totals)
    told = (sample.utilisation_percent for sample in measured.values())
    use = [percent for percent in told if percent is not None]
    totals.used_percent = sum(use) / len(use) if use else None
    return totals


def _count_work(snapshot: MetricsSnapshot, totals: PoolTotals) -> None:
    oldest = snapshot.now
    for workload, pending in snapshot.workloads:
        if workload.state is WorkloadState.RUNNING:
            totals.running += 1
        elif workload.state is WorkloadState.SUSPENDED:
            totals.suspended += 1
        elif workload.state is WorkloadState.QUEUED and pending:
            totals.waiting += 1
            totals.waiting_replicas += pending
            oldest = min(oldest, workload.created_at)
    totals.longest_wait_s = snapshot.now - oldest if totals.waiting else None


def _owners(nodes: Iterable[NodeCard], slots: Mapping[str, int]) -> tuple[Owner, ...]:
    permille: Counter[str] = Counter()
    idle: Counter[str] = Counter()
    for piece in (piece for card in nodes for gpu in card.gpus for piece in gpu.slices):
        permille[piece.owner] += piece.permille
        idle[piece.owner] += piece.permille if piece.idle else 0
    ordered = sorted(permille.items(), key=lambda item: (-item[1], item[0]))
    return tuple(Owner(name, slots[name], amount, idle[name]) for name, amount in ordered)


def _models(nodes: Iterable[Node], cards: Iterable[NodeCard]) -> tuple[GpuModelRow, ...]:
    rows: dict[str, list[tuple[int, bool]]] = defaultdict(list)
    for node, card in zip(nodes, cards, strict=True):
        for gpu, row in zip(node.report.gpus, card.gpus, strict=True):
            rows[gpu.model].append((row.allocated, node.state is NodeState.UP and node.accepts(gpu)))
    return tuple(_model(name, gpus) for name, gpus in sorted(rows.items()))


def _model(name: str, gpus: list[tuple[int, bool]]) -> GpuModelRow:
    free = [WHOLE_GPU - allocated for allocated, usable in gpus if usable]
    return GpuModelRow(
        name,
        len(gpus),
        sum(allocated for allocated, _ in gpus),
        sum(part == WHOLE_GPU for part in free),
        max(free, default=0),
        len(gpus) - len(free),
    )


# Warnings


def _warnings(node: Node, card: NodeCard) -> Iterable[PageWarning]:
    href = f"/nodes/{node.name}"
    if node.state is NodeState.DOWN:
        yield PageWarning(f"{node.name} is down.", href, bad=True)
    elif node.state is NodeState.CORDONED:
        because = f": {node.cordon_reason}" if node.cordon_reason not in {"", "cordoned"} else ""
        yield PageWarning(f"{node.name} is cordoned{because}.", href, bad=False)
    for gpu, row in zip(node.report.gpus, card.gpus, strict=True):
        where = f"{node.name}, GPU {gpu.index}"
        if row.trouble:
            yield PageWarning(f"{where}: {row.trouble}.", row.href, bad=True)
        elif gpu.health is GpuHealth.DEGRADED:
            yield PageWarning(f"{where}: {gpu.health_note or 'degraded'}.", row.href, bad=False)
    for sentence in node.report.warnings:
        yield PageWarning(f"{node.name}: {sentence}", href, bad=False)
