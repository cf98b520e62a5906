"""Bookings of nodes: those that hold and are to come, drawn in time, and the form that makes one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo

from gpupool.api.schemas.bookings import BookingBody
from gpupool.domain.booking import Booking
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.windows import parse_moment
from gpupool.services.bookings import BookingRequest
from gpupool.web.deps import Form
from gpupool.web.views import typed

WIDTH = 1000.0
TICKS = 5
SHORTEST_S = 3600.0  # that is drawn
DEFAULT_LEAD_S = 43_200.0


@dataclass(frozen=True, slots=True)
class BookingLine:
    """One booking. ``x`` and ``width`` are its place in the drawing."""

    id: str
    name: str
    state: str
    nodes: tuple[str, ...]
    starts_at: float
    ends_at: float
    who: str
    maintenance: bool
    created_by: str
    note: str
    x: float
    width: float


@dataclass(frozen=True, slots=True)
class Schedule:
    """All bookings in the order in which they begin; ``now`` is the place of the moment in the drawing."""

    lines: tuple[BookingLine, ...]
    ticks: tuple[float, ...]
    now: float


def schedule(bookings: Sequence[Booking], now: float) -> Schedule:
    """The drawing begins with what holds, or now, and ends with the last of them."""
    since = min([now, *(booking.starts_at for booking in bookings)])
    until = max([now + SHORTEST_S, *(booking.ends_at for booking in bookings)])
    scale = WIDTH / (until - since)
    return Schedule(
        lines=tuple(_line(booking, now, since, scale) for booking in bookings),
        ticks=tuple(since + (until - since) * tick / (TICKS - 1) for tick in range(TICKS)),
        now=round((now - since) * scale, 1),
    )


def _line(booking: Booking, now: float, since: float, scale: float) -> BookingLine:
    users = (f"user {name}" for name in booking.users)
    return BookingLine(
        id=booking.id,
        name=booking.name,
        state="active" if booking.starts_at <= now else "upcoming",
        nodes=booking.nodes,
        starts_at=booking.starts_at,
        ends_at=booking.ends_at,
        who=", ".join([*booking.projects, *users]) or "nobody: maintenance",
        maintenance=booking.maintenance,
        created_by=booking.created_by,
        note=booking.note,
        x=round((booking.starts_at - since) * scale, 1),
        width=max(4.0, round((booking.ends_at - booking.starts_at) * scale, 1)),
    )


def blank(now: float, zone: tzinfo) -> typed.Typed:
    """The form for a new booking, from the next full hour on."""
    hour = datetime.fromtimestamp(now, zone).replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    return typed.Typed({"starts": hour.strftime("%Y-%m-%dT%H:%M"), "length": "2h", "lead": "12h"})


def request_of(form: Form, now: float, zone: tzinfo) -> BookingRequest:
    """What a sent form asks for. Raises ``GpupoolError``."""
    with typed.about("starts"):
        starts_at = parse_moment(form.text("starts"), zone, now)
    length = typed.seconds(form, "length")
    if length is None:
        wrong = GpupoolError(ErrorCode.INVALID_DURATION, "It is not said how long it lasts.", "Write 2h, for example.")
        raise typed.FieldError("length", wrong)
    fields = {
        "name": form.text("name"),
        "starts_at": starts_at,
        "ends_at": starts_at + length,
        "nodes": typed.names(form, "nodes"),
        "gpus": typed.count(form, "gpus"),
        "models": typed.lines(form, "models"),
        "projects": typed.names(form, "projects"),
        "users": typed.names(form, "users"),
        "maintenance": form.ticked("maintenance"),
        "lead_s": typed.seconds(form, "lead", zero=True),
        "note": typed.note(form),
    }
    if fields["lead_s"] is None:
        fields["lead_s"] = DEFAULT_LEAD_S
    typed.accepted(BookingBody, fields)
    return BookingRequest(**fields)  # type: ignore[arg-type]  # just checked
