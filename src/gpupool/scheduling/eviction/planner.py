"""Plan evictions: hold places for all replicas that start together, and evict the victims there.

Victims need time to end, so nothing is granted here. The GPUs are held (nominated) and granted by the cycle that finds
them free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from gpupool.scheduling.eviction.notices import evict
from gpupool.scheduling.eviction.reclaim_policy import ReclaimPolicy
from gpupool.scheduling.eviction.victim_search import Clearing, Refused, Search, Work, clear_for_gang
from gpupool.scheduling.eviction.victims import VictimPool
from gpupool.scheduling.gang_placement import model_choices, place
from gpupool.scheduling.placement.capacity import Need
from gpupool.scheduling.session import SchedulingSession
from gpupool.scheduling.state.allocation import Bools, Claim
from gpupool.scheduling.state.cluster import domains
from gpupool.scheduling.state.ledger import UNBOUNDED
from gpupool.scheduling.state.queue import Group
from gpupool.scheduling.values import EvictionKind, HoldKind, PendingReplica, ReplicaKey

OTHERS = -1  # instead of a project number: all projects that others may take from
ALL_PRIORITIES = -2  # instead of a project number: all projects
Why = Callable[[SchedulingSession, ReplicaKey, PendingReplica], str]  # the reason of an eviction, for its owner


class EvictionPlanner:
    """The victim searches of one cycle: their state, and the actions on their results."""

    def __init__(self, session: SchedulingSession) -> None:
        self.session = session
        size = len(session.ledger.projects) + len(session.demand.running)
        self.work = Work(session.settings.max_looks, size)
        self.rights = ReclaimPolicy(session)
        self._pools: dict[int, VictimPool] = {}

    # --- entitled projects

    def permille(self, group: Group) -> int:
        """Return the least thousandths with which a group starts."""
        return self.session.placer.least_permille(group.shape) * group.size

    def is_owed(self, group: Group) -> bool:
        """Return True if a group may reclaim the GPUs that it needs."""
        return self.rights.may_reclaim(group.account, self.permille(group))

    def promised(self, group: Group) -> bool:
        """Return True if a group stays within a configured quota."""
        need, rights = self.permille(group), self.rights
        return rights.promised(group.account.project, need) or rights.models.may_take(group.account, need)

    def gives_way(self, group: Group) -> bool:
        """Return True if the reservations of a group yield to configured quotas of others."""
        return not (self.is_owed(group) and self.promised(group))

    # --- victims

    def pool(self, project: int) -> VictimPool:
        """Return the possible victims of a project, of OTHERS, or of ALL_PRIORITIES."""
        if project not in self._pools:
            chosen = self.rights.sources()
            if project != OTHERS:
                chosen = (np.arange(len(chosen)) == project) | (project == ALL_PRIORITIES)
            self._pools[project] = VictimPool(self.session, chosen, self.rights.over)
        return self._pools[project]

    def search(self, group: Group, pool: VictimPool, among: Bools, refused: Refused, budget: int) -> Search | None:
        """Return a search among some pieces that ``refused`` accepts; None when there are none."""
        session, cluster, gang = self.session, self.session.cluster, group.gang
        if gang is not None and gang.strict and group.joins is not None:  # only in the domain of the running members
            where, members = domains(cluster, gang.within), session.demand.gangs.get(group.joins)
            rows = [cluster.claims[key].row for key in (members.running if members else ()) if key in cluster.claims]
            among &= np.isin(where[pool.pieces.row], where[[row for row in rows if row >= 0]])
        if not among.any():
            return None
        need = Need(group.shape, session.placer.accepted(group.shape), min(budget, UNBOUNDED), group.size)
        return Search(cluster, pool, need, among, refused, self.work, session.settings.max_nodes_searched)

    # --- results

    def claims(self, group: Group, replica: PendingReplica, row: int | None = None) -> list[Claim] | None:
        """Return charged places for all replicas that must start together, on one row if it is given."""
        session, account = self.session, group.account
        if group.gang is not None:
            return place(session, self._members(group, replica), group.shape, account, group.size)
        room = session.ledger.room(account)
        if row is None:
            claim = session.find(group.shape, account)
        else:
            claim = session.placer.on_row(group.shape, row, room)
            claim = session.permitted(group.shape, account, claim, room, row)
        if claim is None or claim.permille > room:
            return None
        session.charge(claim, account)
        return [claim]

    def _members(self, group: Group, replica: PendingReplica) -> list[PendingReplica]:
        return self.session.waiting_with(replica)[: group.size]

    def nominate(self, group: Group, replica: PendingReplica, row: int | None = None) -> bool:
        """Hold places for all replicas that must start together, if there are any in the current trial."""
        session, mark = self.session, self.session.log.checkpoint()
        if row is None and not session.placer.fits_anywhere(group.shape):
            return False
        claims = self.claims(group, replica, row)
        if claims is None:
            session.log.rollback(mark)
            return False
        for member, claim in zip(self._members(group, replica), claims, strict=True):
            session.holds.hold(member, claim, group.account, HoldKind.NOMINATED, charged=True)
        return True

    def evict(self, group: Group, replica: PendingReplica, search: Search, kind: EvictionKind, why: Why) -> bool:
        """Evict the best set of victims of a search and hold the GPUs for a group."""
        accepted, need = self.session.placer.accepted, search.need
        shapes = [choice.shape for choice in model_choices(self.session, group)]
        searches = [replace(search, need=replace(need, shape=each, accepted=accepted(each))) for each in shapes]
        return any(
            self.carry_out(group, replica, clearing, kind, why, search.pool) for clearing in _clearings(searches, group)
        )

    def carry_out(
        self,
        group: Group,
        replica: PendingReplica,
        clearing: Clearing,
        kind: EvictionKind,
        why: Why,
        pool: VictimPool,
    ) -> bool:
        """Evict the victims and hold the GPUs for a group, if it then fits (on ``clearing.row`` if given)."""
        session, mark = self.session, self.session.log.checkpoint()
        keys = pool.keys(clearing.slots)
        bonds = pool.bonds(clearing.slots)
        reasons = [why(session, key, replica) + bond for key, bond in zip(keys, bonds, strict=True)]
        for key in keys:
            session.discharge_running(key)
        if not self.nominate(group, replica, clearing.row):
            session.log.rollback(mark)
            return False
        evict(session, keys, replica.key, kind, reasons)
        for each in self._pools.values():
            each.taken(clearing.slots)
        return True


def _clearings(searches: Sequence[Search], group: Group) -> Iterator[Clearing]:
    """Yield sets of victims, best first; work that would lose much only if there is no other set.

    The searches differ in the GPU model of a gang.
    """
    every = searches[0].among
    cheap = every & (searches[0].pool.pieces.stake == 0)
    if cheap.any():
        yield from _clearings_among([replace(search, among=cheap) for search in searches], group)
    if not np.array_equal(cheap, every):
        yield from _clearings_among(searches, group)


def _clearings_among(searches: Sequence[Search], group: Group) -> Iterator[Clearing]:
    if len(searches) > 1:
        found = [clearing for search in searches for clearing in _clearings_among([search], group)]
        yield from sorted(found, key=lambda clearing: len(clearing.slots))
    elif group.size > 1:
        yield from clear_for_gang(searches[0], group.gang)
    elif (one := searches[0].for_one()) is not None:
        yield one


@contextmanager
def without_reservations(session: SchedulingSession, gives_way: Callable[[Group], bool]) -> Iterator[bool]:
    """Lift the reservations of groups that yield; yield True if there were any.

    A reservation keeps smaller work off the GPUs that become free first. It gives no right beyond quotas. It must not
    keep other projects from their quotas, or from the GPUs of their own work of lower priority.

    Afterwards they get back what is not on nodes with new holds; the others look for another place.
    """
    reserved = session.holds.reservations()
    yielding = [holds for leader, holds in reserved.items() if _yields(session, leader, gives_way)]
    lifted = [[session.holds.remove(active.hold.key) for active in holds] for holds in yielding]
    before = set(session.holds.active)
    try:
        yield bool(lifted)
    finally:
        taken = {active.claim.row for key, active in session.holds.active.items() if key not in before}
        for active_holds in lifted:
            if taken.isdisjoint(active.claim.row for active in active_holds):
                for active in active_holds:
                    session.holds.add(active)


def _yields(session: SchedulingSession, leader: ReplicaKey, gives_way: Callable[[Group], bool]) -> bool:
    group = session.demand.group_of(leader)
    return group is not None and gives_way(group)
