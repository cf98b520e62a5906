"""Bookings of nodes as the scheduler keeps them: who may be placed where, as time goes on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil, inf, log

import numpy as np
import numpy.typing as npt

from gpupool.domain.booking import Booking
from gpupool.domain.units import format_duration
from gpupool.scheduling.values import PendingReplica

WORTH_S = 300.0  # training is not placed where it would be sent away sooner
_STEP = 1.1  # times are rounded up by less than this, so that those alike to the scheduler stay few


@dataclass(frozen=True, slots=True)
class Guest:
    """What matters of a replica where nodes are booked.

    ``admitted`` are the ids of the bookings that are for it, ``limit_s`` is the longest it may run (infinite: unknown).
    On a node that is booked for others it is not placed later than ``lead_s`` before the beginning, if it does not end
    before; None: as the booking says.
    """

    admitted: frozenset[str]
    limit_s: float
    lead_s: float | None


@dataclass(slots=True)
class Bookings:
    """All bookings, and which of them stand in whose way at ``now``.

    ``before`` are the seconds before a beginning at which something changes for somebody.
    """

    all: dict[str, Booking] = field(default_factory=dict)
    by_node: dict[str, list[Booking]] = field(default_factory=dict)
    now: float = 0.0
    before: set[float] = field(default_factory=set)

    def put(self, booking: Booking) -> None:
        """Keep a booking, in place of one with its id."""
        self.all[booking.id] = booking
        self._sort()

    def remove(self, booking_id: str) -> None:
        """Forget one."""
        self.all.pop(booking_id, None)
        self._sort()

    def _sort(self) -> None:
        self.by_node = {}
        for booking in sorted(self.all.values(), key=lambda b: (b.starts_at, b.id)):
            for node in booking.nodes:
                self.by_node.setdefault(node, []).append(booking)

    def guest(self, replica: PendingReplica) -> Guest | None:
        """What matters of a replica to bookings; None while there are none."""
        if not self.all:
            return None
        admitted = frozenset(b.id for b in self.all.values() if b.admits(replica.project, replica.user))
        limit_s = inf if replica.max_time_s is None else _rounded(replica.max_time_s)
        lead_s = _rounded(replica.grace_s + WORTH_S) if replica.preemptible else None
        self.before.update(t for t in (limit_s, lead_s) if t is not None and t < inf)
        return Guest(admitted, limit_s, lead_s)

    def in_the_way(self, guest: Guest, node: str) -> Booking | None:
        """The booking that keeps somebody off a node now."""
        for booking in self.by_node.get(node, ()):
            if booking.ends_at <= self.now or booking.id in guest.admitted:
                continue
            lead_s = booking.lead_s if guest.lead_s is None else guest.lead_s
            ends_before = self.now + guest.limit_s <= booking.starts_at
            if self.now >= booking.starts_at or (not ends_before and self.now >= booking.starts_at - lead_s):
                return booking
        return None

    def kept_for(self, guest: Guest, node: str) -> bool:
        """Whether a booking that holds now is for somebody."""
        found = self.by_node.get(node, ())
        return any(b.starts_at <= self.now < b.ends_at and b.id in guest.admitted for b in found)

    def pass_time(self, now: float) -> Iterable[str]:
        """It is ``now``; the nodes on which somebody may be now who might not, or the other way round."""
        before, self.now = self.now, now
        times = self._times()
        changed: list[bool] = np.any((times > min(before, now)) & (times <= max(before, now)), axis=1).tolist()
        return {node for booking, new in zip(self.all.values(), changed, strict=True) if new for node in booking.nodes}

    def next_change(self) -> float:
        """When that will be the case next."""
        times = self._times()
        return float(times[times > self.now].min(initial=inf))

    def _times(self) -> npt.NDArray[np.float64]:
        before = [0.0, *sorted(self.before)]
        starts = np.array([b.starts_at for b in self.all.values()])
        own = np.array([[b.starts_at - b.lead_s, b.ends_at] for b in self.all.values()]).reshape(-1, 2)
        return np.concatenate([starts[:, None] - np.array(before)[None, :], own], axis=1)


def told(booking: Booking, now: float) -> tuple[str, tuple[str, ...]]:
    """For how long a booking stands in the way, in words, and what would help."""
    left, length = booking.starts_at - now, booking.ends_at - booking.starts_at
    if left <= 0:
        return f"for another {format_duration(booking.ends_at - now)}", ()
    shorter = f"give it a time limit below {format_duration(left / _STEP)}"
    return f"in {format_duration(left)} for {format_duration(length)}", (shorter,)


def _rounded(seconds: float) -> float:
    return float(_STEP ** ceil(log(max(seconds, 1.0), _STEP) - 1e-9))
