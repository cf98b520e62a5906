"""The queue: its order, why each waits, and who is before whom."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpupool.domain.access import Actor
from gpupool.domain.errors import GpupoolError
from gpupool.domain.ids import WorkloadId
from gpupool.domain.units import format_duration, format_permille
from gpupool.domain.workload import Workload
from gpupool.scheduling.standing import ProjectStanding
from gpupool.scheduling.values import Held
from gpupool.services.aside import CHEAP_S
from gpupool.services.pool import PoolServices
from gpupool.services.queue import Queue, Waiting
from gpupool.web.views.waiting import Why, why_of
from gpupool.web.views.words import gpus_text

MOST_ABOVE = 5
BUDGET_S = 0.04  # of the control plane's time for reasons of one page; the rest comes with the next look
KEPT_S = 10.0
STILL_THERE_S = 30.0  # an estimate is made for who has looked within
PAUSE = 3.0  # times as long as an estimate took nothing is done for the next: it has a processor of its own meanwhile
MOST_KEPT = 2_000
_HELD_WORDS = {
    Held.SUSPENDED: "suspended",
    Held.DEPENDENCY: "after other work",
    Held.WINDOW: "outside its time window",
    Held.PARALLELISM: "parallelism used up",
    Held.FOLDER: "its folder is on another head",
}


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A workload that waits; ``rank`` counts all that are in the queue, in the order of turns, then positions.

    It is None for those outside the queue. What a table shows is made when it is shown: there may be thousands.
    """

    waiting: Waiting
    rank: int | None

    @property
    def workload(self) -> Workload:
        """What waits."""
        return self.waiting.workload

    @property
    def id(self) -> WorkloadId:
        """Its id."""
        return self.waiting.workload.id

    @property
    def name(self) -> str:
        """Its name."""
        return self.waiting.workload.name

    @property
    def gpus(self) -> str:
        """What each replica asks for."""
        return gpus_text(self.waiting.workload.gpus)

    @property
    def held(self) -> str:
        """What keeps it out of the queue."""
        if self.rank is not None:
            return ""
        return _HELD_WORDS[self.waiting.held or Held.PARALLELISM]


@dataclass(frozen=True, slots=True)
class Turn:
    """A project whose work waits, and why it is its turn then."""

    place: int
    project: str
    reason: str
    held: str
    fair: str
    waiting: str
    workloads: int


@dataclass(frozen=True, slots=True)
class Above:
    """Somebody who stands before another in the same project, and on what ground."""

    id: WorkloadId
    name: str
    user: str
    ground: str


@dataclass(frozen=True, slots=True)
class QueuePage:
    """Everything about the queue but the reasons."""

    rows: tuple[QueueRow, ...]
    turns: tuple[Turn, ...]


def queue_page(queue: Queue) -> QueuePage:
    """The rows in order, and the turns of the projects."""
    rows = tuple(QueueRow(row, rank if row.position else None) for rank, row in enumerate(queue.waiting, 1))
    counts = Counter(row.workload.project for row in queue.waiting if row.position)
    return QueuePage(rows, tuple(_turn(standing, counts) for standing in queue.turns.values()))


def _turn(standing: ProjectStanding, counts: Mapping[str, int]) -> Turn:
    return Turn(
        standing.position,
        standing.project,
        standing.reason,
        format_permille(standing.held_permille),
        format_permille(round(standing.fair_permille)),
        format_permille(standing.waiting_permille),
        counts.get(standing.project, 0),
    )


def above(services: PoolServices, queue: Queue, workload: Workload) -> Sequence[Above]:
    """The nearest who stand before a workload in its project, each with the ground."""
    own = next((row for row in queue.waiting if row.workload.id == workload.id), None)
    if own is None or not own.position:
        return ()
    return [_above(own, other) for other in services.workloads.queue.ahead(own, queue, MOST_ABOVE)]


