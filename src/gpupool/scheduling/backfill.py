"""Backfill: work that ends in time may use space that is kept for somebody who starts later.

It is known to end in time by its time limit. Work that may be evicted again is also let in when most past runs of its
user in its project would have ended in time; should it run longer than that when the reserved space is free but for
it, it is evicted.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from gpupool.domain.units import format_duration
from gpupool.scheduling.gang import Placed, find_all
from gpupool.scheduling.queue import Group
from gpupool.scheduling.session import Ghost, Session
from gpupool.scheduling.shape import Shape
from gpupool.scheduling.values import Eviction, EvictionKind, HoldKind, PendingReplica, ReplicaKey, RunningReplica


def may_slip(session: Session, shapes: Iterable[Shape]) -> set[Shape]:
    """Those of some shapes of which somebody might be let into reserved space."""
    if session.backfills_left <= 0 or not _reserved_after(session, session.now):
        return set()
    demand, known = session.demand, session.demand.ordering.past.known
    return {shape for shape in shapes if demand.timed[shape] > 0 or (known and demand.restartable[shape] > 0)}


def under_reservations(session: Session, group: Group, replica: PendingReplica) -> Placed:
    """Places in reserved space, charged, for work that is sure or likely to end before the reservation begins."""
    if not session.ghosts or session.backfills_left <= 0:
        return []
    run_s = _run_s(session, group, replica)
    if run_s is None:
        return []
    lifted = _reserved_after(session, session.now + run_s)
    if replica.max_time_s is None or replica.max_time_s > run_s:  # told apart later by who was there first
        lifted = [key for key in lifted if session.ghosts[key].hold.since < session.now]
    if not lifted:
        return []
    for key in lifted:
        session.cluster.discharge(session.ghosts[key].claim)
    placed = find_all(session, group, replica)
    for key in lifted:
        session.cluster.charge(session.ghosts[key].claim)
    return placed


def _run_s(session: Session, group: Group, replica: PendingReplica) -> float | None:
    """How long it will run: at most its time limit; work that may be evicted as long as most of its kind."""
    likely = None
    if replica.preemptible:
        likely = likely_s(session, replica.project, replica.user, session.placer.least_permille(group.shape))
    return min((s for s in (replica.max_time_s, likely) if s is not None), default=None)


def _reserved_after(session: Session, end: float) -> list[ReplicaKey]:
    ghosts = session.ghosts.items()
    reserved = [(k, g.hold.starts_at) for k, g in ghosts if g.hold.kind is HoldKind.RESERVED]
    return [key for key, starts_at in reserved if max(end, session.now + 1) <= starts_at < inf]


def end_overruns(session: Session) -> None:
    """Evict work from reserved space that runs longer than foreseen, if whoever the space is kept for starts then."""
    units: dict[ReplicaKey, list[Ghost]] = {}
    for key, ghost in session.ghosts.items():
        if ghost.hold.kind is HoldKind.RESERVED:
            units.setdefault(session.demand.gangs.leader(key), []).append(ghost)
    for ghosts in units.values():
        late = [key for key in _let_in(session, ghosts) if _overran(session, key)]
        if late and _free_without(session, ghosts, late):
            _evict(session, late, ghosts[0])


def _let_in(session: Session, ghosts: list[Ghost]) -> list[ReplicaKey]:
    """Who runs on space that was reserved already when they started."""
    found: dict[ReplicaKey, None] = {}
    for ghost in ghosts:
        row, wanted = ghost.claim.row, ghost.claim.gpu > 0
        for key in sorted(session.cluster.on_node(session.cluster.name_of(row))):
            running = session.demand.running.get(key)
            if running is None or key in session.leaving or running.started_at <= ghost.hold.since:
                continue
            if running.preemptible and (session.cluster.claims[key].gpu[wanted] > 0).any():
                found[key] = None
    return list(found)


def _overran(session: Session, key: ReplicaKey) -> bool:
    due = foreseen_end(session, session.demand.running[key])
    if due is not None and due > session.now:
        session.alarms.append(due)
    return due is not None and due <= session.now


def foreseen_end(session: Session, running: RunningReplica) -> float | None:
    """When a run should be over: by its time limit, or when most of the past runs of its kind were."""
    lease, likely = running.lease, None
    if running.preemptible:
        usual = likely_s(session, lease.project, lease.user, lease.permille)
        likely = None if usual is None else running.started_at + usual
    return min((end for end in (running.expected_end, likely) if end is not None), default=None)


def likely_s(session: Session, project: str, user: str, permille: int) -> float | None:
    """In how long most past runs of a kind had ended; None when too few are known."""
    kind = (project, user, permille)
    if kind not in session.likely_s:
        session.likely_s[kind] = session.demand.ordering.past.likely_s(*kind)
    return session.likely_s[kind]


def _free_without(session: Session, ghosts: list[Ghost], late: list[ReplicaKey]) -> bool:
    mark = session.log.checkpoint()
    for ghost in ghosts:
        session.discharge(ghost.claim, ghost.account)
    for key in late:
        session.lift_running(key)
    free = True
    for ghost in ghosts:
        free = free and session.placer.holds(ghost.claim)
        session.charge(ghost.claim, ghost.account)
    session.log.rollback(mark)
    return free


def _evict(session: Session, late: list[ReplicaKey], ghost: Ghost) -> None:
    for key in late:
        ran = format_duration(session.now - session.demand.running[key].started_at)
        who = ghost.hold.workload
        reason = f"It was backfilled under a reservation, that of {who}, and ran longer than predicted: {ran}."
        session.leaving.add(key)
        session.evictions.append(Eviction(*key, *ghost.hold.key, EvictionKind.BACKFILL, reason))
