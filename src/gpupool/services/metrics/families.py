"""The rows of each metric, from one snapshot. Each function yields the metrics of one kind of object."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpupool.domain.nodes.gpu import Gpu, GpuHealth, Node, NodeState
from gpupool.domain.nodes.telemetry import GpuSample, ReplicaSample
from gpupool.domain.protocol.gateway_table import TokenUse
from gpupool.domain.units import WHOLE_GPU
from gpupool.domain.work.workload import GpuLease, WorkloadKind
from gpupool.services.backups.service import BackupHealth
from gpupool.services.cluster.heads import Heads
from gpupool.services.metrics import catalogue as c
from gpupool.services.metrics.catalogue import Metric
from gpupool.services.metrics.snapshot import MetricsSnapshot, OpenLease, by_workload, held_permille
from gpupool.services.refusals import RefusalReason
from gpupool.services.serving.service import ServiceStatus

MIB = 1 << 20
MEGAHERTZ = 1e6
MAX_WORKLOADS = 500  # largest workloads with their own series; the others are summed
MAX_USERS = 1_000
MAX_PROJECTS = 1_000
OTHERS = "_others"  # no name can begin with an underscore
_HEALTH = {GpuHealth.OK: 0.0, GpuHealth.DEGRADED: 1.0, GpuHealth.FAILED: 2.0}
CYCLE_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
WAIT_BOUNDS_S = (0.1, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 12 * 3600.0, 86400.0, 7 * 86400.0)

Row = tuple[tuple[str, ...], float]


class Histogram:
    """The number of values in each bucket, and the sum of all values; ``bounds`` are inclusive upper bounds."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.total = 0.0
        self._counts = [0] * (len(bounds) + 1)

    def add(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[float, int]]:
        """Return each bound, the last one infinite, with the number of values up to it."""
        below, found = 0, []
        for bound, count in zip((*self.bounds, float("inf")), self._counts, strict=True):
            below += count
            found.append((bound, below))
        return found


@dataclass(slots=True)
class Counts:
    """The counts of this control plane since it was started."""

    events: Counter[str] = field(default_factory=Counter)
    warnings: Counter[tuple[str, str]] = field(default_factory=Counter)
    cycles: Histogram = field(default_factory=lambda: Histogram(CYCLE_BOUNDS_S))
    waits: dict[str, Histogram] = field(
        default_factory=lambda: {kind.value: Histogram(WAIT_BOUNDS_S) for kind in WorkloadKind}
    )

    def waited(self, kind: str, seconds: float) -> None:
        """Count the wait of a replica that got its GPUs; ``kind`` is the kind of its workload."""
        self.waits[kind].add(max(0.0, seconds))


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """The rows of one metric: label values in order, and a number or, for some metrics, a histogram."""

    metric: Metric
    rows: Sequence[Row] = ()
    histograms: Sequence[tuple[tuple[str, ...], Histogram]] = ()


def node_rows(snapshot: MetricsSnapshot) -> Iterator[MetricFamily]:
    """Yield the metrics of nodes."""
    cpus: dict[str, float] = defaultdict(float)
    memory: dict[str, int] = defaultdict(int)
    for holding in snapshot.holdings:
        cpus[holding.lease.node] += holding.lease.cpus
        memory[holding.lease.node] += holding.lease.memory_mib
    looks = snapshot.samples

    def of(metric: Metric, value: Callable[[Node], float | None]) -> MetricFamily:
        return MetricFamily(metric, _known(((node.name,), value(node)) for node in snapshot.nodes))

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
    accepts: bool
    taken: _Taken
    sample: GpuSample | None

    @property
    def seen(self) -> GpuSample | Gpu:
        """Return its latest sample or, without one, the last report of its node."""
        return self.sample or self.gpu


def head_rows(heads: Heads) -> Iterator[MetricFamily]:
    """Yield for each head of a cluster 1 if it leads or could take over, else 0."""
    rows = [((head.name,), float(not heads.faults(head.name))) for head in heads.known if heads.standing(head.name)]
    if rows:
        yield MetricFamily(c.HEAD_READY, rows)


def backup_rows(health: BackupHealth | None) -> Iterator[MetricFamily]:
    """Yield the state of scheduled backups; nothing without a schedule."""
    if health is None:
        return
    if health.newest is not None:
        yield MetricFamily(c.BACKUP, [((), health.newest)])
    yield MetricFamily(c.BACKUP_EVERY, [((), health.every_s)])
    yield MetricFamily(c.BACKUP_FAILED, [((), float(health.failed))])


def refusal_rows(totals: Mapping[RefusalReason, int]) -> Iterator[MetricFamily]:
    """Yield how much was refused because of each limit."""
    yield MetricFamily(c.REFUSED, [((str(reason),), count) for reason, count in sorted(totals.items())])


