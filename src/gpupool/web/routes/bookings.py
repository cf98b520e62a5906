"""Bookings of nodes: looking, making and cancelling them."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from gpupool.api.routes.bookings import BookingId
from gpupool.domain.windows import read_zone
from gpupool.services.bookings import Booked
from gpupool.web.asked import Ask, Asked, attempt
from gpupool.web.deps import SentForm
from gpupool.web.listing import Column, Kind, listing
from gpupool.web.pages import back_to
from gpupool.web.views import bookings as views
from gpupool.web.views.bookings import BookingLine
from gpupool.web.views.typed import Typed

router = APIRouter()

BOOKINGS = (
    Column[BookingLine]("name", "For", lambda row: row.name, note=lambda row: row.note or None),
    Column[BookingLine]("state", "State", lambda row: row.state, Kind.STATE),
    Column[BookingLine]("nodes", "Nodes", lambda row: ", ".join(row.nodes)),
    Column[BookingLine]("from", "From", lambda row: row.starts_at, Kind.TIME),
    Column[BookingLine]("to", "To", lambda row: row.ends_at, Kind.TIME),
    Column[BookingLine]("who", "Who may use them", lambda row: row.who),
    Column[BookingLine]("id", "Id", lambda row: row.id, note=lambda row: f"made by {row.created_by}"),
)


@router.get("/bookings")
async def bookings(ask: Ask) -> Response:
    """Those that hold and are to come."""
    return await _list(ask)


async def _list(ask: Asked, typed: Typed | None = None) -> Response:
    now, zone = ask.services.accounting.now(), ask.services.info.time_zone
    found = views.schedule(await ask.services.bookings.bookings(), now)
    nodes = await ask.services.nodes.nodes()
    return ask.show(
        "bookings.html",
        "Bookings",
        typed or views.blank(now, read_zone(zone)),
        schedule=found,
        zone=zone,
        nodes=[node.name for node in nodes],
        models=sorted({gpu.model for node in nodes for gpu in node.report.gpus}),
        projects=[project.name for project in await ask.services.access.projects()],
        table=listing(ask.request, BOOKINGS, found.lines, name="bookings", default_sort="from"),
    )


@router.post("/bookings")
async def make(ask: Ask, form: SentForm) -> Response:
    """Book nodes, and say what that means for those who are in the way."""

    async def change() -> Response:
        zone = read_zone(ask.services.info.time_zone)
        request = views.request_of(form, ask.services.accounting.now(), zone)
        return back_to("/bookings", said=_told(await ask.services.bookings.make(ask.visitor, request)))

    return await attempt(form, change, lambda typed: _list(ask, typed))


def _told(made: Booked) -> str:
    nodes = ", ".join(made.booking.nodes[:5]) + (" and more" if len(made.booking.nodes) > 5 else "")
    many = "replica" if made.evictions == 1 else "replicas"
    evicted = (
        f" {made.evictions} {many} of training run there now and will be evicted in time." if made.evictions else ""
    )
    return f"{nodes} booked for {made.booking.name}.{evicted}" + "".join(f" Warning: {text}." for text in made.warnings)


@router.post("/bookings/{booking_id}/cancel")
async def cancel(ask: Ask, form: SentForm, booking_id: BookingId) -> Response:
    """Take a booking back."""
    del form
    await ask.services.bookings.cancel(ask.visitor, booking_id)
    return back_to("/bookings", said="The booking is cancelled.")
