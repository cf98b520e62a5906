"""Allocate: give what is free to whoever is owed it most."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from heapq import heappop, heappush
from math import inf

import numpy as np

from gpupool.scheduling.backfill import may_slip, under_reservations
from gpupool.scheduling.gang import Refusals, find_all
from gpupool.scheduling.lanes import Lane
from gpupool.scheduling.queue import Group
from gpupool.scheduling.reserve import affordable, reservations_left, reserve_if_starving, starving_shapes
from gpupool.scheduling.session import Session
from gpupool.scheduling.shape import Shape
from gpupool.scheduling.values import PendingReplica

_Turn = tuple[int, float, float, float, int]  # see ``Shares.order``; queued at, project
_FOR_SMALLEST = -inf  # in the place of a time: the order is a lower bound


class Turns:
    """Whose turn it is among projects: the most deprived, with the first replica of its lane.

    A project's key can only grow while work is granted, so an old key is a lower bound: it is checked when it comes
    up and put back if it was too low. First it is that of the smallest shape of all, then of the project's smallest.
    """

    def __init__(
        self, session: Session, projects: Iterable[int], dead: set[Shape], wanted: Callable[[int, Shape], bool]
    ) -> None:
        """Of ``projects``, those with shapes ``wanted`` and not (yet) ``dead``; that set may grow on the way."""
        self._session, self._dead, self._wanted = session, dead, wanted
        self._lanes: dict[int, Lane] = {}
        self._live = session.demand.shape_users.keys() - dead
        self._alive, self._dead_when = self._live, len(dead)
        self._least = {shape: session.placer.least_permille(shape) for shape in self._live}
        who = np.fromiter(projects, np.int64) if self._live else np.zeros(0, np.int64)
        least = min(self._least.values(), default=0)
        self._untouched = iter(session.shares.orders(who, least) if len(who) else ())
        self._upcoming = next(self._untouched, None)
        self._heap: list[_Turn] = []

    def next(self) -> tuple[Group, PendingReplica, Lane] | None:
        """Who is next; the caller grants it or drops its group from the lane, then calls ``again``."""
        while (self._heap or self._upcoming) and self.alive():
            if self._upcoming is not None and (not self._heap or self._upcoming[:3] <= self._heap[0][:3]):
                project, self._upcoming = self._upcoming[-1], next(self._untouched, None)
                self._bound(project)
                continue
            turn = heappop(self._heap)
            fresh, first = self._fresh(turn[-1])
            if first is None or fresh is None:
                continue
            if fresh <= turn:
                return (*first, self._lane(turn[-1]))
            heappush(self._heap, fresh)
        return None

    def _bound(self, project: int) -> None:
        live = self._session.demand.lanes[project].keys() & self.alive()
        if live:
            least = min(map(self._least.__getitem__, live))
            heappush(self._heap, (*self._session.shares.order(project, least), _FOR_SMALLEST, project))

    def again(self, project: int) -> None:
        """The project may have more work."""
        heappush(self._heap, (-1, -inf, -inf, _FOR_SMALLEST, project))

    def alive(self) -> AbstractSet[Shape]:
        """The shapes that are not (yet) dead."""
        if len(self._dead) != self._dead_when:
            self._alive, self._dead_when = self._live - self._dead, len(self._dead)
        return self._alive

    def _fresh(self, project: int) -> tuple[_Turn | None, tuple[Group, PendingReplica] | None]:
        first = self._first(project)
        if first is None:
            return None, None
        group, replica = first
        need = self._least[group.shape] * group.size
        return (*self._session.shares.order(project, need), replica.queued_at, project), first

    def _first(self, project: int) -> tuple[Group, PendingReplica] | None:
        if self.alive().isdisjoint(self._session.demand.lanes[project]):
            return None
        if project not in self._lanes:
            first = self._session.first(project, self.alive(), self._wanted)
            if first is not None:
                return first
        lane = self._lane(project)
        while (first := lane.peek()) is not None and first[0].shape in self._dead:
            lane.bar(first[0].shape)
        return first

    def _lane(self, project: int) -> Lane:
        if project not in self._lanes:
            self._lanes[project] = self._session.lane(project, self.alive(), self._wanted)
        return self._lanes[project]


def allocate(session: Session) -> bool:
    """Grant what fits, the most deprived project first; returns whether it was cut short and is to go on.

    A replica that does not fit does not block another one, unless it has starved long enough for a reservation.
    """
    starving = starving_shapes(session)
    dead = _without_chance(session, session.demand.shape_users.keys() - starving)
    refused = Refusals()
    limited = session.ledger.limited()
    turns = Turns(
        session,
        list(session.demand.lanes),
        dead,
        lambda project, shape: project not in limited or _within_limit(session, project, shape),
    )
    while (first := turns.next()) is not None:
        if len(session.grants) >= session.settings.max_grants:
            return True
        group, replica, lane = first
        tried = _try(session, group, replica, dead, refused)
        if session.cut_short:
            return True
        if not tried:
            lane.drop()
            if group.shape in dead:  # somebody took the place that others hoped for, too
                dead |= _without_chance(session, turns.alive() - affordable(session, starving))
            if not _within_limit(session, group.account.project, group.shape):
                lane.bar(group.shape)
        turns.again(group.account.project)
    return False


def _without_chance(session: Session, shapes: AbstractSet[Shape]) -> set[Shape]:
    without = shapes - session.placer.fitting(shapes)
    return set(without - may_slip(session, without))


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
        if not may_slip(session, [group.shape]):
            dead.add(group.shape)
    return reserved
