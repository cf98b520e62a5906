"""The metrics of a pool: collected in slices, so that a scrape holds up nobody."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from typing import Any

import structlog

from gpupool.domain.access import Project
from gpupool.domain.errors import GpupoolError
from gpupool.domain.events import Reason
from gpupool.domain.units import WHOLE_GPU
from gpupool.services.accounting import AccountingService
from gpupool.services.engine import Engine
from gpupool.services.metrics import catalogue as c
from gpupool.services.metrics.counts import Counts
from gpupool.services.metrics.families import (
    MOST_PROJECTS,
    MOST_USERS,
    Bounded,
    Family,
    Row,
    gpu_rows,
    node_rows,
    workload_rows,
)
from gpupool.services.metrics.snapshot import Snapshot, Waiting, grasp, look_at_disk, take
from gpupool.services.metrics.totals import GpuSeconds
from gpupool.services.nodebook import NodeBook
from gpupool.services.ports import ChangeSet
from gpupool.services.register import Register
from gpupool.services.telemetry import TelemetryService

SLICE = 500  # workloads counted at a time
FAIR_EVERY_S = 15.0  # fair shares are worked out by the scheduler, and not for every scrape
MEASURED_EVERY_S = 60.0

WAYS = tuple((way, result) for way in ("mail", "webhook") for result in ("sent", "failed", "dropped"))

log = structlog.get_logger("gpupool.metrics")


class MetricsService:
    """Every metric of the catalogue, as it is now."""

    def __init__(
        self,
        engine: Engine,
        book: NodeBook,
        register: Register,
        telemetry: TelemetryService,
        accounting: AccountingService,
    ) -> None:
        self._engine = engine
        self._book = book
        self._register = register
        self._telemetry = telemetry
        self.counts = Counts()
        self.seconds = GpuSeconds(engine, accounting)
        self._projects = Bounded(MOST_PROJECTS)
        self._users = Bounded(MOST_USERS)
        self._fair: list[Row] = []
        self._fair_at = float("-inf")
        engine.committing(self._committed)

    async def run(self) -> None:
        """Learn what was held before this control plane started, and then what is measured; until then none is told."""
        while True:
            try:
                if not self.seconds.loaded:
                    await self.seconds.load()
                await self.seconds.measure()
            except GpupoolError as error:
                log.warning("cannot read what was held", code=error.code)
            except Exception:  # numbers for a monitor are no reason to stop a pool
                log.exception("cannot read what was held")
            await self._engine.ports.sleep(MEASURED_EVERY_S)

    def _committed(self, changes: ChangeSet) -> None:
        self.seconds.committed(changes)
        for event in changes.events:
            self.counts.events[event.reason.value] += 1
        for lease in changes.leases:
            workload = self._engine.mirror.workloads.get(lease.workload)
            replica = self._engine.mirror.replica(lease.workload, lease.index)
            if lease.released_at is None and workload is not None and replica is not None:
                self.counts.waited(workload.kind.value, lease.granted_at - replica.queued_at)

    async def snapshot(self) -> Snapshot:
        """The pool at one moment: what the numbers of pages and metrics are made from."""
        latest = self._telemetry.latest()
        return await take(self._engine, await self._engine.still(lambda: grasp(self._engine, self._book, latest)))

    async def families(self) -> AsyncIterator[Family]:
        """Each metric with its rows; between two the caller may let others run. All are of one moment."""
        snapshot = await self.snapshot()
        await asyncio.sleep(0)
        waiting = Waiting()
        for begin in range(0, len(snapshot.workloads), SLICE):
            for workload, pending in snapshot.workloads[begin : begin + SLICE]:
                waiting.add(workload, pending)
            await asyncio.sleep(0)
        for part in (self._since_start(), node_rows(snapshot), gpu_rows(snapshot), self._people(snapshot, waiting)):
            for family in part:
                yield family
        for family in workload_rows(snapshot):
            yield family

    def _since_start(self) -> Iterator[Family]:
        counts = self.counts  # all begin at zero: of a series that appears with one, Prometheus sees no increase
        yield Family(c.CYCLES, histograms=[((), counts.cycles)])
        yield Family(c.EVENTS, [((reason.value,), float(counts.events[reason.value])) for reason in Reason])
        yield Family(c.WARNINGS, [(way, float(counts.warnings[way])) for way in WAYS])
        yield Family(c.WAITS, histograms=[((kind,), waits) for kind, waits in sorted(counts.waits.items())])

    def _people(self, snapshot: Snapshot, waiting: Waiting) -> Iterator[Family]:
        yield Family(c.WORKLOADS, [(key, float(n)) for key, n in sorted(waiting.workloads.items())])
        projects, users = self._projects, self._users
        held, idle = _held(snapshot, self._register)
        yield Family(c.PROJECT_HELD, projects.summed(held["project"]))
        yield Family(c.PROJECT_IDLE, projects.summed(idle["project"]))
        yield Family(c.PROJECT_QUOTA, self._bounds("quota_permille"))
        yield Family(c.PROJECT_LIMIT, self._bounds("limit_permille"))
        yield Family(c.PROJECT_FAIR, self._fair_shares(snapshot.now))
        yield Family(c.PROJECT_WAITING, projects.summed(_with_zeros(waiting.replicas, self._register.projects)))
        running = Counter(holding.lease.project for holding in snapshot.holdings)
        yield Family(c.PROJECT_RUNNING, projects.summed(_with_zeros(running, self._register.projects)))
        oldest = {project: max(0.0, snapshot.now - at) for project, at in waiting.oldest.items()}
        yield Family(c.PROJECT_OLDEST, _longest(self._projects, oldest, self._register.projects))
        yield Family(c.USER_HELD, users.summed(held["user"]))
        yield Family(c.USER_IDLE, users.summed(idle["user"]))
        if self.seconds.loaded:
            yield from self._gpu_seconds(snapshot)

    def _gpu_seconds(self, snapshot: Snapshot) -> Iterator[Family]:
        by_project: dict[str, float] = defaultdict(float)
        by_user: dict[str, float] = defaultdict(float)
        total = self.seconds.at(snapshot.now, (holding.lease for holding in snapshot.holdings))
        for (project, user), seconds in total.items():
            by_project[project] += seconds
            by_user[user] += seconds
        yield Family(c.PROJECT_SECONDS, self._projects.summed(by_project))
        yield Family(c.USER_SECONDS, self._users.summed(by_user))
        measured = self.seconds.measured
        yield Family(c.PROJECT_USED_SECONDS, self._projects.summed({p: m.used_s for p, m in measured.items()}))
        yield Family(c.PROJECT_IDLE_SECONDS, self._projects.summed({p: m.idle_s for p, m in measured.items()}))

    def _bounds(self, name: str) -> list[Row]:
        def bound(project: Project) -> int | None:
            value: int | None = getattr(project, name)
            return value

        known = {project.name: bound(project) for project in self._register.projects.values()}
        return self._projects.summed({name: value / WHOLE_GPU for name, value in known.items() if value is not None})

    def _fair_shares(self, now: float) -> list[Row]:
        if now - self._fair_at >= FAIR_EVERY_S:
            standings = self._engine.demand.scheduler.standings(now)
            fair = {row.project: row.fair_permille / WHOLE_GPU for row in standings.projects}
            self._fair, self._fair_at = self._projects.summed(fair), now
        return self._fair

    def pool_rows(self, info: Any) -> Iterator[Family]:
        """The pool as a whole; ``info`` is its ``PoolInfo``."""
        yield Family(c.INFO, [((info.version, info.pool_id, info.kind), 1.0)])
        yield Family(c.STARTED, [((), info.started_at)])
        disk = look_at_disk(info.state_dir) if info.state_dir else None
        if disk is not None:
            yield Family(c.DISK_SIZE, [((), float(disk.size))])
            yield Family(c.DISK_FREE, [((), float(disk.free))])
            yield Family(c.DATABASE, [((), float(disk.database))])


def _held(snapshot: Snapshot, register: Register) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, float]]]:
    """GPUs held, and those held for nothing, by project and by user; whoever holds none is there with 0."""
    held = {"project": dict.fromkeys(register.projects, 0.0), "user": dict.fromkeys(register.users, 0.0)}
    idle = {"project": dict(held["project"]), "user": dict(held["user"])}
    for holding in snapshot.holdings:
        for by, name in (("project", holding.lease.project), ("user", holding.lease.user)):
            held[by][name] = held[by].get(name, 0.0) + holding.gpus
            idle[by][name] = idle[by].get(name, 0.0) + (holding.gpus if holding.idle else 0.0)
    return held, idle


def _with_zeros(counts: Counter[str], names: dict[str, Any]) -> dict[str, float]:
    return {**dict.fromkeys(names, 0.0), **{name: float(n) for name, n in counts.items()}}


def _longest(bounded: Bounded, oldest: dict[str, float], names: dict[str, Any]) -> list[Row]:
    rows: dict[str, float] = {}
    for name in sorted({*oldest, *names}):
        key = bounded.name(name)
        rows[key] = max(rows.get(key, 0.0), oldest.get(name, 0.0))
    return [((name,), value) for name, value in rows.items()]
