"""Reservations as people read and write them, with times in the pool's time zone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from gpupool.cli.render.text import Style, table
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.units import parse_duration_s
from gpupool.domain.windows import read_zone

Json = dict[str, Any]
HEADERS = ("ID", "FOR", "STATE", "NODES", "FROM", "TO", "WHO")
_FORMAT = "%Y-%m-%d %H:%M"


def booking_lines(bookings: Sequence[Json], zone: str, style: Style) -> list[str]:
    """The table of reservations."""
    rows = [
        (
            b["id"],
            b["name"],
            "holds" if b["holds"] else "to come",
            ", ".join(b["nodes"]),
            moment_text(b["starts_at"], zone),
            moment_text(b["ends_at"], zone),
            ", ".join([*b["projects"], *(f"user {name}" for name in b["users"])]) or "nobody: maintenance",
        )
        for b in bookings
    ]
    return table(HEADERS, rows, style, state=2)


def moment_text(moment: float, zone: str) -> str:
    """``Mon 2026-11-23 09:00``."""
    return datetime.fromtimestamp(moment, read_zone(zone)).strftime(f"%a {_FORMAT}")


def parse_moment(text: str, zone: str, now: float) -> float:
    """Seconds since the epoch in ``now``, ``+2h`` or ``2026-11-23 09:00``; raises ``GpupoolError(INVALID_REQUEST)``."""
    if text == "now":
        return now
    if text.startswith("+"):
        return now + parse_duration_s(text[1:])
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST, f"'{text[:40]}' is not a time.", "Write '2026-11-23 09:00', now, or +2h."
        ) from error
    return (found if found.tzinfo else found.replace(tzinfo=read_zone(zone))).timestamp()
