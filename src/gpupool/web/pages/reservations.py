"""The reservations page: a timeline, and forms that create and cancel reservations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo

from fastapi import APIRouter
from starlette.responses import Response

from gpupool.api.routes.nodes.reservations import ReservationId, calendar_answer
from gpupool.api.schemas.nodes.reservations import ReservationBody
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.reservation import Reservation
from gpupool.domain.work.time_windows import parse_moment, read_zone
from gpupool.services.nodes.reservations import CreatedReservation, ReservationRequest
from gpupool.web.deps import Form, SentForm, reads
from gpupool.web.kit import form_input
from gpupool.web.kit.form_input import FormValues
from gpupool.web.kit.listing import Column, ColumnKind, listing, table_names
from gpupool.web.page_context import AdministratorContext, Context, PageContext, handle_form
from gpupool.web.rendering import back_to

WIDTH = 1000.0
TICKS = 5
MIN_SPAN_S = 3600.0  # of the drawing
DEFAULT_LEAD_S = 43_200.0


@dataclass(frozen=True, slots=True)
class ReservationLine:
    """One reservation. ``x`` and ``width`` are its place in the drawing."""

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
    """All reservations by start; ``now`` is the position of the current time in the drawing."""

    lines: tuple[ReservationLine, ...]
    ticks: tuple[float, ...]
    now: float


def schedule(reservations: Sequence[Reservation], now: float) -> Schedule:
    """Return the drawing: from the first reservation or now to the end of the last one."""
    since = min([now, *(reservation.starts_at for reservation in reservations)])
    until = max([now + MIN_SPAN_S, *(reservation.ends_at for reservation in reservations)])
    scale = WIDTH / (until - since)
    return Schedule(
        lines=tuple(_line(reservation, now, since, scale) for reservation in reservations),
        ticks=tuple(since + (until - since) * tick / (TICKS - 1) for tick in range(TICKS)),
        now=round((now - since) * scale, 1),
    )


def _line(reservation: Reservation, now: float, since: float, scale: float) -> ReservationLine:
    users = (f"user {name}" for name in reservation.users)
    return ReservationLine(
        id=reservation.id,
        name=reservation.name,
        state="active" if reservation.starts_at <= now else "upcoming",
        nodes=reservation.nodes,
        starts_at=reservation.starts_at,
        ends_at=reservation.ends_at,
        who=", ".join([*reservation.projects, *users]) or "maintenance",
        maintenance=reservation.maintenance,
        created_by=reservation.created_by,
        note=reservation.note,
        x=round((reservation.starts_at - since) * scale, 1),
        width=max(4.0, round((reservation.ends_at - reservation.starts_at) * scale, 1)),
    )


def blank(now: float, zone: tzinfo) -> form_input.FormValues:
    """Return the form values of a new reservation, from the next full hour."""
    hour = datetime.fromtimestamp(now, zone).replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    return form_input.FormValues({"starts": hour.strftime("%Y-%m-%dT%H:%M"), "length": "2h", "lead": "12h"})


def request_of(form: Form, now: float, zone: tzinfo) -> ReservationRequest:
    """Read a reservation request from a form; raise ``GpupoolError``."""
    with form_input.name_field_in_errors("starts"):
        starts_at = parse_moment(form.text("starts"), zone, now)
    length = form_input.seconds(form, "length")
    if length is None:
        wrong = GpupoolError(ErrorCode.INVALID_DURATION, "A duration is required.", "Example: 2h.")
        raise form_input.FieldError("length", wrong)
    fields = {
        "name": form.text("name"),
        "starts_at": starts_at,
        "ends_at": starts_at + length,
        "nodes": form_input.names(form, "nodes"),
        "gpus": form_input.count(form, "gpus"),
        "models": form_input.lines(form, "models"),
        "projects": form_input.names(form, "projects"),
        "users": form_input.names(form, "users"),
        "maintenance": form.is_checked("maintenance"),
        "lead_s": form_input.seconds(form, "lead", zero=True),
        "note": form_input.note(form),
    }
    if fields["lead_s"] is None:
        fields["lead_s"] = DEFAULT_LEAD_S
    form_input.validate(ReservationBody, fields)
    return ReservationRequest(**fields)  # type: ignore[arg-type]  # just checked


router = APIRouter()

COLUMNS = (
    Column[ReservationLine]("name", "For", lambda row: row.name, note=lambda row: row.note or None),
    Column[ReservationLine]("state", "State", lambda row: row.state, ColumnKind.STATE),
    Column[ReservationLine]("nodes", "Nodes", lambda row: ", ".join(row.nodes)),
    Column[ReservationLine]("from", "From", lambda row: row.starts_at, ColumnKind.TIME),
    Column[ReservationLine]("to", "To", lambda row: row.ends_at, ColumnKind.TIME),
    Column[ReservationLine]("who", "Users", lambda row: row.who),
    Column[ReservationLine]("id", "Id", lambda row: row.id, note=lambda row: f"created by {row.created_by}"),
)


@router.get("/bookings", dependencies=[reads(*table_names())])
async def reservations(context: Context) -> Response:
    """Show current and future reservations."""
    return await _list(context)


async def _list(context: PageContext, typed: FormValues | None = None) -> Response:
    now, zone = context.services.accounting.now(), context.services.info.time_zone
    found = schedule(await context.services.reservations.list_all(), now)
    nodes = await context.services.nodes.nodes()
    return context.show(
        "reservations.html",
        "Reservations",
        typed or blank(now, read_zone(zone)),
        schedule=found,
        zone=zone,
        nodes=[node.name for node in nodes],
        models=sorted({gpu.model for node in nodes for gpu in node.report.gpus}),
        projects=[project.name for project in await context.services.access.projects()],
        table=listing(context.request, COLUMNS, found.lines, name="bookings", default_sort="from"),
    )


@router.get("/bookings.ics")
async def calendar(context: Context) -> Response:
    """Return the reservations as an iCalendar file."""
    return calendar_answer(await context.services.reservations.list_all(), context.services.info.pool_id)


@router.post("/bookings")
async def make(context: AdministratorContext, form: SentForm) -> Response:
    """Create a reservation, and show how many replicas will be evicted."""

    async def change() -> Response:
        zone = read_zone(context.services.info.time_zone)
        request = request_of(form, context.services.accounting.now(), zone)
        return back_to(
            "/bookings", notice=_created_notice(await context.services.reservations.make(context.visitor, request))
        )

    return await handle_form(form, change, lambda typed: _list(context, typed))


def _created_notice(made: CreatedReservation) -> str:
    nodes = ", ".join(made.reservation.nodes[:5]) + (" and more" if len(made.reservation.nodes) > 5 else "")
    many = "replica" if made.evictions == 1 else "replicas"
    evicted = f" {made.evictions} {many} running there now will be evicted before it starts." if made.evictions else ""
    return f"{nodes} reserved for {made.reservation.name}.{evicted}" + "".join(
        f" Warning: {text}." for text in made.warnings
    )


@router.post("/bookings/{booking_id}/cancel")
async def cancel(context: AdministratorContext, form: SentForm, booking_id: ReservationId) -> Response:
    """Cancel a reservation."""
    del form
    await context.services.reservations.cancel(context.visitor, booking_id)
    return back_to("/bookings", notice="Reservation cancelled.")
