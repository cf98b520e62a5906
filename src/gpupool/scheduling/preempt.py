"""Preempt: end less important work of the same project, so that somebody who is more important can start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

import numpy as np

from gpupool.scheduling.claims import Bools
from gpupool.scheduling.clearing import Clearing
from gpupool.scheduling.giving_way import without_reservations
from gpupool.scheduling.queue import Group
from gpupool.scheduling.room_maker import RoomMaker
from gpupool.scheduling.values import EvictionKind, PendingReplica
from gpupool.scheduling.victims import VictimPool


class Preemption:
    """What is tried in one cycle, with what is known to fail already."""

    def __init__(self, room: RoomMaker) -> None:
        self._room = room
        self._hopeless: set[tuple[object, ...]] = set()

    def projects(self) -> list[int]:
        """Those where somebody waits who is more important than somebody evictable."""
        demand = self._room.session.demand
        if max(demand.priorities_waiting, default=-inf) <= min(demand.priorities_evictable, default=inf):
            return []
        return [p for p in demand.lanes if max(demand.importance[p]) > self.lowest(p)]

    def lowest(self, project: int) -> float:
        """The lowest priority of anybody evictable in a project."""
        return min(self._room.session.demand.evictable.get(project, ()), default=inf)

    def preempt(self, group: Group, replica: PendingReplica) -> bool:
        """Hold space for somebody, at the cost of less important work of the project if need be."""
        session, project = self._room.session, group.account.project
        if replica.priority <= self.lowest(project) or group.shape.gpuless:
            return False
        if self._room.nominate(group, replica):
            return True
        known = (group.shape, group.size, group.gang, group.joins, project, replica.priority, group.account.user)
        if known in self._hopeless:
            return False
        self._room.work.begin()
        pool = self._room.pool(project)
        among = (pool.pieces.priority < replica.priority) & pool.alive
        room = session.ledger.room(group.account)
        if self._room.permille(group) > room:
            return self._preempt_for_bounds(group, replica, pool, among)
        budget = room // group.size
        found = self._preempt_from(group, replica, pool, among, budget)
        if not found:
            with without_reservations(session, self._gives_way_in(project)) as anything:
                found = anything and self._preempt_from(group, replica, pool, among, budget)
        if not found:
            self._hopeless.add(known)
        return found

    def _gives_way_in(self, project: int) -> Callable[[Group], bool]:
        """Who gives way to a project: to one within a quota that was set, those who were promised nothing."""
        within = self._room.rights.promised(project, 0)
        return lambda reserved: within and self._room.gives_way(reserved)

    def _preempt_from(self, group: Group, replica: PendingReplica, pool: VictimPool, among: Bools, budget: int) -> bool:
        search = self._room.search(group, pool, among, _nobody, budget)
        return search is not None and self._room.evict(group, replica, search, EvictionKind.PREEMPT)

    def _preempt_for_bounds(self, group: Group, replica: PendingReplica, pool: VictimPool, among: Bools) -> bool:
        """The bounds on use are in the way: evict one after another until they are not, then give back."""
        groups = self._until_it_fits(group, replica, pool, among)
        for unit in reversed(groups.copy()):
            rest = [other for other in groups if other is not unit]
            if self._fits_without(group, replica, pool, rest):
                groups = rest
        slots = tuple(slot for unit in groups for slot in unit)
        return bool(slots) and self._room.carry_out(group, replica, pool, Clearing(slots), EvictionKind.PREEMPT)

    def _until_it_fits(self, group: Group, replica: PendingReplica, pool: VictimPool, among: Bools) -> list[list[int]]:
        p, at, users = pool.pieces, np.flatnonzero(among), pool.holders.user
        other_user = users[np.where(p.slot[at] >= 0, p.slot[at], 0)] != group.account.user
        at = at[np.lexsort((-p.newness[at], p.priority[at], other_user))]
        for end in range(1, 1 + min(len(at), self._room.session.settings.max_nodes_searched)):
            units = pool.slots_of(at[:end].tolist())
            if self._fits_without(group, replica, pool, units):
                return units
        return []

    def _fits_without(
        self, group: Group, replica: PendingReplica, pool: VictimPool, units: Sequence[Sequence[int]]
    ) -> bool:
        """Whether there would be a place if those were gone."""
        session = self._room.session
        self._room.work.look()
        mark = session.log.checkpoint()
        for key in pool.keys(slot for unit in units for slot in unit):
            session.lift_running(key)
        fits = self._room.claims(group, replica) is not None
        session.log.rollback(mark)
        return fits


def _nobody(_units: Sequence[Sequence[int]]) -> list[int]:
    return []
