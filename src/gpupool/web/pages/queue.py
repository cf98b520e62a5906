"""The queue page: scheduling order, wait reasons, estimates, and workloads ahead."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gpupool.domain.errors import GpupoolError
from gpupool.domain.ids import WorkloadId
from gpupool.domain.people.access import Actor
from gpupool.domain.people.shares import ProjectShare
from gpupool.domain.units import format_duration, format_permille
from gpupool.domain.work.workload import Workload
from gpupool.scheduling.explain.wait_reason import Explanation
from gpupool.scheduling.values import BlockReason
from gpupool.services.explain.forked_worker import INLINE_COST_S
from gpupool.services.explain.queue import QueueEntry, QueueReport
from gpupool.services.pool import PoolServices
from gpupool.web.deps import Services, Visitor
from gpupool.web.kit.labels import gpus_text
from gpupool.web.kit.listing import Column, ColumnKind, Listing, listing, with_columns
from gpupool.web.kit.response_cache import cache_of
from gpupool.web.pages.saved_views import saved_views
from gpupool.web.rendering import page

_HIDDEN = frozenset({"ahead", "search"})


@dataclass(frozen=True, slots=True)
class WaitReason:
    """An explanation. ``estimate`` is text such as ``40m00s (25m00s to 1h10m)``, empty when nothing is known.

    ``numbers`` are (name, value) pairs of what the sentence rests on.
    """

    code: str
    sentence: str
    position: int
    ahead_in_project: int
    ahead_total: int
    numbers: tuple[tuple[str, str], ...]
    would_help: tuple[str, ...]
    estimate_s: float | None
    estimate: str
    basis: str


def wait_reason_of(found: Explanation) -> WaitReason:
    """Return an explanation as a page shows it."""
    return WaitReason(
        found.code.value,
        found.sentence[:1].upper() + found.sentence[1:],
        found.position,
        found.ahead_in_project,
        found.ahead_total,
        tuple(_numbers(found.numbers)),
        found.would_help,
        found.estimate_s,
        estimate_text(found),
        found.estimate_basis,
    )


def estimate_text(found: Explanation) -> str:
    """Return ``40m00s (25m00s to 1h10m)``, without a missing or narrow range; empty without an estimate."""
    likely, low, high = found.estimate_s, found.estimate_low_s, found.estimate_high_s
    if likely is None:
        return ""
    text = format_duration(likely)
    if low is None or (high is not None and high - low <= likely / 10):
        return text
    if high is None:
        return f"{text} ({format_duration(low)} or more)"
    return f"{text} ({format_duration(low)} to {format_duration(high)})"


def _numbers(numbers: Mapping[str, float | int | str]) -> Iterator[tuple[str, str]]:
    for name, value in numbers.items():
        if name in _HIDDEN:
            continue
        if name.endswith("_permille"):
            yield name.removesuffix("_permille").replace("_", " "), f"{format_permille(int(value))} GPU"
        elif name == "seconds":
            yield "left", format_duration(float(value))
        elif not name.endswith("_at"):
            yield name.replace("_", " "), f"{value:g}" if isinstance(value, float) else str(value)


MAX_AHEAD = 5
REASON_BUDGET_S = 0.04  # of the control plane's time for reasons of one page; the rest comes with the next look
MAX_AGE_S = 10.0
INTEREST_S = 30.0  # an estimate is computed only if a page requested it within this time
ESTIMATE_PAUSE_FACTOR = 3.0  # times the cost of an estimate: the pause before the next one
MAX_ENTRIES = 2_000
_HELD_WORDS = {
    BlockReason.SUSPENDED: "suspended",
    BlockReason.DEPENDENCY: "waits for dependencies",
    BlockReason.WINDOW: "outside its time window",
    BlockReason.PARALLELISM: "parallelism limit reached",
    BlockReason.FOLDER: "its folder is on another head",
    BlockReason.BUDGET: "no GPU hours left this month",
}


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A workload that waits; ``rank`` counts all that are in the queue, in the order of turns, then positions.

    It is None for those outside the queue. What a table shows is made when it is shown: there may be thousands.
    """

    waiting: QueueEntry
    rank: int | None

    @property
    def workload(self) -> Workload:
        """Return the waiting workload."""
        return self.waiting.workload

    @property
    def id(self) -> WorkloadId:
        """Return its id."""
        return self.waiting.workload.id

    @property
    def name(self) -> str:
        """Return its name."""
        return self.waiting.workload.name

    @property
    def gpus(self) -> str:
        """Return the request of each replica."""
        return gpus_text(self.waiting.workload.gpus)

    @property
    def held(self) -> str:
        """Return the reason why it is not in the queue."""
        if self.rank is not None:
            return ""
        return _HELD_WORDS[self.waiting.held or BlockReason.PARALLELISM]


