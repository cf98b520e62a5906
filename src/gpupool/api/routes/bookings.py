"""Reservations of nodes."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter
from fastapi.params import Path
from starlette.responses import Response

from gpupool.api.deps import Caller, Services, answer
from gpupool.api.schemas.bookings import BookingBody, BookingList, BookingView, NewBookingView
from gpupool.domain.booking import Booking
from gpupool.services.bookings import BookingRequest

router = APIRouter(prefix="/v1", tags=["bookings"])

BookingId = Annotated[str, Path(pattern=r"^b[0-9a-f]{1,15}$", description="A reservation's id.")]


@router.get("/bookings", response_model=BookingList)
async def list_bookings(services: Services, _caller: Caller) -> Response:
    """Those that hold or are to come."""
    return answer(BookingList(bookings=[BookingView(**_fields(b)) for b in await services.bookings.bookings()]))


@router.post("/bookings", status_code=201, response_model=NewBookingView)
async def make_booking(services: Services, caller: Caller, body: BookingBody) -> Response:
    """Keep nodes for projects and users, or for maintenance. For administrators."""
    asked: dict[str, Any] = body.model_dump()
    asked |= {name: tuple(asked[name]) for name in ("nodes", "models", "projects", "users")}
    made = await services.bookings.make(caller, BookingRequest(**asked))
    view = NewBookingView(**_fields(made.booking), evictions=made.evictions, warnings=list(made.warnings))
    return answer(view, 201)


@router.delete("/bookings/{booking_id}", status_code=204)
async def cancel_booking(services: Services, caller: Caller, booking_id: BookingId) -> Response:
    """Take a reservation back. For administrators."""
    await services.bookings.cancel(caller, booking_id)
    return Response(status_code=204)


def _fields(booking: Booking) -> dict[str, Any]:
    return {
        "id": booking.id,
        "name": booking.name,
        "nodes": list(booking.nodes),
        "starts_at": booking.starts_at,
        "ends_at": booking.ends_at,
        "projects": list(booking.projects),
        "users": list(booking.users),
        "lead_s": booking.lead_s,
        "created_by": booking.created_by,
        "note": booking.note,
        "holds": booking.starts_at <= time.time(),
    }
