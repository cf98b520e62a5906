"""What has happened in the pool, as pages or live."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from starlette.responses import Response

from gpupool.api import streams
from gpupool.api.deps import Caller, Closing, EventId, Limit, Services, answer
from gpupool.api.mapping import event_view
from gpupool.api.schemas import MAX_PAGE, EventList, EventView
from gpupool.domain.access import Actor
from gpupool.domain.ids import WorkloadId
from gpupool.services.pool import PoolServices
from gpupool.services.ports import EventFilter

router = APIRouter(prefix="/v1/events", tags=["events"])

OfWorkload = Annotated[str, Query(max_length=64, pattern=r"^[A-Za-z0-9._-]*$", description="Only of this workload.")]
STREAMED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Server-sent events: event (an EventView), each with its id.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}


@router.get("", response_model=EventList)
async def list_events(
    services: Services,
    caller: Caller,
    after_id: EventId = 0,
    workload: OfWorkload | None = None,
    limit: Limit = 100,
    newest: Annotated[bool, Query(description="The newest instead of the oldest that match.")] = False,
) -> Response:
    """Events above ``after_id``, oldest first."""
    of = await _workload_id(services, caller, workload)
    wanted = EventFilter(after_id=after_id, workload=of, newest=newest, limit=limit)
    events = await services.history.events(caller, wanted)
    return answer(EventList(events=[event_view(event) for event in events]))


@router.get("/stream", response_class=Response, responses=STREAMED)
async def stream_events(
    services: Services,
    caller: Caller,
    closing: Closing,
    after_id: EventId = 0,
    workload: OfWorkload | None = None,
    last_event_id: Annotated[str | None, Header(pattern=r"^[0-9]{0,18}$")] = None,
) -> Response:
    """Events above ``after_id`` as they happen, without end; resumes from ``Last-Event-ID``."""
    of = await _workload_id(services, caller, workload)

    async def read(after: int) -> list[EventView]:
        wanted = EventFilter(after_id=after, workload=of, limit=MAX_PAGE)
        return [event_view(event) for event in await services.history.events(caller, wanted)]

    start = int(last_event_id) if last_event_id else after_id
    return streams.sse(streams.follow_events(start, read, services.history.subscribe(of), closing))


async def _workload_id(services: PoolServices, caller: Actor, ref: str | None) -> WorkloadId | None:
    if not ref:
        return None
    return (await services.workloads.get(caller, ref)).id