def _above(own: Waiting, other: Waiting) -> Above:
    mine, theirs = own.workload, other.workload
    if theirs.priority != mine.priority:
        ground = f"priority {theirs.priority} over {mine.priority}"
    else:
        earlier = own.place - other.place
        ground = f"queued {format_duration(earlier)} earlier" if earlier >= 1 else "queued just before"
    return Above(theirs.id, theirs.name, theirs.user, ground)


@dataclass(frozen=True, slots=True)
class _Kept:
    """A reason, when it was found, and when the estimate in it was made (0: never)."""

    why: Why
    at: float
    foretold_at: float = 0.0


class Reasons:
    """Why those on a page wait, kept for a few seconds for all who look.

    A reason alone costs little; with an estimate it may take long in a large pool. Then those are made one after the
    other beside the pages, in a small part of the time, and shown with the next look.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[WorkloadId, _Kept] = OrderedDict()
        self._wanted: OrderedDict[WorkloadId, float] = OrderedDict()  # whose estimates, and when they were asked for
        self._making: asyncio.Task[None] | None = None
        self._cost_s = 0.0  # of an estimate

    async def of(
        self, services: PoolServices, actor: Actor, wanted: Sequence[WorkloadId], budget_s: float = BUDGET_S
    ) -> dict[WorkloadId, Why]:
        """The reasons known for ``wanted``, asked for in their order: at least one of those that are not known."""
        self._cost_s = services.workloads.waiting.aside.cost_s
        cheap = self._cost_s <= CHEAP_S
        began, asked = time.monotonic(), 0
        found: dict[WorkloadId, Why] = {}
        for workload in wanted:
            kept = self._kept.get(workload)
            old = kept is None or began - kept.at >= KEPT_S
            if old and (not asked or time.monotonic() - began < budget_s):
                asked += 1
                kept = await self._ask(services, actor, workload, foretell=cheap) or kept
            if kept is not None:
                found[workload] = kept.why
                if began - kept.foretold_at >= self._lasts_s:
                    self._wanted.setdefault(workload, began)
        if self._wanted and (self._making is None or self._making.done()):
            self._making = asyncio.create_task(self._make(services, actor), name="reasons")
        return found

    @property
    def _lasts_s(self) -> float:
        """For how long an estimate is shown: the longer, the more it costs."""
        return max(KEPT_S, 100 * self._cost_s)

    async def _make(self, services: PoolServices, actor: Actor) -> None:
        """Make the estimates that are wanted, at a pace that leaves the time to others."""
        while self._wanted:
            workload, asked_at = self._wanted.popitem(last=False)
            if time.monotonic() - asked_at < STILL_THERE_S:
                await self._ask(services, actor, workload, foretell=True)
                self._cost_s = services.workloads.waiting.aside.cost_s
                await asyncio.sleep(PAUSE * self._cost_s)

    async def _ask(self, services: PoolServices, actor: Actor, workload: WorkloadId, *, foretell: bool) -> _Kept | None:
        try:
            why = why_of(await services.workloads.why(actor, workload, foretell=foretell))
        except GpupoolError:
            return None  # it is gone meanwhile
        now = time.monotonic()
        before = self._kept.get(workload)
        if foretell:
            kept = _Kept(why, now, now)
        elif before is not None:  # what is known of the future stays until it is made anew
            kept = _Kept(replace(why, **_future(before.why)), now, before.foretold_at)
        else:
            kept = _Kept(why, now)
        self._kept[workload] = kept
        self._kept.move_to_end(workload)
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return kept


def reasons_of(services: PoolServices, state: Any) -> Reasons:
    """The one memory of reasons of an application, whose ``state`` it is kept in."""
    kept: tuple[PoolServices, Reasons] | None = getattr(state, "reasons_of_waits", None)
    if kept is None or kept[0] is not services:
        kept = state.reasons_of_waits = (services, Reasons())
    return kept[1]


def _future(why: Why) -> dict[str, Any]:
    return {name: getattr(why, name) for name in ("would_help", "estimate_s", "estimate", "basis")}
