"""Allocate: give what is free to whoever is owed it most."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from math import inf

from gpupool.scheduling.backfill import may_slip, under_reservations
from gpupool.scheduling.gang import Placed, Refusals, find_all, others_of
from gpupool.scheduling.lanes import Lane
from gpupool.scheduling.queue import Group
from gpupool.scheduling.reserve import reservations_left, reserve_if_starving, starving_shapes
from gpupool.scheduling.session import Ghost, Session
from gpupool.scheduling.shape import Shape
from gpupool.scheduling.values import HoldKind, PendingReplica, ReplicaKey

_Turn = tuple[int, float, float, float, int]  # see ``Shares.order``; queued at, project


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
        shares, lanes = session.shares, session.demand.lanes
        self._live = session.demand.shape_users.keys() - dead
        self._least = {shape: session.placer.least_permille(shape) for shape in self._live}
        least = self._least.__getitem__  # of all that live: a lower bound of what the first of a lane needs
        chosen = [(p, live) for p in projects if (live := lanes[p].keys() & self._live)]
        self._heap: list[_Turn] = [(*shares.order(p, min(map(least, live))), -inf, p) for p, live in chosen]
        heapify(self._heap)

    def next(self) -> tuple[Group, PendingReplica, Lane] | None:
        """Who is next; the caller grants it or drops its group from the lane, then calls ``again``."""
        while self._heap:
            turn = heappop(self._heap)
            fresh, first = self._fresh(turn[-1])
            if first is None or fresh is None:
                continue
            if fresh <= turn:
                return (*first, self._lane(turn[-1]))
            heappush(self._heap, fresh)
        return None

    def again(self, project: int) -> None:
        """The project may have more work."""
        heappush(self._heap, (-1, -inf, -inf, -inf, project))

    def _fresh(self, project: int) -> tuple[_Turn | None, tuple[Group, PendingReplica] | None]:
        first = self._first(project)
        if first is None:
            return None, None
        group, replica = first
        need = self._least[group.shape] * group.size
        return (*self._session.shares.order(project, need), replica.queued_at, project), first

    def _first(self, project: int) -> tuple[Group, PendingReplica] | None:
        if self._dead.issuperset(self._session.demand.lanes[project]):
            return None
        if project not in self._lanes:
            first = self._session.first(project, self._live, self._alive)
            if first is not None:
                return first
        lane = self._lane(project)
        while (first := lane.peek()) is not None and first[0].shape in self._dead:
            lane.bar(first[0].shape)
        return first

    def _lane(self, project: int) -> Lane:
        if project not in self._lanes:
            self._lanes[project] = self._session.lane(project, self._live, self._alive)
        return self._lanes[project]

    def _alive(self, project: int, shape: Shape) -> bool:
        return shape not in self._dead and self._wanted(project, shape)


def settle_holds(session: Session) -> None:
    """Start those whose kept space has become free (or who fit elsewhere); forget holds that came to nothing.

    The members of a gang start together, or all holds of it stay, or none.
    """
    together: dict[ReplicaKey, list[ReplicaKey]] = {}
    for key in session.ghosts:
        if key in session.demand.pending:  # else it is on the way out to be moved here
            together.setdefault(session.demand.gangs.leader(key), []).append(key)
    for leader, keys in together.items():
        ghosts = [session.drop_ghost(key) for key in keys]
        group = session.demand.group_of(leader)
        placed = _start_of(session, group, leader, ghosts)
        for replica, claim in placed:
            session.note_grant(replica, claim, ghosts[0].account)
        if not placed and group is not None and _still_promising(session, group, ghosts):
            for ghost in ghosts:
                session.add_ghost(ghost)


def _start_of(session: Session, group: Group | None, leader: ReplicaKey, ghosts: list[Ghost]) -> Placed:
    if group is None:
        return []
    mark, pending = session.log.checkpoint(), session.demand.pending
    if _take(session, group, ghosts):
        placed = [(pending[ghost.hold.key], ghost.claim) for ghost in ghosts]
        return placed + others_of(session, group, pending[leader], placed)
    session.log.rollback(mark)
    return find_all(session, group, pending[leader]) if session.placer.fits_anywhere(group.shape) else []


def _take(session: Session, group: Group, ghosts: list[Ghost]) -> bool:
    """Charge what was kept, if all of it is free and within the bounds; else some of it is charged."""
    for ghost in ghosts:
        if ghost.claim.permille > session.ledger.room(ghost.account) or not session.placer.holds(ghost.claim):
            return False
        if not session.placer.may_enter(group.shape, ghost.claim.row):
            return False
        session.charge(ghost.claim, ghost.account)
    return len(ghosts) >= group.size


def _still_promising(session: Session, group: Group, ghosts: list[Ghost]) -> bool:
    cluster = session.cluster
    if len(ghosts) < group.size:
        return False
    for ghost in ghosts:
        row = ghost.claim.row
        if not cluster.up[row] or not cluster.available[row][ghost.claim.gpu > 0].all():
            return False
        if not session.placer.may_enter(group.shape, row):
            return False
    if ghosts[0].hold.kind is HoldKind.RESERVED:
        return sum(ghost.claim.permille for ghost in ghosts) <= session.ledger.room(group.account)
    mark = session.log.checkpoint()
    leaving = {key for ghost in ghosts for key in session.leaving_beside(ghost.claim.row, ghost.account)}
    for key in leaving:
        session.lift_running(key)
    promising = _take(session, group, ghosts)
    session.log.rollback(mark)
    return promising


def allocate(session: Session) -> bool:
    """Grant what fits, the most deprived project first; returns whether the bound on grants cut it short.

    A replica that does not fit does not block another one, unless it has starved long enough for a reservation.
    """
    starving = starving_shapes(session)
    fits = session.placer.fits_anywhere
    dead = {s for s in session.demand.shape_users if not (s in starving or fits(s) or may_slip(session, s))}
    refused = Refusals()
    turns = Turns(session, list(session.demand.lanes), dead, lambda p, shape: _within_limit(session, p, shape))
    while (first := turns.next()) is not None:
        if len(session.grants) >= session.settings.max_grants:
            return True
        group, replica, lane = first
        if not _try(session, group, replica, dead, refused):
            lane.drop()
            if not _within_limit(session, group.account.project, group.shape):
                lane.bar(group.shape)
        turns.again(group.account.project)
    return False


def _within_limit(session: Session, project: int, shape: Shape) -> bool:
    return session.ledger.within_limits(project, session.placer.least_permille(shape))


def _try(session: Session, group: Group, replica: PendingReplica, dead: set[Shape], refused: Refusals) -> bool:
    placed = [] if refused.cover(group) else find_all(session, group, replica)
    if not placed:
        refused.add(session, group)
        placed = under_reservations(session, group, replica)
    for member, claim in placed:
        session.note_grant(member, claim, group.account)
    if placed:
        return True
    reserved = reserve_if_starving(session, group, replica)
    if reserved and reservations_left(session) > 0:
        return True  # the next of the same shape may be starving as well
    if not session.placer.fits_anywhere(group.shape):
        session.backfills_left -= 1
        if not may_slip(session, group.shape):
            dead.add(group.shape)
    return reserved