def service_rows(views: Sequence[ServiceStatus]) -> Iterator[MetricFamily]:
    """Yield the replicas and requests of services; nothing without services."""
    if not views:
        return
    names = [(view.service.project, view.service.name) for view in views]
    loads = [view.status.load for view in views]
    states = [view.replica_counts() for view in views]
    replicas = [((*name, state), float(n)) for name, counts in zip(names, states, strict=True) for state, n in counts]
    yield MetricFamily(c.SERVICE_REPLICAS, replicas)
    for metric, values in (
        (c.SERVICE_DESIRED, [view.desired for view in views]),
        (c.SERVICE_IN_FLIGHT, [load.in_flight for load in loads]),
        (c.SERVICE_HELD, [load.held for load in loads]),
        (c.SERVICE_REQUESTS, [view.status.requests for view in views]),
        (c.SERVICE_ERRORS, [view.status.errors for view in views]),
        (c.SERVICE_REFUSED, [view.status.refusals for view in views]),
        (c.SERVICE_GPU_SECONDS, [view.status.gpu_s for view in views]),
    ):
        yield MetricFamily(metric, [(name, float(value)) for name, value in zip(names, values, strict=True)])
    yield from _service_users(views)
    times = [
        ((*name, quantile), value / 1000)
        for name, load in zip(names, loads, strict=True)
        if load.first_byte_ms is not None
        for quantile, value in zip(("0.5", "0.99"), load.first_byte_ms, strict=True)
    ]
    yield MetricFamily(c.SERVICE_FIRST_BYTE, times)


def _service_users(views: Sequence[ServiceStatus]) -> Iterator[MetricFamily]:
    users: dict[tuple[str, ...], TokenUse] = {}
    for view in views:
        for share in view.usage:
            key = view.service.project, view.service.name, share.user
            users[key] = users.get(key, TokenUse()).plus(share.use)
    rows = users.items()
    yield MetricFamily(c.SERVICE_USER_REQUESTS, [(key, float(use.requests)) for key, use in rows])
    yield MetricFamily(c.SERVICE_REQUEST_SECONDS, [(key, use.busy_s) for key, use in rows])
    yield MetricFamily(c.SERVICE_RECEIVED, [(key, float(use.received)) for key, use in rows])
    yield MetricFamily(c.SERVICE_SENT, [(key, float(use.sent)) for key, use in rows])


def gpu_rows(snapshot: MetricsSnapshot) -> Iterator[MetricFamily]:
    """Yield the metrics of GPUs."""
    taken = _taken(holding.lease for holding in snapshot.holdings)
    seen = {sample.gpu_uuid: sample for look in snapshot.samples.values() for sample in look.gpus}
    cards = [
        _Card((node.name, str(gpu.index)), gpu, node.accepts(gpu), taken.get(gpu.uuid, _Taken()), seen.get(gpu.uuid))
        for node in snapshot.nodes
        for gpu in node.report.gpus
    ]
    yield MetricFamily(c.GPU_INFO, [((*card.labels, card.gpu.uuid, card.gpu.model), 1.0) for card in cards])
    for metric, value in _OF_CARD.items():
        yield MetricFamily(metric, _known((card.labels, value(card)) for card in cards))
    for metric, told in _OF_LOOK.items():
        yield MetricFamily(
            metric, _known((card.labels, told(card.sample)) for card in cards if card.sample is not None)
        )


def health_rows(snapshot: MetricsSnapshot) -> Iterator[MetricFamily]:
    """Yield the error counters of GPUs; absent where the driver does not report them."""
    numbers = {gpu.uuid: (node.name, str(gpu.index)) for node in snapshot.nodes for gpu in node.report.gpus}
    samples = [
        (numbers[sample.gpu_uuid], sample)
        for look in snapshot.samples.values()
        for sample in look.gpus
        if sample.gpu_uuid in numbers
    ]
    for metric, value in _HEALTH_COUNTERS.items():
        yield MetricFamily(metric, _known((labels, value(sample)) for labels, sample in samples))
    kinds: tuple[tuple[str, Callable[[GpuSample], int | None]], ...] = (
        ("corrected", lambda sample: sample.ecc_corrected),
        ("uncorrected", lambda sample: sample.ecc_uncorrected),
    )
    errors = (((*labels, kind), value(sample)) for labels, sample in samples for kind, value in kinds)
    yield MetricFamily(c.GPU_ECC, _known(errors))
    known = [(labels, sample.slowdown.split(",")) for labels, sample in samples if sample.slowdown is not None]
    slow = [((*labels, name), float(name in now)) for labels, now in known for name in SLOWDOWN_REASONS]
    yield MetricFamily(c.GPU_SLOWDOWN, slow)


