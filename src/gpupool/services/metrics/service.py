"""The metrics of a pool, collected in slices so that a scrape does not block the event loop."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import structlog

from gpupool.domain.errors import GpupoolError
from gpupool.domain.events import Reason
from gpupool.domain.people.access import Actor, Project, Role
from gpupool.domain.units import WHOLE_GPU
from gpupool.domain.usage import GroupBy, UsageLine
from gpupool.domain.work.workload import LAZY_GPUS, GpuLease
from gpupool.services.control.engine import Engine
from gpupool.services.metrics import catalogue as c
from gpupool.services.metrics.families import (
    MAX_PROJECTS,
    MAX_USERS,
    Bounded,
    Counts,
    MetricFamily,
    Row,
    gpu_rows,
    health_rows,
    holder_rows,
    node_rows,
    workload_rows,
)
from gpupool.services.metrics.snapshot import MetricsSnapshot, WaitingCounts, look_at_disk, make_snapshot, read_state
from gpupool.services.ports.store import ChangeSet
from gpupool.services.state.identity_cache import IdentityCache
from gpupool.services.state.node_registry import NodeRegistry
from gpupool.services.telemetry.service import TelemetryService
from gpupool.services.usage.accounting import AccountingService

SLICE = 500  # workloads counted at a time
FAIR_EVERY_S = 15.0  # fair shares are expensive, so not every scrape computes them
MEASURED_EVERY_S = 60.0

WAYS = tuple((way, result) for way in ("mail", "webhook") for result in ("sent", "failed", "dropped"))

log = structlog.get_logger("gpupool.metrics")
Holder = tuple[str, str]  # project, user
_READER = Actor("pool", Role.VIEWER, "pool")


@dataclass(slots=True)
class Measured:
    """GPU seconds that were used, and GPU seconds of replicas that used none of their GPUs."""

    used_s: float = 0.0
    idle_s: float = 0.0


class GpuSeconds:
    """GPU seconds, counted from a moment without a write in progress."""

    def __init__(self, engine: Engine, accounting: AccountingService) -> None:
        self._engine = engine
        self._accounting = accounting
        self._since: float | None = None
        self._over: dict[Holder, float] = defaultdict(float)
        self._measured_before: dict[str, Measured] = {}
        self.measured: dict[str, Measured] = {}  # by project
        self.loaded = False

    async def load(self) -> None:
        """Read past GPU seconds. Raises ``GpupoolError`` if the store cannot be read; the call may be repeated."""
        if self._since is None:
            self._since = await self._engine.read_consistent(self._engine.ports.clock.now)
        lines = await self._accounting.usage(0.0, self._since, GroupBy.MEMBER)
        for line in lines:
            self._over[line.project, line.user] += line.time.allocated_s
        self._measured_before = _measured(lines)
        self.measured = dict(self._measured_before)
        self.loaded = True

    async def measure(self) -> None:
        """Read the use measured since the start; no value decreases."""
        assert self._since is not None  # noqa: S101 - ``load`` is called first
        until = max(self._since, self._engine.ports.clock.now())
        fresh = _measured(await self._accounting.usage(self._since, until, GroupBy.MEMBER))
        for project in {*fresh, *self._measured_before}:
            before, now = self._measured_before.get(project, Measured()), fresh.get(project, Measured())
            last = self.measured.get(project, Measured())
            used_s, idle_s = before.used_s + now.used_s, before.idle_s + now.idle_s
            self.measured[project] = Measured(max(last.used_s, used_s), max(last.idle_s, idle_s))

    def committed(self, changes: ChangeSet) -> None:
        """Add the GPU seconds of leases that this change releases."""
        if self._since is None:
            return
        for lease in changes.leases:
            if lease.released_at is not None:
                self._over[lease.project, lease.user] += _held_s(lease, self._since, lease.released_at)

    def at(self, now: float, leases: Iterable[GpuLease]) -> dict[Holder, float]:
        """Return the GPU seconds allocated until ``now``; ``leases`` are those open at that moment."""
        total = dict(self._over)
        for lease in leases:
            holder = (lease.project, lease.user)
            total[holder] = total.get(holder, 0.0) + _held_s(lease, self._since or 0.0, now)
        return total


def _measured(lines: Iterable[UsageLine]) -> dict[str, Measured]:
    found: dict[str, Measured] = {}
    for line in lines:
        sums = found.setdefault(line.project, Measured())
        sums.used_s += line.time.used_s or 0.0
        sums.idle_s += line.time.idle_s or 0.0
    return found


def _held_s(lease: GpuLease, since: float, until: float) -> float:
    return max(0.0, until - max(lease.granted_at, since)) * lease.permille / WHOLE_GPU


class MetricsService:
    """Collects the current values of the metrics."""

    def __init__(
        self,
        engine: Engine,
        book: NodeRegistry,
        register: IdentityCache,
        telemetry: TelemetryService,
        accounting: AccountingService,
    ) -> None:
        self._engine = engine
        self._book = book
        self._register = register
        self._telemetry = telemetry
        self.counts = Counts()
        self.seconds = GpuSeconds(engine, accounting)
        self._projects = Bounded(MAX_PROJECTS)
        self._users = Bounded(MAX_USERS)
        self._fair: list[Row] = []
        self._fair_at = float("-inf")
        engine.on_commit(self._committed)

    async def run(self) -> None:
        """Load past GPU time once, then read measured GPU time once a minute, until cancelled.

        GPU seconds are not reported before they are loaded.
        """
        while True:
            try:
                if not self.seconds.loaded:
                    await self.seconds.load()
                await self.seconds.measure()
            except GpupoolError as error:
                log.warning("could not read past GPU time", code=error.code)
            except Exception:  # an error in metrics must not stop the pool
                log.exception("could not read past GPU time")
            await self._engine.ports.sleep(MEASURED_EVERY_S)

    def _committed(self, changes: ChangeSet) -> None:
        self.seconds.committed(changes)
        for event in changes.events:
            self.counts.events[event.reason.value] += 1
        for lease in changes.leases:
            workload = self._engine.mirror.workloads.get(lease.workload)
            replica = self._engine.mirror.holder(lease)
            if lease.released_at is None and workload is not None and replica is not None:
                since = replica.queued_at if lease.index != LAZY_GPUS else replica.gpu_wanted_at or lease.granted_at
                self.counts.waited(workload.kind.value, lease.granted_at - since)

    async def snapshot(self) -> MetricsSnapshot:
        """Return the state of the pool at one moment, for pages and metrics."""
        latest = self._telemetry.latest()
        return await make_snapshot(
            self._engine, await self._engine.read_consistent(lambda: read_state(self._engine, self._book, latest))
        )

    async def families(self) -> AsyncIterator[MetricFamily]:
        """Yield metrics with their rows, all of one moment; the caller may yield to the event loop in between."""
        snapshot = await self.snapshot()
        await asyncio.sleep(0)
        waiting = WaitingCounts()
        for begin in range(0, len(snapshot.workloads), SLICE):
            for workload, pending in snapshot.workloads[begin : begin + SLICE]:
                waiting.add(workload, pending)
            await asyncio.sleep(0)
        for part in (self._since_start(), node_rows(snapshot), gpu_rows(snapshot), self._people(snapshot, waiting)):
            for family in part:
                yield family
        for part in (health_rows(snapshot), holder_rows(snapshot), workload_rows(snapshot)):
            for family in part:
                yield family

    def _since_start(self) -> Iterator[MetricFamily]:
        counts = self.counts  # all series start at 0, because Prometheus sees no increase if a series appears with 1
        yield MetricFamily(c.CYCLES, histograms=[((), counts.cycles)])
        yield MetricFamily(c.EVENTS, [((reason.value,), float(counts.events[reason.value])) for reason in Reason])
        yield MetricFamily(c.WARNINGS, [(way, float(counts.warnings[way])) for way in WAYS])
        yield MetricFamily(c.WAITS, histograms=[((kind,), waits) for kind, waits in sorted(counts.waits.items())])

    def _people(self, snapshot: MetricsSnapshot, waiting: WaitingCounts) -> Iterator[MetricFamily]:
        yield MetricFamily(c.WORKLOADS, [(key, float(n)) for key, n in sorted(waiting.workloads.items())])
        projects, users = self._projects, self._users
        held, idle = _held(snapshot, self._register)
        yield MetricFamily(c.PROJECT_HELD, projects.summed(held["project"], WHOLE_GPU))
        yield MetricFamily(c.PROJECT_IDLE, projects.summed(idle["project"], WHOLE_GPU))
        yield MetricFamily(c.PROJECT_QUOTA, self._bounds("quota_permille"))
        yield MetricFamily(c.PROJECT_LIMIT, self._bounds("limit_permille"))
        yield MetricFamily(c.PROJECT_FAIR, self._fair_shares(snapshot.now))
        yield MetricFamily(c.PROJECT_WAITING, projects.summed(_with_zeros(waiting.replicas, self._register.projects)))
        running = Counter(holding.lease.project for holding in snapshot.holdings)
        yield MetricFamily(c.PROJECT_RUNNING, projects.summed(_with_zeros(running, self._register.projects)))
        oldest = {project: max(0.0, snapshot.now - at) for project, at in waiting.oldest.items()}
        yield MetricFamily(c.PROJECT_OLDEST, _longest(self._projects, oldest, self._register.projects))
        yield MetricFamily(c.USER_HELD, users.summed(held["user"], WHOLE_GPU))
        yield MetricFamily(c.USER_IDLE, users.summed(idle["user"], WHOLE_GPU))
        if self.seconds.loaded:
            yield from self._gpu_seconds(snapshot)

    def _gpu_seconds(self, snapshot: MetricsSnapshot) -> Iterator[MetricFamily]:
        by_project: dict[str, float] = defaultdict(float)
        by_user: dict[str, float] = defaultdict(float)
        total = self.seconds.at(snapshot.now, (holding.lease for holding in snapshot.holdings))
        for (project, user), seconds in total.items():
            by_project[project] += seconds
            by_user[user] += seconds
        yield MetricFamily(c.PROJECT_SECONDS, self._projects.summed(by_project))
        yield MetricFamily(c.USER_SECONDS, self._users.summed(by_user))
        measured = self.seconds.measured
        yield MetricFamily(c.PROJECT_USED_SECONDS, self._projects.summed({p: m.used_s for p, m in measured.items()}))
        yield MetricFamily(c.PROJECT_IDLE_SECONDS, self._projects.summed({p: m.idle_s for p, m in measured.items()}))

    def _bounds(self, name: str) -> list[Row]:
        def bound(project: Project) -> int | None:
            value: int | None = getattr(project, name)
            return value

        known = {project.name: bound(project) for project in self._register.projects.values()}
        return self._projects.summed({name: value for name, value in known.items() if value is not None}, WHOLE_GPU)

    def _fair_shares(self, now: float) -> list[Row]:
        if now - self._fair_at >= FAIR_EVERY_S:
            standings = self._engine.feed.scheduler.share_report(now)
            fair = {row.project: row.fair_permille for row in standings.projects}
            self._fair, self._fair_at = self._projects.summed(fair, WHOLE_GPU), now
        return self._fair

    def pool_rows(self, info: Any) -> Iterator[MetricFamily]:
        """Yield the metrics of the pool as a whole; ``info`` is its ``PoolInfo``."""
        yield MetricFamily(c.INFO, [((info.version, info.pool_id, info.kind), 1.0)])
        yield MetricFamily(c.STARTED, [((), info.started_at)])
        disk = look_at_disk(info.state_dir) if info.state_dir else None
        if disk is not None:
            yield MetricFamily(c.DISK_SIZE, [((), float(disk.size))])
            yield MetricFamily(c.DISK_FREE, [((), float(disk.free))])
            yield MetricFamily(c.DATABASE, [((), float(disk.database))])


def _held(
    snapshot: MetricsSnapshot, register: IdentityCache
) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, float]]]:
    """Return the thousandths of GPUs allocated, and of those the idle ones, by project and by user (0 for none)."""
    held = {"project": dict.fromkeys(register.projects, 0.0), "user": dict.fromkeys(register.users, 0.0)}
    idle = {"project": dict(held["project"]), "user": dict(held["user"])}
    for holding in snapshot.holdings:
        for by, name in (("project", holding.lease.project), ("user", holding.lease.user)):
            held[by][name] = held[by].get(name, 0) + holding.lease.permille
            idle[by][name] = idle[by].get(name, 0) + (holding.lease.permille if holding.idle else 0)
    return held, idle


def _with_zeros(counts: Counter[str], names: dict[str, Any]) -> dict[str, float]:
    return {**dict.fromkeys(names, 0.0), **{name: float(n) for name, n in counts.items()}}


def _longest(bounded: Bounded, oldest: dict[str, float], names: dict[str, Any]) -> list[Row]:
    rows: dict[str, float] = {}
    for name in sorted({*oldest, *names}):
        key = bounded.name(name)
        rows[key] = max(rows.get(key, 0.0), oldest.get(name, 0.0))
    return [((name,), value) for name, value in rows.items()]
