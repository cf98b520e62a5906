"""Reservations in the format of calendars (iCalendar, RFC 5545)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from gpupool.domain.nodes.reservation import Reservation

MAX_LINE_BYTES = 75  # longer lines are continued on the next one, after a space
_ESCAPED = re.compile(r"([\\\\;,])")


def to_calendar(reservations: Sequence[Reservation], pool_id: str) -> str:
    """Return a calendar with one event for each reservation; its lines end with CRLF."""
    lines = ["BEGIN:VCALENDAR", "VERSION:2.0", "PRODID:-//gpupool//reservations//EN", "X-WR-CALNAME:GPU reservations"]
    for reservation in reservations:
        lines += _event(reservation, pool_id)
    return "".join(f"{part}\r\n" for line in [*lines, "END:VCALENDAR"] for part in _folded(line))


def _event(reservation: Reservation, pool_id: str) -> Iterator[str]:
    who = ", ".join([*reservation.projects, *(f"user {name}" for name in reservation.users)]) or "maintenance"
    about = f"{', '.join(reservation.nodes)} for {who}" + (f"\n{reservation.note}" if reservation.note else "")
    yield "BEGIN:VEVENT"
    yield f"UID:{reservation.id}@{pool_id}"
    yield f"DTSTAMP:{_time(reservation.starts_at)}"
    yield f"DTSTART:{_time(reservation.starts_at)}"
    yield f"DTEND:{_time(reservation.ends_at)}"
    yield f"SUMMARY:{_text(reservation.name)}"
    yield f"LOCATION:{_text(', '.join(reservation.nodes))}"
    yield f"DESCRIPTION:{_text(about)}"
    yield f"CATEGORIES:{'MAINTENANCE' if reservation.maintenance else 'RESERVATION'}"
    yield "END:VEVENT"


def _time(epoch_s: float) -> str:
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y%m%dT%H%M%SZ")


def _text(value: str) -> str:
    printable = "".join(one for one in value if one.isprintable() or one == "\n")
    return _ESCAPED.sub(r"\\\1", printable).replace("\n", "\\n")


def _folded(line: str) -> Iterator[str]:
    """Yield the parts of a line, each of at most ``MAX_LINE_BYTES``, without cutting a character."""
    part, size = "", 0
    for one in line:
        width = len(one.encode())
        if size + width > MAX_LINE_BYTES:
            yield part
            part, size = " ", 1
        part, size = part + one, size + width
    yield part
