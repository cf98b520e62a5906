"""Bookings of nodes: rows and back, and the few statements."""

from __future__ import annotations

from dataclasses import asdict

from sqlalchemy import Connection, delete, select

from gpupool.domain.booking import Booking
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.store import tables as t
from gpupool.store.columns import plain_text
from gpupool.store.database import upsert

_LISTS = ("nodes", "projects", "users")


def bookings(conn: Connection) -> list[Booking]:
    """All bookings in the order in which they begin."""
    rows = conn.execute(select(t.bookings).order_by(t.bookings.c.starts_at, t.bookings.c.id)).mappings()
    return [Booking(**{**row, **{name: tuple(row[name]) for name in _LISTS}}) for row in rows]


def save_booking(conn: Connection, booking: Booking) -> None:
    """Insert or replace."""
    row = asdict(booking) | {name: list(getattr(booking, name)) for name in _LISTS}
    row |= {name: plain_text(row[name]) for name in ("name", "note", "created_by")}
    upsert(conn, t.bookings, row)


def delete_booking(conn: Connection, booking_id: str) -> None:
    """Remove; raises ``GpupoolError(UNKNOWN_BOOKING)``."""
    if not conn.execute(delete(t.bookings).where(t.bookings.c.id == booking_id)).rowcount:
        raise GpupoolError(
            ErrorCode.UNKNOWN_BOOKING, f"There is no reservation '{booking_id}'.", "See `gpupool reserve list`."
        )
