"""Reservations of nodes: who may be placed where, as time passes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil, inf, log

import numpy as np
import numpy.typing as npt

from gpupool.domain.nodes.reservation import Reservation
from gpupool.domain.units import format_duration

WORTH_S = 300.0  # training is not placed where it would be evicted sooner
_STEP = 1.1  # times are rounded up by less than this factor, so that there are few different shapes


@dataclass(frozen=True, slots=True)
class Guest:
    """The properties of a replica that matter on reserved nodes.

    ``admitted`` are the ids of the reservations for it, ``limit_s`` is its maximum run time (infinite: unknown). On a
    node that is reserved for others it is not placed later than ``lead_s`` before the start, unless it ends before.
    None: the reservation's own lead time.
    """

    admitted: frozenset[str]
    limit_s: float
    lead_s: float | None


@dataclass(slots=True)
class Reservations:
    """All reservations, and which of them block a replica at ``now``.

    ``before`` contains the seconds before a start at which placement changes for some replica.
    """

    all: dict[str, Reservation] = field(default_factory=dict)
    by_node: dict[str, list[Reservation]] = field(default_factory=dict)
    now: float = 0.0
    before: set[float] = field(default_factory=set)

    def put(self, reservation: Reservation) -> None:
        """Add a reservation, or replace the one with its id."""
        self.all[reservation.id] = reservation
        self._sort()

    def remove(self, reservation_id: str) -> None:
        """Remove a reservation."""
        self.all.pop(reservation_id, None)
        self._sort()

    def _sort(self) -> None:
        self.by_node = {}
        for reservation in sorted(self.all.values(), key=lambda b: (b.starts_at, b.id)):
            for node in reservation.nodes:
                self.by_node.setdefault(node, []).append(reservation)

    def guest(self, project: str, user: str, max_time_s: float | None, grace_s: float | None) -> Guest | None:
        """Return the properties of a replica that matter to reservations; None without reservations.

        ``grace_s`` is the time that it needs to end; None: it is protected, so it is not evicted.
        """
        if not self.all:
            return None
        admitted = frozenset(b.id for b in self.all.values() if b.admits(project, user))
        limit_s = inf if max_time_s is None else _rounded(max_time_s)
        lead_s = None if grace_s is None else _rounded(grace_s + WORTH_S)
        self.before.update(t for t in (limit_s, lead_s) if t is not None and t < inf)
        return Guest(admitted, limit_s, lead_s)

    def in_the_way(self, guest: Guest, node: str) -> Reservation | None:
        """Return the reservation that keeps the guest off a node now, or None."""
        for reservation in self.by_node.get(node, ()):
            if reservation.ends_at <= self.now or reservation.id in guest.admitted:
                continue
            lead_s = reservation.lead_s if guest.lead_s is None else guest.lead_s
            ends_before = self.now + guest.limit_s <= reservation.starts_at
            if self.now >= reservation.starts_at or (not ends_before and self.now >= reservation.starts_at - lead_s):
                return reservation
        return None

    def reserved_for(self, guest: Guest, node: str) -> bool:
        """Return True if a current reservation of the node is for the guest."""
        found = self.by_node.get(node, ())
        return any(b.starts_at <= self.now < b.ends_at and b.id in guest.admitted for b in found)

    def pass_time(self, now: float) -> Iterable[str]:
        """Set the time to ``now``; return the nodes where placement changed for some replica."""
        before, self.now = self.now, now
        times = self._times()
        changed: list[bool] = np.any((times > min(before, now)) & (times <= max(before, now)), axis=1).tolist()
        moved = [made for made, new in zip(self.all.values(), changed, strict=True) if new]
        return {node for reservation in moved for node in reservation.nodes}

    def next_change(self) -> float:
        """Return the next time at which placement changes."""
        times = self._times()
        return float(times[times > self.now].min(initial=inf))

    def _times(self) -> npt.NDArray[np.float64]:
        before = [0.0, *sorted(self.before)]
        starts = np.array([b.starts_at for b in self.all.values()])
        own = np.array([[b.starts_at - b.lead_s, b.ends_at] for b in self.all.values()]).reshape(-1, 2)
        return np.concatenate([starts[:, None] - np.array(before)[None, :], own], axis=1)


def reservation_texts(reservation: Reservation, now: float) -> tuple[str, tuple[str, ...]]:
    """Return a text for the period in which a reservation blocks placement, and hints."""
    left, length = reservation.starts_at - now, reservation.ends_at - reservation.starts_at
    if left <= 0:
        return f"for another {format_duration(reservation.ends_at - now)}", ()
    shorter = f"give it a time limit below {format_duration(left / _STEP)}"
    return f"in {format_duration(left)} for {format_duration(length)}", (shorter,)


def _rounded(seconds: float) -> float:
    return float(_STEP ** ceil(log(max(seconds, 1.0), _STEP) - 1e-9))
