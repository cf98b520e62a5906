"""The queue."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gpupool.domain.ids import WorkloadId
from gpupool.services.pool import PoolServices
from gpupool.web.deps import Services, Visitor
from gpupool.web.kept import kept
from gpupool.web.listing import Column, Kind, Listing, listing, written_again
from gpupool.web.pages import page
from gpupool.web.views.queue import QueuePage, QueueRow, queue_page, reasons_of
from gpupool.web.views.waiting import Why

router = APIRouter()


def _columns(reasons: dict[WorkloadId, Why], now: float) -> tuple[Column[QueueRow], ...]:
    def why(row: QueueRow) -> str:
        found = reasons.get(row.id)
        return row.held if found is None else found.sentence

    def estimate(row: QueueRow) -> float | None:
        found = reasons.get(row.id)
        return None if found is None else found.estimate_s

    return (
        Column("order", "Order", lambda row: row.rank, Kind.NUMBER, note=_position, about="As things stand now"),
        Column("name", "Workload", lambda row: row.name, link=lambda row: f"/workloads/{row.id}", note=_kind),
        Column(
            "project", "Project", lambda row: row.workload.project, link=lambda row: f"/projects/{row.workload.project}"
        ),
        Column("user", "User", lambda row: row.workload.user),
        Column("gpus", "GPUs", lambda row: row.gpus, about="For each replica"),
        Column("priority", "Priority", lambda row: row.workload.priority, Kind.NUMBER),
        Column("waits", "Waits for", lambda row: now - row.workload.created_at, Kind.DURATION),
        Column("estimate", "Starts in about", estimate, Kind.DURATION),
        Column("why", "Why it waits", why),
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
    """Who waits, in which order, why, and for about how long."""
    shown: QueuePage = await kept(request).get(("queue",), lambda: _page(services))
    now = services.workloads.now()
    first = _table(request, shown, {}, now)
    reasons = await reasons_of(services, request.app.state).of(services, visitor, [line.row.id for line in first.lines])
    if request.query_params.keys() & {"find", "sort", "format"}:
        table = _table(request, shown, reasons, now)  # what is found may decide what is shown, and in which order
    else:
        table = written_again(first, _columns(reasons, now))
    return page(
        request,
        visitor,
        "queue.html",
        title="Queue",
        table=table,
        turns=shown.turns,
        reasons=reasons,
        lines=first.lines,
    )


async def _page(services: PoolServices) -> QueuePage:
    return queue_page(await services.workloads.queue.queue())


def _table(request: Request, shown: QueuePage, reasons: dict[WorkloadId, Why], now: float) -> Listing[QueueRow]:
    return listing(request, _columns(reasons, now), shown.rows, name="queue", default_sort="order")
