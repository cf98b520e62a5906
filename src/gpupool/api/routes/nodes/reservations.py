"""Reservations of nodes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter
from fastapi.params import Path
from starlette.responses import Response

from gpupool.api.deps import Administrator, Caller, Services, Word, answer
from gpupool.api.paging import Paged
from gpupool.api.schemas.nodes.reservations import NewReservationView, ReservationBody, ReservationList, ReservationView
from gpupool.api.views.calendar import to_calendar
from gpupool.domain.nodes.reservation import Reservation
from gpupool.services.nodes.reservations import ReservationRequest

router = APIRouter(prefix="/v1", tags=["bookings"])

ReservationId = Annotated[str, Path(pattern=r"^b[0-9a-f]{1,15}$", description="A reservation's id.")]


@router.get("/bookings", response_model=ReservationList)
async def list_reservations(
    *,
    services: Services,
    _caller: Caller,
    page: Paged,
    node: Word | None = None,
    project: Word | None = None,
    user: Word | None = None,
) -> Response:
    """List the active and planned reservations that match all filters, in the order of their start."""
    found = [
        each
        for each in await services.reservations.list_all()
        if (node is None or node in each.nodes)
        and (project is None or project in each.projects)
        and (user is None or user in each.users)
    ]
    rows, following = page.cut(found)
    views = [ReservationView.of(each, holds=_holds(each)) for each in rows]
    return answer(ReservationList(bookings=views, next_cursor=following))


@router.get("/bookings.ics", response_class=Response, responses={200: {"content": {"text/calendar": {}}}})
async def get_reservation_calendar(services: Services, _caller: Caller) -> Response:
    """Return the active and planned reservations as an iCalendar file, to which calendars can subscribe."""
    return calendar_answer(await services.reservations.list_all(), services.info.pool_id)


def calendar_answer(found: Sequence[Reservation], pool_id: str) -> Response:
    """Return reservations as an iCalendar file."""
    headers = {"content-disposition": 'attachment; filename="reservations.ics"'}
    return Response(to_calendar(found, pool_id), media_type="text/calendar; charset=utf-8", headers=headers)


@router.get("/bookings/{booking_id}", response_model=ReservationView)
async def get_reservation(services: Services, _caller: Caller, booking_id: ReservationId) -> Response:
    """Return an active or planned reservation."""
    found = services.reservations.get(booking_id)
    return answer(ReservationView.of(found, holds=_holds(found)))


@router.post("/bookings", status_code=201, response_model=NewReservationView)
async def create_reservation(services: Services, caller: Administrator, body: ReservationBody) -> Response:
    """Reserve nodes for projects and users, or for maintenance. For administrators."""
    asked: dict[str, Any] = body.model_dump()
    asked |= {name: tuple(asked[name]) for name in ("nodes", "models", "projects", "users")}
    made = await services.reservations.make(caller, ReservationRequest(**asked))
    own = made.reservation
    view = NewReservationView.of(own, holds=_holds(own), evictions=made.evictions, warnings=list(made.warnings))
    return answer(view, 201, f"/v1/bookings/{own.id}")


@router.delete("/bookings/{booking_id}", status_code=204)
async def cancel_reservation(services: Services, caller: Administrator, booking_id: ReservationId) -> Response:
    """Cancel a reservation. For administrators."""
    await services.reservations.cancel(caller, booking_id)
    return Response(status_code=204)


def _holds(reservation: Reservation) -> bool:
    return reservation.starts_at <= time.time()