@dataclass(frozen=True, slots=True)
class ProjectTurn:
    """A project with queued workloads, and the reason for its position."""

    place: int
    project: str
    reason: str
    held: str
    fair: str
    waiting: str
    workloads: int


@dataclass(frozen=True, slots=True)
class AheadRow:
    """A workload ahead of another in the same project, with the reason."""

    id: WorkloadId
    name: str
    user: str
    ground: str


@dataclass(frozen=True, slots=True)
class QueuePage:
    """Values of the queue page without wait reasons."""

    rows: tuple[QueueRow, ...]
    turns: tuple[ProjectTurn, ...]


def queue_page(queue: QueueReport) -> QueuePage:
    """Return the queue rows in order, and the scheduling order of projects."""
    rows = tuple(QueueRow(row, rank if row.position else None) for rank, row in enumerate(queue.waiting, 1))
    counts = Counter(row.workload.project for row in queue.waiting if row.position)
    return QueuePage(rows, tuple(_turn(standing, counts) for standing in queue.turns.values()))


def _turn(standing: ProjectShare, counts: Mapping[str, int]) -> ProjectTurn:
    return ProjectTurn(
        standing.position,
        standing.project,
        standing.reason,
        format_permille(standing.held_permille),
        format_permille(round(standing.fair_permille)),
        format_permille(standing.waiting_permille),
        counts.get(standing.project, 0),
    )


def rows_ahead(services: PoolServices, queue: QueueReport, workload: Workload) -> Sequence[AheadRow]:
    """Return the nearest workloads ahead in the same project, each with the reason."""
    own = next((row for row in queue.waiting if row.workload.id == workload.id), None)
    if own is None or not own.position:
        return ()
    return [_ahead_row(own, other) for other in services.workloads.queue.ahead(own, queue, MAX_AHEAD)]


def _ahead_row(own: QueueEntry, other: QueueEntry) -> AheadRow:
    mine, theirs = own.workload, other.workload
    if theirs.priority != mine.priority:
        ground = f"priority {theirs.priority} over {mine.priority}"
    else:
        earlier = own.place - other.place
        ground = f"queued {format_duration(earlier)} earlier" if earlier >= 1 else "queued just before"
    return AheadRow(theirs.id, theirs.name, theirs.user, ground)


@dataclass(frozen=True, slots=True)
class _CachedReason:
    """A reason, when it was found, and when the estimate in it was made (0: never)."""

    why: WaitReason
    at: float
    foretold_at: float = 0.0


class WaitReasonCache:
    """Cache of wait reasons for a few seconds, shared by all viewers.

    A reason alone is cheap; an estimate can take long in a large pool. Expensive estimates are computed one after the
    other in a background task with limited time, and shown at the next update.
    """

    def __init__(self, services: PoolServices) -> None:
        self._services = services
        self._kept: OrderedDict[WorkloadId, _CachedReason] = OrderedDict()
        # Workloads without an estimate, and the time of the request.
        self._wanted: OrderedDict[WorkloadId, float] = OrderedDict()
        self._making: asyncio.Task[None] | None = None
        self._cost_s = 0.0  # of an estimate

    async def of(
        self, actor: Actor, wanted: Sequence[WorkloadId], budget_s: float = REASON_BUDGET_S
    ) -> dict[WorkloadId, WaitReason]:
        """Return the known reasons for ``wanted``; unknown ones are computed in order, at least one per call."""
        self._cost_s = self._services.workloads.wait_reasons.worker.cost_s
        cheap = self._cost_s <= INLINE_COST_S
        began, asked = time.monotonic(), 0
        found: dict[WorkloadId, WaitReason] = {}
        for workload in wanted:
            kept = self._kept.get(workload)
            old = kept is None or began - kept.at >= MAX_AGE_S
            if old and (not asked or time.monotonic() - began < budget_s):
                asked += 1
                kept = await self._ask(actor, workload, foretell=cheap) or kept
            if kept is not None:
                found[workload] = kept.why
                if began - kept.foretold_at >= self._lasts_s:
                    self._wanted.setdefault(workload, began)
        if self._wanted and (self._making is None or self._making.done()):
            self._making = asyncio.create_task(self._make(actor), name="reasons")
        return found

    @property
    def _lasts_s(self) -> float:
        """Return the maximum age of an estimate; it grows with the cost."""
        return max(MAX_AGE_S, 100 * self._cost_s)

    async def _make(self, actor: Actor) -> None:
        """Compute requested estimates with pauses between them."""
        while self._wanted:
            workload, asked_at = self._wanted.popitem(last=False)
            if time.monotonic() - asked_at < INTEREST_S:
                await self._ask(actor, workload, foretell=True)
                self._cost_s = self._services.workloads.wait_reasons.worker.cost_s
                await asyncio.sleep(ESTIMATE_PAUSE_FACTOR * self._cost_s)

    async def _ask(self, actor: Actor, workload: WorkloadId, *, foretell: bool) -> _CachedReason | None:
        try:
            why = wait_reason_of(await self._services.workloads.why(actor, workload, foretell=foretell))
        except GpupoolError:
            return None  # it was deleted meanwhile
        now = time.monotonic()
        before = self._kept.get(workload)
        if foretell:
            kept = _CachedReason(why, now, now)
        elif before is not None:  # the old estimate is kept until a new one is computed
            kept = _CachedReason(replace(why, **_future(before.why)), now, before.foretold_at)
        else:
            kept = _CachedReason(why, now)
        self._kept[workload] = kept
        self._kept.move_to_end(workload)
        while len(self._kept) > MAX_ENTRIES:
            self._kept.popitem(last=False)
        return kept


