"""A look back: who did what to what, and what the pool did, by filters."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from gpupool.api.deps import Caller, Limit, Services, answer
from gpupool.api.mapping import event_view
from gpupool.api.schemas import AuditPage
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.events import Event, Reason
from gpupool.services.ports import AuditFilter

router = APIRouter(prefix="/v1/audit", tags=["events"])

Moment = Annotated[float | None, Query(ge=0, le=1e11, description="Seconds since the epoch.")]


@router.get("", response_model=AuditPage)
async def look_back(  # noqa: PLR0913 - each is an input of the route
    *,
    services: Services,
    caller: Caller,
    actor: Annotated[str | None, Query(max_length=64, description="Who did it; pool: the pool itself.")] = None,
    reason: Annotated[list[Reason] | None, Query(max_length=40, description="One of these.")] = None,
    target: Annotated[str | None, Query(max_length=300, description="What it concerns, as in 'node gpu1'.")] = None,
    workload: Annotated[str | None, Query(max_length=64, pattern=r"^[A-Za-z0-9._-]*$")] = None,
    since: Moment = None,
    until: Moment = None,
    before: Annotated[str | None, Query(max_length=60, description="``next`` of the page before.")] = None,
    limit: Limit = 100,
) -> Response:
    """Events that fit all that is asked for, the newest first; ``since`` is in, ``until`` is not."""
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
    following = _cursor(found[-1]) if len(found) == limit else None
    return answer(AuditPage(events=[event_view(event) for event in found], next=following))


def _cursor(event: Event) -> str:
    return f"{event.at!r}-{event.id}"


def _place(cursor: str) -> tuple[float, int]:
    at, _, last = cursor.partition("-")
    try:
        found = float(at), int(last)
    except ValueError:
        found = (-1.0, 0)
    if not (0 <= found[0] < 1e11 and 0 < found[1] < 2**62):
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST, "before: is not one that this pool gave.", "Start again without it."
        )
    return found
