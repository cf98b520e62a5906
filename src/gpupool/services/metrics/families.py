"""The rows of every metric from one snapshot. Each function goes over one kind of thing and gives pieces."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpupool.domain.gpu import Gpu, GpuHealth, Node, NodeState
from gpupool.domain.telemetry import GpuSample, ReplicaSample
from gpupool.domain.units import WHOLE_GPU
from gpupool.domain.workload import Lease
from gpupool.services.metrics import catalogue as c
from gpupool.services.metrics.catalogue import Metric
from gpupool.services.metrics.counts import Histogram
from gpupool.services.metrics.snapshot import Held, Snapshot, by_workload

MIB = 1 << 20
MEGAHERTZ = 1e6
MOST_WORKLOADS = 500  # with series of their own: those that hold most; the others are summed
MOST_USERS = 1_000
MOST_PROJECTS = 1_000
OTHERS = "_others"  # no name can begin with an underscore
_HEALTH = {GpuHealth.OK: 0.0, GpuHealth.DEGRADED: 1.0, GpuHealth.FAILED: 2.0}

Row = tuple[tuple[str, ...], float]


@dataclass(frozen=True, slots=True)
class Family:
    """The rows of one metric: the values of its labels, in order, and a number (or, of some metrics, a histogram)."""

    metric: Metric
    rows: Sequence[Row] = ()
    histograms: Sequence[tuple[tuple[str, ...], Histogram]] = ()


def node_rows(snapshot: Snapshot) -> Iterator[Family]:
    """Everything by node."""
    cpus: dict[str, float] = defaultdict(float)
    memory: dict[str, int] = defaultdict(int)
    for holding in snapshot.holdings:
        cpus[holding.lease.node] += holding.lease.cpus
        memory[holding.lease.node] += holding.lease.memory_mib
    looks = snapshot.samples

    def of(metric: Metric, value: Callable[[Node], float | None]) -> Family:
        return Family(metric, _known(((node.name,), value(node)) for node in snapshot.nodes))

    yield of(c.NODE_UP, lambda n: float(n.state is not NodeState.DOWN))
    yield of(c.NODE_CORDONED, lambda n: float(bool(n.cordon_reason)))
    yield of(c.NODE_CPUS, lambda n: n.report.cpus)
    yield of(c.NODE_CPUS_HELD, lambda n: cpus[n.name])
    yield of(c.NODE_CPUS_USED, lambda n: looks[n.name].cpu_percent / 100 if n.name in looks else None)
    yield of(c.NODE_MEMORY, lambda n: n.report.memory_mib * MIB)
    yield of(c.NODE_MEMORY_HELD, lambda n: memory[n.name] * MIB)
    yield of(c.NODE_MEMORY_USED, lambda n: looks[n.name].memory_used_mib * MIB if n.name in looks else None)


@dataclass(slots=True)
class _Taken:
    permille: int = 0
    memory_mib: int = 0
    holders: int = 0


@dataclass(frozen=True, slots=True)
class _Card:
    labels: tuple[str, str]
    gpu: Gpu
    taken: _Taken
    sample: GpuSample | None

    @property
    def seen(self) -> GpuSample | Gpu:
        """Whoever knows what it does now: its telemetry, else the last report."""
        return self.sample or self.gpu


def gpu_rows(snapshot: Snapshot) -> Iterator[Family]:
    """Everything by GPU."""
    taken = _taken(holding.lease for holding in snapshot.holdings)
    seen = {sample.gpu_uuid: sample for look in snapshot.samples.values() for sample in look.gpus}
    cards = [
        _Card((node.name, str(gpu.index)), gpu, taken.get(gpu.uuid, _Taken()), seen.get(gpu.uuid))
        for node in snapshot.nodes
        for gpu in node.report.gpus
    ]
    yield Family(c.GPU_INFO, [((*card.labels, card.gpu.uuid, card.gpu.model), 1.0) for card in cards])
    for metric, value in _OF_CARD.items():
        yield Family(metric, _known((card.labels, value(card)) for card in cards))
    for metric, told in _OF_LOOK.items():
        yield Family(metric, _known((card.labels, told(card.sample)) for card in cards if card.sample is not None))


def _known(rows: Iterable[tuple[tuple[str, ...], float | None]]) -> list[Row]:
    return [(labels, number) for labels, number in rows if number is not None]


def _taken(leases: Iterable[Lease]) -> dict[str, _Taken]:
    taken: dict[str, _Taken] = defaultdict(_Taken)
    for lease in leases:
        for share in lease.shares:
            part = taken[share.gpu_uuid]
            part.permille += share.permille
            part.memory_mib += share.memory_mib
            part.holders += 1
    return taken


_OF_CARD: dict[Metric, Callable[[_Card], float | None]] = {
    c.GPU_AVAILABLE: lambda card: float(card.gpu.available),
    c.GPU_HEALTH: lambda card: _HEALTH[card.gpu.health],
    c.GPU_FOREIGN: lambda card: len(card.gpu.foreign),
    c.GPU_HELD: lambda card: card.taken.permille / WHOLE_GPU,
    c.GPU_HOLDERS: lambda card: card.taken.holders,
    c.GPU_MEMORY: lambda card: card.gpu.memory_mib * MIB,
    c.GPU_MEMORY_HELD: lambda card: card.taken.memory_mib * MIB,
    c.GPU_BUSY: lambda card: _scaled(card.seen.utilisation_percent, 0.01),
    c.GPU_MEMORY_USED: lambda card: card.seen.memory_used_mib * MIB,
}


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else round(value * scale, 9)


_OF_LOOK: dict[Metric, Callable[[GpuSample], float | None]] = {
    c.GPU_PROCESSES: lambda look: look.processes,
    c.GPU_POWER: lambda look: look.power_w,
    c.GPU_TEMPERATURE: lambda look: look.temperature_c,
    c.GPU_SM_CLOCK: lambda look: _scaled(look.sm_clock_mhz, MEGAHERTZ),
    c.GPU_MEMORY_CLOCK: lambda look: _scaled(look.memory_clock_mhz, MEGAHERTZ),
}


def workload_rows(snapshot: Snapshot) -> Iterator[Family]:
    """Everything by workload that holds GPUs: those that hold most by themselves, the rest as one."""
    found = list(by_workload(snapshot.holdings).values())
    own = [(_names(holdings), holdings) for holdings in found[:MOST_WORKLOADS]]
    rest = [holding for holdings in found[MOST_WORKLOADS:] for holding in holdings]
    groups = own + ([((OTHERS, "", "", ""), rest)] if rest else [])
    yield Family(c.WORKLOAD_HELD, [(names, sum(h.gpus for h in group)) for names, group in groups])
    yield Family(c.WORKLOAD_REPLICAS, [(names, float(len(group))) for names, group in groups])
    idle = [(names, [h.idle_s for h in group if h.idle_s is not None]) for names, group in groups]
    yield Family(c.WORKLOAD_IDLE, [(names, min(seconds)) for names, seconds in idle if seconds])
    busy = [(names, [h.busy_percent for h in group if h.busy_percent is not None]) for names, group in groups]
    yield Family(c.WORKLOAD_BUSY, [(names, sum(percents) / 100) for names, percents in busy if percents])
    seen = [(names, [look for h in group for look in h.looks]) for names, group in groups]
    for metric, value in _OF_PROGRAM.items():
        yield Family(metric, [(names, sum(map(value, looks))) for names, looks in seen if looks])


_OF_PROGRAM: dict[Metric, Callable[[ReplicaSample], float]] = {
    c.WORKLOAD_GPU_MEMORY: lambda look: look.gpu_memory_mib * MIB,
    c.WORKLOAD_MEMORY: lambda look: look.memory_mib * MIB,
    c.WORKLOAD_CPUS: lambda look: look.cpu_percent / 100,
}


def _names(holdings: Sequence[Held]) -> tuple[str, str, str, str]:
    lease, workload = holdings[0].lease, holdings[0].workload
    return lease.workload, workload.name if workload is not None else "", lease.project, lease.user


class Bounded:
    """Names that have series of their own: the first so many; all later ones are ``_others``, and stay there."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._own: set[str] = set()

    def name(self, name: str) -> str:
        """The name itself, or that of the rest."""
        if name not in self._own and len(self._own) < self._most:
            self._own.add(name)
        return name if name in self._own else OTHERS

    def summed(self, values: Mapping[str, float]) -> list[Row]:
        """Rows by name, the rest as one."""
        rows: dict[str, float] = defaultdict(float)
        for name in sorted(values):
            rows[self.name(name)] += values[name]
        return [((name,), value) for name, value in rows.items()]
