"""Reservations as people read them, with times in the pool's time zone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from gpupool.cli.render.text import Style, table
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