SLOWDOWN_REASONS = ("power", "hardware", "thermal")
_HEALTH_COUNTERS: dict[Metric, Callable[[GpuSample], float | None]] = {
    c.GPU_XIDS: lambda sample: sample.xids,
    c.GPU_PCIE_REPLAYS: lambda sample: sample.pcie_replays,
    c.GPU_PCIE_GENERATION: lambda sample: sample.pcie_generation,
    c.GPU_PCIE_WIDTH: lambda sample: sample.pcie_width,
    c.GPU_NVLINK_ERRORS: lambda sample: sample.nvlink_errors,
}


def holder_rows(snapshot: MetricsSnapshot) -> Iterator[MetricFamily]:
    """Yield which workload holds which GPU, of the largest workloads, and the facts of these."""
    infos: list[Row] = []
    parts: dict[tuple[str, ...], int] = defaultdict(int)
    for holdings in list(by_workload(snapshot.holdings).values())[:MAX_WORKLOADS]:
        names = _names(holdings)
        kind = holdings[0].workload.kind.value if holdings[0].workload is not None else ""
        infos += [((*names, kind, node), 1.0) for node in sorted({holding.lease.node for holding in holdings})]
        for holding in holdings:
            for share in holding.lease.shares:
                parts[share.gpu_uuid, holding.lease.node, str(share.gpu_index), *names] += share.permille
    yield MetricFamily(c.GPU_HOLDER, [(labels, permille / WHOLE_GPU) for labels, permille in parts.items()])
    yield MetricFamily(c.WORKLOAD_INFO, infos)


def _known(rows: Iterable[tuple[tuple[str, ...], float | None]]) -> list[Row]:
    return [(labels, number) for labels, number in rows if number is not None]


def _taken(leases: Iterable[GpuLease]) -> dict[str, _Taken]:
    taken: dict[str, _Taken] = defaultdict(_Taken)
    for lease in leases:
        for share in lease.shares:
            part = taken[share.gpu_uuid]
            part.permille += share.permille
            part.memory_mib += share.memory_mib
            part.holders += 1
    return taken


_OF_CARD: dict[Metric, Callable[[_Card], float | None]] = {
    c.GPU_AVAILABLE: lambda card: float(card.accepts),
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


def workload_rows(snapshot: MetricsSnapshot) -> Iterator[MetricFamily]:
    """Yield the metrics of workloads that hold GPUs: the largest ones separately, the rest as one sum."""
    found = list(by_workload(snapshot.holdings).values())
    own = [(_names(holdings), holdings) for holdings in found[:MAX_WORKLOADS]]
    rest = [holding for holdings in found[MAX_WORKLOADS:] for holding in holdings]
    groups = own + ([((OTHERS, "", "", ""), rest)] if rest else [])
    yield MetricFamily(c.WORKLOAD_HELD, [(names, held_permille(group) / WHOLE_GPU) for names, group in groups])
    yield MetricFamily(c.WORKLOAD_REPLICAS, [(names, float(len(group))) for names, group in groups])
    idle = [(names, [h.idle_s for h in group if h.idle_s is not None]) for names, group in groups]
    yield MetricFamily(c.WORKLOAD_IDLE, [(names, min(seconds)) for names, seconds in idle if seconds])
    busy = [(names, [h.busy_percent for h in group if h.busy_percent is not None]) for names, group in groups]
    yield MetricFamily(c.WORKLOAD_BUSY, [(names, sum(percents) / 100) for names, percents in busy if percents])
    seen = [(names, [look for h in group for look in h.looks]) for names, group in groups]
    for metric, value in _OF_PROGRAM.items():
        yield MetricFamily(metric, [(names, sum(map(value, looks))) for names, looks in seen if looks])


_OF_PROGRAM: dict[Metric, Callable[[ReplicaSample], float]] = {
    c.WORKLOAD_GPU_MEMORY: lambda look: look.gpu_memory_mib * MIB,
    c.WORKLOAD_MEMORY: lambda look: look.memory_mib * MIB,
    c.WORKLOAD_CPUS: lambda look: look.cpu_percent / 100,
}


def _names(holdings: Sequence[OpenLease]) -> tuple[str, str, str, str]:
    lease, workload = holdings[0].lease, holdings[0].workload
    return lease.workload, workload.name if workload is not None else "", lease.project, lease.user


class Bounded:
    """The first ``most`` names, which have their own series; later names always count as ``_others``."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._own: set[str] = set()

    def name(self, name: str) -> str:
        """Return the name of the series for this name: itself, or ``_others``."""
        if name not in self._own and len(self._own) < self._most:
            self._own.add(name)
        return name if name in self._own else OTHERS

    def summed(self, values: Mapping[str, float], divisor: int = 1) -> list[Row]:
        """Return rows by name, the rest as one; sums are divided once, so sums of whole thousandths are exact."""
        rows: dict[str, float] = defaultdict(float)
        for name in sorted(values):
            rows[self.name(name)] += values[name]
        return [((name,), value / divisor) for name, value in rows.items()]
