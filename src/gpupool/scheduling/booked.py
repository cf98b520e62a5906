"""Whom to send away because nodes are booked for others."""

from __future__ import annotations

from gpupool.domain.booking import Booking
from gpupool.domain.units import format_duration
from gpupool.scheduling.session import Session
from gpupool.scheduling.values import Eviction, EvictionKind, RunningReplica

NOTICE_MARGIN_S = 2.0  # beyond its grace: by so much earlier is somebody told to go


def evict_booked(session: Session) -> None:
    """Send training away that runs where others have booked, so early that its grace is over when they come."""
    bookings = session.cluster.bookings
    if not bookings.all:
        return
    session.alarms.append(bookings.next_change())
    for booking in bookings.all.values():
        if booking.ends_at <= session.now:
            continue
        for node in booking.nodes:
            for key in sorted(session.cluster.on_node(node)):
                running = session.demand.running.get(key)
                if running is not None and key not in session.leaving:
                    _evict_in_time(session, booking, node, running)


def _evict_in_time(session: Session, booking: Booking, node: str, running: RunningReplica) -> None:
    lease, end = running.lease, running.expected_end
    ends_before = end is not None and end <= booking.starts_at
    if not running.preemptible or ends_before or booking.admits(lease.project, lease.user):
        return
    due = booking.starts_at - running.grace_s - NOTICE_MARGIN_S
    if due > session.now:
        session.alarms.append(due)
        return
    left = booking.starts_at - session.now
    when = f"in {format_duration(left)}" if left > 0 else "now"
    purpose = "" if booking.projects or booking.users else " for maintenance"
    reason = f"{node} is booked{purpose} ({booking.name}) and has to be free {when}."
    session.leaving.add(running.key)
    session.evictions.append(Eviction(*running.key, lease.workload, lease.index, EvictionKind.BOOKING, reason))
