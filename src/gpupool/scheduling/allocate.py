"""Allocate: give what is free to whoever is owed it most."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from math import inf

from gpupool.scheduling.cluster import Claim
from gpupool.scheduling.ledger import Account
from gpupool.scheduling.queue import Group, Lane
from gpupool.scheduling.reserve import reserve_if_starving, starving_shapes
from gpupool.scheduling.session import Ghost, Session
from gpupool.scheduling.shape import Shape
from gpupool.scheduling.values import HoldKind, PendingReplica, ReplicaKey

_Turn = tuple[bool, float, float, int]  # over quota, part of the quota held, queued at, project


class Turns:
    """Whose turn it is among projects: the most deprived, with the first replica of its lane.

    A project's key can only grow while work is granted, so an old key is a lower bound: it is checked when it comes
    up and put back if it was too low.
    """

    def __init__(
        self, session: Session, projects: Iterable[int], dead: set[Shape], wanted: Callable[[int, Shape], bool]
    ) -> None:
        """Of ``projects``, those with shapes ``wanted`` and not (yet) ``dead``; that set may grow on the way."""
        self._session, self._dead, self._wanted = session, dead, wanted
        self._lanes: dict[int, Lane] = {}
        ledger, even = session.ledger, session.even_share
        lanes = session.demand.lanes
        chosen = [p for p in projects if not dead.issuperset(lanes[p])]
        self._heap: list[_Turn] = [(*ledger.deprivation(p, 1, even), -inf, p) for p in chosen]
        heapify(self._heap)

    def next(self) -> tuple[Group, PendingReplica, Lane] | None:
        """Who is next; the caller grants it or drops its group from the lane, then calls ``again``."""
        while self._heap:
            turn = heappop(self._heap)
            fresh, first = self._fresh(turn[3])
            if first is None or fresh is None:
                continue
            if fresh <= turn:
                return (*first, self._lane(turn[3]))
            heappush(self._heap, fresh)
        return None

    def again(self, project: int) -> None:
        """The project may have more work."""
        heappush(self._heap, (False, -inf, -inf, project))

    def _fresh(self, project: int) -> tuple[_Turn | None, tuple[Group, PendingReplica] | None]:
        first = self._first(project)
        if first is None:
            return None, None
        group, replica = first
        key = self._session.ledger.deprivation(
            project, self._session.placer.least_permille(group.shape), self._session.even_share
        )
        return (*key, replica.queued_at, project), first

    def _first(self, project: int) -> tuple[Group, PendingReplica] | None:
        if project not in self._lanes:
            first = self._session.first(project, self._alive)
            if first is not None:
                return first
        lane = self._lane(project)
        while (first := lane.peek()) is not None and first[0].shape in self._dead:
            lane.bar(first[0].shape)
        return first

    def _lane(self, project: int) -> Lane:
        if project not in self._lanes:
            self._lanes[project] = self._session.lane(project, self._alive)
        return self._lanes[project]

    def _alive(self, project: int, shape: Shape) -> bool:
        return shape not in self._dead and self._wanted(project, shape)


def settle_holds(session: Session) -> None:
    """Start those whose kept space has become free (or who fit elsewhere); forget holds that came to nothing."""
    for key in list(session.ghosts):
        replica = session.demand.pending.get(key)
        if replica is None:
            continue  # it is on the way out to be moved here
        ghost = session.drop_ghost(key)
        claim = _start_of(session, ghost)
        if claim is not None:
            session.grant(replica, claim, ghost.account)
        elif _still_promising(session, ghost):
            session.add_ghost(ghost)


def _start_of(session: Session, ghost: Ghost) -> Claim | None:
    group = session.demand.group_of(ghost.hold.key)
    within = ghost.claim.permille <= session.ledger.room(ghost.account)
    if within and session.placer.holds(ghost.claim):
        return ghost.claim
    return None if group is None else session.find(group.shape, ghost.account)


def _still_promising(session: Session, ghost: Ghost) -> bool:
    row, used = ghost.claim.row, ghost.claim.gpu > 0
    if not session.cluster.up[row] or not session.cluster.available[row][used].all():
        return False
    if ghost.hold.kind is HoldKind.RESERVED:
        return ghost.claim.permille <= session.ledger.room(ghost.account)
    mark = session.log.checkpoint()
    for key in session.leaving_beside(ghost.claim.row, ghost.account):
        session.lift_running(key)
    within = ghost.claim.permille <= session.ledger.room(ghost.account)
    promising = within and session.placer.holds(ghost.claim)
    session.log.rollback(mark)
    return promising


def allocate(session: Session) -> bool:
    """Grant what fits, the most deprived project first; returns whether the bound on grants cut it short.

    A replica that does not fit does not block another one, unless it has starved long enough for a reservation.
    """
    starving = starving_shapes(session)
    fits = session.placer.fits_anywhere
    dead = {s for s in session.demand.shape_users if not (s in starving or fits(s) or _may_slip(session, s))}
    turns = Turns(session, list(session.demand.lanes), dead, lambda p, shape: _within_limit(session, p, shape))
    while (first := turns.next()) is not None:
        if len(session.grants) >= session.settings.max_grants:
            return True
        group, replica, lane = first
        if not _try(session, group, replica, dead):
            lane.drop()
            if not _within_limit(session, group.account.project, group.shape):
                lane.bar(group.shape)
        turns.again(group.account.project)
    return False


def _within_limit(session: Session, project: int, shape: Shape) -> bool:
    ledger = session.ledger
    return bool(ledger.used[project] + session.placer.least_permille(shape) <= ledger.limit[project])


def _try(session: Session, group: Group, replica: PendingReplica, dead: set[Shape]) -> bool:
    claim = session.find(group.shape, group.account)
    if claim is None:
        claim = _under_reservations(session, group.shape, group.account, replica)
    if claim is not None:
        session.grant(replica, claim, group.account)
        return True
    reserved = reserve_if_starving(session, group, replica)
    if not session.placer.fits_anywhere(group.shape):
        session.backfills_left -= 1
        if not _may_slip(session, group.shape):
            dead.add(group.shape)
    return reserved


def _may_slip(session: Session, shape: Shape) -> bool:
    timed = session.demand.timed[shape] > 0 and session.backfills_left > 0
    return timed and bool(_reserved_after(session, session.now))


def _under_reservations(session: Session, shape: Shape, account: Account, replica: PendingReplica) -> Claim | None:
    """A place in reserved space, for a replica that is sure to end before the reservation begins."""
    if replica.max_time_s is None or session.backfills_left <= 0:
        return None
    end = session.now + replica.max_time_s
    lifted = _reserved_after(session, end)
    if not lifted:
        return None
    for key in lifted:
        session.cluster.discharge(session.ghosts[key].claim)
    claim = session.find(shape, account)
    for key in lifted:
        session.cluster.charge(session.ghosts[key].claim)
    return claim


def _reserved_after(session: Session, end: float) -> list[ReplicaKey]:
    ghosts = session.ghosts.items()
    reserved = [(k, g.hold.starts_at) for k, g in ghosts if g.hold.kind is HoldKind.RESERVED]
    return [key for key, starts_at in reserved if max(end, session.now + 1) <= starts_at < inf]
