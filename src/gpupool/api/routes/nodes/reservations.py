"""Reservations of nodes."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter
from fastapi.params import Path
from starlette.responses import Response

from gpupool.api.deps import Administrator, Caller, Services, answer
from gpupool.api.schemas.nodes.reservations import NewReservationView, ReservationBody, ReservationList, ReservationView
from gpupool.domain.nodes.reservation import Reservation
from gpupool.services.nodes.reservations import ReservationRequest

router = APIRouter(prefix="/v1", tags=["bookings"])

ReservationId = Annotated[str, Path(pattern=r"^b[0-9a-f]{1,15}$", description="A reservation's id.")]


@router.get("/bookings", response_model=ReservationList)
async def list_reservations(services: Services, _caller: Caller) -> Response:
    """List the reservations that hold now or later."""
    found = await services.reservations.list_all()
    return answer(ReservationList(bookings=[ReservationView.of(b, holds=_holds(b)) for b in found]))


@router.post("/bookings", status_code=201, response_model=NewReservationView)
async def make_reservation(services: Services, caller: Administrator, body: ReservationBody) -> Response:
    """Keep nodes for projects and users, or for maintenance. For administrators."""
    asked: dict[str, Any] = body.model_dump()
    asked |= {name: tuple(asked[name]) for name in ("nodes", "models", "projects", "users")}
    made = await services.reservations.make(caller, ReservationRequest(**asked))
    own = made.reservation
    view = NewReservationView.of(own, holds=_holds(own), evictions=made.evictions, warnings=list(made.warnings))
    return answer(view, 201)


@router.delete("/bookings/{booking_id}", status_code=204)
async def cancel_reservation(services: Services, caller: Administrator, booking_id: ReservationId) -> Response:
    """Take a reservation back. For administrators."""
    await services.reservations.cancel(caller, booking_id)
    return Response(status_code=204)


def _holds(reservation: Reservation) -> bool:
    return reservation.starts_at <= time.time()
