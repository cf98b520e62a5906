"""Bookings: whole nodes kept for named projects or users, or for maintenance, between two times."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Booking:
    """Nodes that only some may use from ``starts_at`` until ``ends_at`` (seconds since the epoch).

    ``projects`` and ``users`` say who; both empty: nobody, the nodes are under maintenance. Training that still runs
    there at the start is evicted with its notice. Work that would not end before is not placed there: work with a
    time limit is judged by it, protected work without one from ``lead_s`` before the start.
    """

    id: str
    name: str
    nodes: tuple[str, ...]
    starts_at: float
    ends_at: float
    projects: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    lead_s: float = 43_200.0
    created_by: str = ""
    note: str = ""

    def admits(self, project: str, user: str) -> bool:
        """Whether somebody's work may use the nodes while the booking holds."""
        return project in self.projects or user in self.users
