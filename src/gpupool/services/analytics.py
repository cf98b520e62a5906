"""How the pool is used over time, who holds without using, and who waits: what the analytics page is made of.

All GPU time comes from the accounting, so that a page says what the API and a report say. Everything about the past is
worked out once for everybody who looks at the same time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from gpupool.domain.access import Actor
from gpupool.domain.units import WHOLE_GPU
from gpupool.domain.usage import EVERYTHING, By, Scope, UsageLine, WaitLine
from gpupool.domain.workload import ReplicaState, WorkloadKind, WorkloadState
from gpupool.services.accounting import AccountingService
from gpupool.services.engine import Engine
from gpupool.services.holdings import Holding, HoldingService
from gpupool.services.moments import Moments
from gpupool.services.nodebook import NodeBook
from gpupool.services.remembered import Remembered
from gpupool.services.reports import Report, Wish, make_report

IDLE_S = 300.0  # who holds GPUs unused for longer is shown
PATIENCE_S = 0.08  # so long a page waits for what concerns the past, before it is shown without

Edges = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class IdleHolder:
    """Somebody who holds GPUs and has not used them for ``idle_s`` seconds; ``cost`` is that of the time since."""

    holding: Holding
    idle_s: float
    cost: float | None

    @property
    def gpu_s(self) -> float:
        """GPU seconds held since then, unused."""
        return self.idle_s * self.holding.lease.permille / WHOLE_GPU


@dataclass(frozen=True, slots=True)
class FreeTime:
    """What was free at each moment, in thousandths: on GPUs nobody was on, and on those partly held."""

    whole: tuple[int, ...]
    pieces: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LongWait:
    """A workload that waits for its first start since ``since``."""

    workload: str
    name: str
    project: str
    user: str
    since: float


class AnalyticsService:
    """Everybody may look: who holds and used what is no secret of a pool."""

    def __init__(self, engine: Engine, book: NodeBook, accounting: AccountingService, holdings: HoldingService) -> None:
        self._engine = engine
        self._book = book
        self._accounting = accounting
        self._holdings = holdings
        self._remembered = Remembered(engine.ports.clock.monotonic)
        self._late: set[asyncio.Future[Any]] = set()
        self.patience_s = PATIENCE_S

    # Over time

    async def usage(self, edges: Edges, by: By, lasts_s: float, scope: Scope = EVERYTHING) -> Sequence[UsageLine]:
        """GPU time between neighbouring edges, oldest first, most first in each; what it cost only of a single step."""
        costed = len(edges) == 2
        key = ("usage", edges, by, scope, self._accounting.rates if costed else None)
        return await self._remembered.get(
            key, lasts_s, lambda: self._accounting.between(edges, by, scope, costed=costed)
        )

    async def waits(self, edges: Edges, lasts_s: float, scope: Scope = EVERYTHING) -> Sequence[WaitLine]:
        """How long work waited that was submitted between neighbouring edges."""
        key = ("waits", edges, scope)
        return await self._remembered.get(key, lasts_s, lambda: self._accounting.waits_between(edges, By.POOL, scope))

    async def waiting(self, moments: Moments, lasts_s: float) -> Sequence[int]:
        """How many workloads waited for their first start at each moment."""
        store = self._engine.ports.store.moments
        return await self._remembered.get(("waiting", moments), lasts_s, lambda: store.waiting(moments))

    async def free(self, moments: Moments, lasts_s: float) -> FreeTime:
        """What was free at each moment, of the GPUs that the pool has now."""
        store, there = self._engine.ports.store.moments, self.capacity_permille()
        found = await self._remembered.get(("held", moments), lasts_s, lambda: store.held(moments))
        pairs = zip(found.held, found.pieces, strict=True)
        return FreeTime(tuple(max(0, there - held - pieces) for held, pieces in pairs), found.pieces)

    async def report(self, actor: Actor, wish: Wish, lasts_s: float) -> Report:
        """A report, the same for everybody who wishes for the same."""
        key = ("report", wish, self._accounting.rates)
        return await self._remembered.get(key, lasts_s, lambda: make_report(self._accounting, actor, wish))

    async def soon(self, *answers: Coroutine[Any, Any, Any]) -> tuple[Any, ...]:
        """Those of the answers that are there within ``patience_s``, None for the others: they are being worked out.

        Each should be one of those above, so that it is there when it is asked for again.
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
            task.exception()  # whoever asks again is told

    # Now

    def capacity_permille(self) -> int:
        """Thousandths of all GPUs that the nodes have, whether they can be handed out or not."""
        return WHOLE_GPU * sum(len(node.report.gpus) for node in self._book.all())

    async def idle_holders(self, longer_than_s: float = IDLE_S) -> Sequence[IdleHolder]:
        """Who holds GPUs and does not use them, most GPU time first."""
        now = self._engine.ports.clock.now()
        idle = [(holding, now - holding.last_active_at) for holding in await self._holdings.held()]
        found = [IdleHolder(h, idle_s, self._cost(h, idle_s)) for h, idle_s in idle if idle_s > longer_than_s]
        return sorted(found, key=lambda one: (-one.gpu_s, one.holding.lease.epoch))

    def _cost(self, holding: Holding, seconds: float) -> float | None:
        rates = self._accounting.rates
        if not rates:
            return None
        found = [(self._book.find_gpu(share.gpu_uuid), share.permille) for share in holding.lease.shares]
        models = [("" if gpu is None else gpu[1].model, permille) for gpu, permille in found]
        return rates.cost_of((model, seconds * permille / WHOLE_GPU) for model, permille in models)

    def alive(self) -> Counter[tuple[WorkloadKind, WorkloadState]]:
        """How many workloads that have not ended are of which kind, in which state."""
        return Counter((workload.kind, workload.state) for workload in self._engine.mirror.workloads.values())

    def longest_waits(self, most: int = 5) -> Sequence[LongWait]:
        """Who has waited longest of those that have not started once and may start."""
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