def reason_cache_of(request: Request) -> WaitReasonCache:
    """Return the application's cache of reasons."""
    found: WaitReasonCache = request.app.state.wait_reasons
    return found


def _future(why: WaitReason) -> dict[str, Any]:
    return {name: getattr(why, name) for name in ("would_help", "estimate_s", "estimate", "basis")}


router = APIRouter()


def _columns(reasons: dict[WorkloadId, WaitReason], now: float) -> tuple[Column[QueueRow], ...]:
    def why(row: QueueRow) -> str:
        found = reasons.get(row.id)
        return row.held if found is None else found.sentence

    def estimate(row: QueueRow) -> float | None:
        found = reasons.get(row.id)
        return None if found is None else found.estimate_s

    return (
        Column(
            "order", "Order", lambda row: row.rank, ColumnKind.NUMBER, note=_position, about="Current scheduling order"
        ),
        Column("name", "Workload", lambda row: row.name, link=lambda row: f"/workloads/{row.id}", note=_kind),
        Column(
            "project", "Project", lambda row: row.workload.project, link=lambda row: f"/projects/{row.workload.project}"
        ),
        Column("user", "User", lambda row: row.workload.user),
        Column("gpus", "GPUs", lambda row: row.gpus, about="Per replica"),
        Column("priority", "Priority", lambda row: row.workload.priority, ColumnKind.NUMBER),
        Column("waits", "Waiting", lambda row: now - row.workload.created_at, ColumnKind.DURATION),
        Column("estimate", "Estimated start in", estimate, ColumnKind.DURATION),
        Column("why", "Wait reason", why),
    )


def _position(row: QueueRow) -> str | None:
    position = row.waiting.position
    return f"{_ordinal(position)} in {row.workload.project}" if position else None


def _ordinal(number: int) -> str:
    special = number % 100 in {11, 12, 13}
    return f"{number}{'th' if special else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def _kind(row: QueueRow) -> str:
    pending = row.waiting.pending
    return row.workload.kind.value if pending == 1 else f"{row.workload.kind.value}, {pending} replicas wait"


@router.get("/queue")
async def queue(request: Request, services: Services, visitor: Visitor) -> Response:
    """Show the queue with order, wait reasons and estimates."""
    shown: QueuePage = await cache_of(request).get(("queue",), lambda: _page(services))
    now = services.workloads.now()
    first = _table(request, shown, {}, now)
    reasons = await reason_cache_of(request).of(visitor, [line.row.id for line in first.lines])
    if request.query_params.keys() & {"find", "sort", "format"}:
        table = _table(request, shown, reasons, now)  # reasons can change the search result and the order
    else:
        table = with_columns(first, _columns(reasons, now))
    return page(
        request,
        visitor,
        "queue.html",
        title="Queue",
        views=await saved_views(request, services, visitor, "queue"),
        table=table,
        turns=shown.turns,
        reasons=reasons,
        lines=first.lines,
    )


async def _page(services: PoolServices) -> QueuePage:
    return queue_page(await services.workloads.queue.queue())


def _table(request: Request, shown: QueuePage, reasons: dict[WorkloadId, WaitReason], now: float) -> Listing[QueueRow]:
    return listing(request, _columns(reasons, now), shown.rows, name="queue", default_sort="order")
