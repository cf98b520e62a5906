"""The queue page: scheduling order, wait reasons, estimates, and workloads ahead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gpupool.domain.ids import WorkloadId
from gpupool.domain.people.access import Actor
from gpupool.domain.people.shares import ProjectShare
from gpupool.domain.units import format_duration, format_permille
from gpupool.domain.work.workload import Workload
from gpupool.scheduling.explain.wait_reason import Explanation
from gpupool.scheduling.values import BlockReason
from gpupool.services.explain.queue import QueueEntry, QueueReport
from gpupool.services.pool import PoolServices
from gpupool.web.deps import Services, Visitor, reads
from gpupool.web.kit.labels import gpus_text
from gpupool.web.kit.listing import Column, ColumnKind, Listing, listing, table_names, with_columns
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


async def wait_reasons(
    services: PoolServices, actor: Actor, wanted: Sequence[WorkloadId]
) -> dict[WorkloadId, WaitReason]:
    """Return why workloads wait, as far as that is known or quickly found."""
    found = await services.workloads.reason_cache.of(actor, wanted)
    return {workload: wait_reason_of(why) for workload, why in found.items()}


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


@router.get("/queue", dependencies=[reads(*table_names())])
async def queue(request: Request, services: Services, visitor: Visitor) -> Response:
    """Show the queue with order, wait reasons and estimates."""
    shown = await cached_queue_page(request, services)
    now = services.workloads.now()
    first = _table(request, shown, {}, now)
    reasons = await wait_reasons(services, visitor, [line.row.id for line in first.lines])
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


async def cached_queue_page(request: Request, services: PoolServices) -> QueuePage:
    """Return the queue in its order, from the cache that all visitors share."""

    async def read() -> QueuePage:
        return queue_page(await services.workloads.queue.queue())

    shown: QueuePage = await cache_of(request).get(("queue",), read)
    return shown


def _table(request: Request, shown: QueuePage, reasons: dict[WorkloadId, WaitReason], now: float) -> Listing[QueueRow]:
    return listing(request, _columns(reasons, now), shown.rows, name="queue", default_sort="order")
