"""Analytics: use and capacity of the pool over time, idle leases, and long waits, for the analytics page.

All GPU time comes from the accounting, so that pages, the API and reports agree. Results about the past are cached and
shared by all requests.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from gpupool.domain.nodes.capacity import CapacitySeconds
from gpupool.domain.units import WHOLE_GPU
from gpupool.domain.usage import ALL_USAGE, GroupBy, UsageFilter, UsageLine, WaitLine
from gpupool.domain.work.workload import ReplicaState, WorkloadKind, WorkloadState
from gpupool.services.control.engine import Engine
from gpupool.services.ports.usage import Moments
from gpupool.services.state.node_registry import NodeRegistry
from gpupool.services.usage.accounting import AccountingService
from gpupool.services.usage.reports import ReportRequest, UsageReport, make_report
from gpupool.services.workloads.leases import LeaseService, LeaseUse

IDLE_S = 300.0  # leases idle for longer are shown
PATIENCE_S = 0.08  # time that a page waits for history before it is shown without

Edges = tuple[float, ...]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Kept:
    until: float
    answer: asyncio.Future[Any]


class Cache:
    """At most ``most`` answers by key; concurrent requests for a key wait for the same computation."""

    def __init__(self, monotonic: Callable[[], float], most: int = 256) -> None:
        self._monotonic = monotonic
        self._most = most
        self._kept: dict[Hashable, _Kept] = {}

    async def get(self, key: Hashable, lasts_s: float, work: Callable[[], Awaitable[T]]) -> T:
        """Return the answer for ``key``, from ``work`` if none is younger than ``lasts_s``; errors are not kept."""
        now = self._monotonic()
        kept = self._kept.get(key)
        if kept is None or kept.until <= now:
            self._make_room(now)
            kept = self._kept[key] = _Kept(now + lasts_s, asyncio.ensure_future(work()))
            kept.answer.add_done_callback(lambda answer: self._forget_failed(key, answer))
        answer: T = await asyncio.shield(kept.answer)  # others wait for it too
        return answer

    def _forget_failed(self, key: Hashable, answer: asyncio.Future[Any]) -> None:
        if answer.cancelled() or answer.exception() is not None:
            kept = self._kept.get(key)
            if kept is not None and kept.answer is answer:
                del self._kept[key]

    def _make_room(self, now: float) -> None:
        for key in [key for key, kept in self._kept.items() if kept.until <= now and kept.answer.done()]:
            del self._kept[key]
        while len(self._kept) >= self._most:
            del self._kept[next(iter(self._kept))]


@dataclass(frozen=True, slots=True)
class IdleHolder:
    """A lease whose GPUs are idle for ``idle_s`` seconds, with the ``cost`` of that time."""

    holding: LeaseUse
    idle_s: float
    cost: float | None

    @property
    def gpu_s(self) -> float:
        """Return the idle GPU seconds."""
        return self.idle_s * self.holding.lease.permille / WHOLE_GPU


@dataclass(frozen=True, slots=True)
class FreeTime:
    """Free capacity at each moment, in thousandths: on unused GPUs, and on GPUs that were partly used."""

    whole: tuple[int, ...]
    pieces: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LongWait:
    """A workload that has waited for its first start since ``since``."""

    workload: str
    name: str
    project: str
    user: str
    since: float


class AnalyticsService:
    """Figures for pages and reports; all users may see them."""

    def __init__(
        self, engine: Engine, nodes: NodeRegistry, accounting: AccountingService, holdings: LeaseService
    ) -> None:
        self._engine = engine
        self._nodes = nodes
        self._accounting = accounting
        self._holdings = holdings
        self._remembered = Cache(engine.ports.clock.monotonic)
        self._late: set[asyncio.Future[Any]] = set()
        self.patience_s = PATIENCE_S

    # History

    async def usage(
        self, edges: Edges, by: GroupBy, lasts_s: float, scope: UsageFilter = ALL_USAGE
    ) -> Sequence[UsageLine]:
        """Return GPU time between neighbouring edges, oldest first; with costs only for a single step."""
        costed = len(edges) == 2
        key = ("usage", edges, by, scope, self._accounting.rates if costed else None)
        return await self._remembered.get(
            key, lasts_s, lambda: self._accounting.between(edges, by, scope, costed=costed)
        )

    async def waits(self, edges: Edges, lasts_s: float, scope: UsageFilter = ALL_USAGE) -> Sequence[WaitLine]:
        """Return waiting times of workloads submitted between neighbouring edges."""
        key = ("waits", edges, scope)
        return await self._remembered.get(
            key, lasts_s, lambda: self._accounting.waits_between(edges, GroupBy.POOL, scope)
        )

    async def waiting(self, moments: Moments, lasts_s: float) -> Sequence[int]:
        """Return the number of workloads waiting for their first start at each moment."""
        store = self._engine.ports.store.moments
        return await self._remembered.get(("waiting", moments), lasts_s, lambda: store.waiting(moments))

    async def free(self, moments: Moments, lasts_s: float) -> FreeTime:
        """Return the free capacity of available GPUs at each moment."""
        store = self._engine.ports.store
        found = await self._remembered.get(("held", moments), lasts_s, lambda: store.moments.held(moments))
        times = moments.times()
        gpus = await self._remembered.get(("available", moments), lasts_s, lambda: store.capacity.available_at(times))
        rows = zip(gpus, found.held, found.pieces, strict=True)
        return FreeTime(tuple(max(0, WHOLE_GPU * there - held - pieces) for there, held, pieces in rows), found.pieces)

    async def capacity(self, edges: Edges, lasts_s: float) -> Sequence[CapacitySeconds]:
        """Return the capacity of the pool between neighbouring edges, as it was recorded."""
        store = self._engine.ports.store.capacity
        return await self._remembered.get(("capacity", edges), lasts_s, lambda: store.between(edges))

    async def report(self, wish: ReportRequest, lasts_s: float) -> UsageReport:
        """Return a report, cached for equal requests."""
        key = ("report", wish, self._accounting.rates)
        return await self._remembered.get(key, lasts_s, lambda: make_report(self._accounting, wish))

    async def soon(self, *answers: Coroutine[Any, Any, Any]) -> tuple[Any, ...]:
        """Return the answers that are ready within ``patience_s``, and None for the others.

        The others continue. Each should come from a cached method above, so that the next call has it.
        """
        tasks = [asyncio.ensure_future(answer) for answer in answers]
        done, late = await asyncio.wait(tasks, timeout=self.patience_s)
        for task in late:
            self._late.add(task)
            task.add_done_callback(self._came_late)
        return tuple(task.result() if task in done else None for task in tasks)

    def _came_late(self, task: asyncio.Future[Any]) -> None:
        self._late.discard(task)
        if not task.cancelled():
            task.exception()  # mark it as retrieved; the next call raises it

    # Present

    async def idle_holders(self, longer_than_s: float = IDLE_S) -> Sequence[IdleHolder]:
        """Return leases with idle GPUs, largest GPU time first."""
        now = self._engine.ports.clock.now()
        idle = [(holding, now - holding.last_active_at) for holding in await self._holdings.held()]
        found = [IdleHolder(h, idle_s, self._cost(h, idle_s)) for h, idle_s in idle if idle_s > longer_than_s]
        return sorted(found, key=lambda one: (-one.gpu_s, one.holding.lease.epoch))

    def _cost(self, holding: LeaseUse, seconds: float) -> float | None:
        rates = self._accounting.rates
        if not rates:
            return None
        found = [(self._nodes.find_gpu(share.gpu_uuid), share.permille) for share in holding.lease.shares]
        models = [("" if gpu is None else gpu[1].model, permille) for gpu, permille in found]
        return rates.cost_of((model, seconds * permille / WHOLE_GPU) for model, permille in models)

    def alive(self) -> Counter[tuple[WorkloadKind, WorkloadState]]:
        """Count live workloads by kind and state."""
        return Counter((workload.kind, workload.state) for workload in self._engine.mirror.workloads.values())

    def longest_waits(self, most: int = 5) -> Sequence[LongWait]:
        """Return the workloads that have waited longest for their first start and are not suspended."""
        mirror = self._engine.mirror
        waiting = [
            workload
            for workload in mirror.workloads.values()
            if workload.started_at is None
            and not workload.suspended
            and workload.kind is not WorkloadKind.EXEC
            and mirror.counts[workload.id][ReplicaState.PENDING]
        ]
        waiting.sort(key=lambda workload: (workload.created_at, workload.id))
        return [LongWait(w.id, w.name, w.project, w.user, w.created_at) for w in waiting[:most]]
