"""Eviction from nodes that are reserved for others."""

from __future__ import annotations

from gpupool.domain.nodes.reservation import Reservation
from gpupool.domain.units import format_duration
from gpupool.scheduling.session import SchedulingSession
from gpupool.scheduling.values import Eviction, EvictionKind, RunningReplica

NOTICE_MARGIN_S = 2.0  # added to the grace period, so that the node is free in time


def evict_for_reservations(session: SchedulingSession) -> None:
    """Evict training from nodes that are reserved for others, early enough for its grace period."""
    reservations = session.cluster.reservations
    if not reservations.all:
        return
    session.outcome.wake_running_at(reservations.next_change())
    for reservation in reservations.all.values():
        if reservation.ends_at <= session.now:
            continue
        for node in reservation.nodes:
            for key in sorted(session.cluster.on_node(node)):
                running = session.demand.running.get(key)
                if running is not None and key not in session.outcome.leaving:
                    _evict_in_time(session, reservation, node, running)


def _evict_in_time(session: SchedulingSession, reservation: Reservation, node: str, running: RunningReplica) -> None:
    lease, end = running.lease, running.expected_end
    ends_before = end is not None and end <= reservation.starts_at
    if not running.preemptible or ends_before or reservation.admits(lease.project, lease.user):
        return
    due = reservation.starts_at - running.grace_s - NOTICE_MARGIN_S
    if due > session.now:
        session.outcome.wake_running_at(due)
        return
    left = reservation.starts_at - session.now
    when = f"in {format_duration(left)}" if left > 0 else "now"
    purpose = "" if reservation.projects or reservation.users else " for maintenance"
    reason = f"{node} is reserved{purpose} ({reservation.name}) and must be free {when}."
    session.outcome.evict(Eviction(*running.key, lease.workload, lease.index, EvictionKind.BOOKING, reason))
