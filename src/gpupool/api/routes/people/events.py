"""Events: pages, a live stream, and the audit record."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from starlette.requests import Request
from starlette.responses import Response

from gpupool.api import streams
from gpupool.api.deps import Caller, Closing, EventId, Limit, Services, answer, end_when_refused
from gpupool.api.schemas.base import MAX_PAGE
from gpupool.api.schemas.work.workloads import AuditPage, EventList, EventView
from gpupool.api.views.mapping import event_view
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.events import Reason
from gpupool.domain.ids import WorkloadId
from gpupool.domain.people.access import Actor
from gpupool.services.pool import PoolServices
from gpupool.services.ports.store import AuditFilter, EventFilter
from gpupool.services.usage.events import audit_cursor, parse_audit_cursor

router = APIRouter(prefix="/v1", tags=["events"])

OfWorkload = Annotated[str, Query(max_length=64, pattern=r"^[A-Za-z0-9._-]*$", description="Events of this workload.")]
STREAMED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Server-sent events: event (an EventView), each with its id.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}


@router.get("/events", response_model=EventList)
async def list_events(
    services: Services,
    caller: Caller,
    after_id: EventId = 0,
    workload: OfWorkload | None = None,
    limit: Limit = 100,
    newest: Annotated[bool, Query(description="Return the newest matching events instead of the oldest.")] = False,
) -> Response:
    """List events above ``after_id``, oldest first."""
    of = await _workload_id(services, caller, workload)
    wanted = EventFilter(after_id=after_id, workload=of, newest=newest, limit=limit)
    events = await services.history.events(caller, wanted)
    return answer(EventList(events=[event_view(event) for event in events]))


@router.get("/events/stream", response_class=Response, responses=STREAMED)
async def stream_events(  # noqa: PLR0913 - each is an input of the route
    *,
    request: Request,
    services: Services,
    caller: Caller,
    closing: Closing,
    after_id: EventId = 0,
    workload: OfWorkload | None = None,
    last_event_id: Annotated[str | None, Header(pattern=r"^[0-9]{0,18}$")] = None,
) -> Response:
    """Stream events above ``after_id`` as they happen, without end; resume from ``Last-Event-ID``."""
    of = await _workload_id(services, caller, workload)

    async def read(after: int) -> list[EventView]:
        wanted = EventFilter(after_id=after, workload=of, limit=MAX_PAGE)
        return [event_view(event) for event in await services.history.events(caller, wanted)]

    start = int(last_event_id) if last_event_id else after_id
    followed = streams.follow_events(start, read, services.history.subscribe(of), closing)
    return streams.sse(end_when_refused(request, followed))


async def _workload_id(services: PoolServices, caller: Actor, ref: str | None) -> WorkloadId | None:
    if not ref:
        return None
    return (await services.workloads.get(caller, ref)).id


Moment = Annotated[float | None, Query(ge=0, le=1e11, description="Seconds since the epoch.")]


@router.get("/audit", response_model=AuditPage)
async def list_audit_events(  # noqa: PLR0913 - each is a query parameter of the route
    *,
    services: Services,
    caller: Caller,
    actor: Annotated[str | None, Query(max_length=64, description="The user who acted; pool: the pool itself.")] = None,
    reason: Annotated[list[Reason] | None, Query(max_length=40, description="Any of these reasons.")] = None,
    target: Annotated[str | None, Query(max_length=300, description="The object, such as 'node gpu1'.")] = None,
    workload: Annotated[str | None, Query(max_length=64, pattern=r"^[A-Za-z0-9._-]*$")] = None,
    since: Moment = None,
    until: Moment = None,
    before: Annotated[str | None, Query(max_length=60, description="``next`` of the previous page.")] = None,
    limit: Limit = 100,
) -> Response:
    """List events that match all filters, newest first; ``since`` is inclusive, ``until`` is exclusive."""
    wanted = AuditFilter(
        actor=actor or None,
        reasons=tuple(reason or ()),
        target=target or None,
        workload=(await services.workloads.get(caller, workload)).id if workload else None,
        since=since,
        until=until,
        before=_place(before) if before else None,
        limit=limit,
    )
    found = await services.history.audit(caller, wanted)
    following = audit_cursor(found[-1]) if len(found) == limit else None
    return answer(AuditPage(events=[event_view(event) for event in found], next=following))


def _place(cursor: str) -> tuple[float, int]:
    found = parse_audit_cursor(cursor)
    if found is None:
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST, "before: is not a cursor of this pool.", "Repeat the request without it."
        )
    return found
