"""Reclaim and preempt: end work so that somebody who is owed the space, or is more important, can start.

Reclaim: a replica whose project stays within its quota evicts preemptible work of projects above theirs. Preempt: a
replica evicts preemptible work of strictly lower priority in its own project. Victims take time to go, so nothing is
granted here: the space is held (nominated) and granted by the cycle that finds it free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import inf

import numpy as np

from gpupool.domain.units import format_permille
from gpupool.scheduling.allocate import Turns
from gpupool.scheduling.cluster import Bools, Claim
from gpupool.scheduling.ledger import UNBOUNDED, Account
from gpupool.scheduling.queue import Group
from gpupool.scheduling.session import Session
from gpupool.scheduling.shape import Shape
from gpupool.scheduling.values import (
    Eviction,
    EvictionKind,
    HoldKind,
    PendingReplica,
    ReplicaKey,
)
from gpupool.scheduling.victims import VictimPool


def make_room(session: Session) -> None:
    """Decide on evictions for those who could not be placed; leaves the session as if whoever must leave had left."""
    room = _RoomMaker(session)
    owed, important = room.owed_projects(), room.important_projects()
    if not owed and not important:
        return
    for key in session.leaving:
        session.lift_running(key)
    room.retry_reserved()
    room.serve_all(Turns(session, owed, room.hopeless, room.owes), room.reclaim)
    room.serve_all(Turns(session, important, set(), lambda _project, _shape: True), room.preempt)


class _RoomMaker:
    """The searches of one cycle, with what is known to fail already."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.searches_left = session.settings.max_searches
        self.hopeless: set[Shape] = set()
        self._pool: VictimPool | None = None

    @property
    def pool(self) -> VictimPool:
        if self._pool is None:
            self._pool = VictimPool(self.session)
        return self._pool

    def owed_projects(self) -> list[int]:
        """Those below their quota, if anybody evictable is above theirs."""
        ledger, demand = self.session.ledger, self.session.demand
        if not any(kinds and ledger.over_quota(project) for project, kinds in demand.evictable.items()):
            return []
        return [project for project in demand.lanes if not ledger.over_quota(project, 1)]

    def important_projects(self) -> list[int]:
        """Those where somebody waits who is more important than somebody evictable."""
        demand = self.session.demand
        return [p for p in demand.lanes if max(demand.importance[p]) > self._lowest(p)]

    def owes(self, project: int, shape: Shape) -> bool:
        """Whether a project would stay within its quota with one more replica of a shape."""
        return not self.session.ledger.over_quota(project, self.session.placer.least_permille(shape))

    def _lowest(self, project: int) -> float:
        return min(self.session.demand.evictable.get(project, ()), default=inf)

    def retry_reserved(self) -> None:
        """Those with a reservation may evict too, should victims have become ripe since."""
        for key, ghost in list(self.session.ghosts.items()):
            group = self.session.demand.group_of(key)
            if ghost.hold.kind is not HoldKind.RESERVED or group is None:
                continue
            self.session.drop_ghost(key)
            replica = self.session.demand.pending[key]
            if not (self.reclaim(group, replica) or self.preempt(group, replica)):
                self.session.add_ghost(ghost)

    def serve_all(self, turns: Turns, serve: Callable[[Group, PendingReplica], bool]) -> None:
        """Serve one after another as long as searches are left."""
        while self.searches_left > 0 and (first := turns.next()) is not None:
            group, replica, lane = first
            if not serve(group, replica):
                lane.drop()
                if serve == self.reclaim and not self.owes(group.account.project, group.shape):
                    lane.bar(group.shape)
                if serve == self.preempt and replica.priority <= self._lowest(group.account.project):
                    lane.close()  # the rest of the lane is no more important
            turns.again(group.account.project)

    # --- reclaim

    def reclaim(self, group: Group, replica: PendingReplica) -> bool:
        """Hold space for a replica within its project's quota, at the cost of those above theirs if need be."""
        session, account, shape = self.session, group.account, group.shape
        need = session.placer.least_permille(shape)
        if not self.owes(account.project, shape) or shape in self.hopeless:
            return False
        if self._fits_when_they_left(group, replica):
            return True
        ledger = session.ledger
        if need > ledger.room(account) or self.searches_left <= 0:
            return False
        self.searches_left -= 1
        pool = self.pool
        over = np.array([self._above(project) for project in range(len(ledger.projects))], dtype=np.bool_)
        among = over[pool.project] & (pool.project != account.project)
        budget = min(ledger.room(account), int(ledger.quota[account.project] - ledger.used[account.project]))
        if self._evict(shape, replica, account, among, EvictionKind.RECLAIM, budget):
            return True
        self.hopeless.add(shape)
        return False

    def _fits_when_they_left(self, group: Group, replica: PendingReplica) -> bool:
        claim = self.session.find(group.shape, group.account)
        return claim is not None and self._nominate(replica, claim, group.account)

    def _above(self, project: int, freed: int = 0) -> bool:
        """Whether a project holds more than its quota, promises to it left out, once ``freed`` is gone."""
        held = self.session.ledger.used[project] - self.session.promised[project] - freed
        return bool(held > self.session.ledger.quota[project])

    def _stays_over(self, victims: Sequence[int]) -> bool:
        """Whether each victim's project is still above quota when its turn comes."""
        pool = self.pool
        freed: Counter[int] = Counter()
        for victim in victims:
            project = int(pool.project[victim])
            if not self._above(project, freed[project]):
                return False
            freed[project] += int(pool.permille[victim])
        return True

    # --- preempt

    def preempt(self, group: Group, replica: PendingReplica) -> bool:
        """Hold space for a replica, at the cost of less important work of its project if need be."""
        session, account, shape = self.session, group.account, group.shape
        if replica.priority <= self._lowest(account.project):
            return False
        if self._fits_when_they_left(group, replica):
            return True
        if self.searches_left <= 0:
            return False
        self.searches_left -= 1
        pool = self.pool
        among = (pool.project == account.project) & (pool.priority < replica.priority) & pool.alive
        if not among.any():
            return False
        room = session.ledger.room(account)
        if session.placer.least_permille(shape) <= room:
            return self._evict(shape, replica, account, among, EvictionKind.PREEMPT, room)
        return self._preempt_for_bounds(shape, replica, account, np.flatnonzero(among).tolist())

    def _preempt_for_bounds(
        self, shape: Shape, replica: PendingReplica, account: Account, candidates: list[int]
    ) -> bool:
        """The bounds on use are in the way: evict one after another until they are not, then give back."""
        session, mark = self.session, self.session.log.checkpoint()
        chosen: list[int] = []
        for victim in candidates[: session.settings.max_nodes_searched]:
            session.lift_running(self.pool.keys[victim])
            chosen.append(victim)
            if session.find(shape, account) is not None:
                break
        else:
            session.log.rollback(mark)
            return False
        for victim in reversed(chosen.copy()):
            session.log.rollback(mark)
            rest = [v for v in chosen if v != victim]
            for other in rest:
                session.lift_running(self.pool.keys[other])
            if session.find(shape, account) is not None:
                chosen = rest
        session.log.rollback(mark)
        keys = tuple(self.pool.keys[v] for v in chosen)
        return self._carry_out(shape, replica, account, keys, EvictionKind.PREEMPT, None)

    # --- both

    def _evict(
        self, shape: Shape, replica: PendingReplica, account: Account, among: Bools, kind: EvictionKind, budget: int
    ) -> bool:
        allowed = self._stays_over if kind is EvictionKind.RECLAIM else _anybody
        solution = self.pool.search(shape, among, allowed, min(budget, UNBOUNDED))
        if solution is None:
            return False
        return self._carry_out(shape, replica, account, solution.keys, kind, solution.row)

    def _carry_out(
        self,
        shape: Shape,
        replica: PendingReplica,
        account: Account,
        keys: tuple[ReplicaKey, ...],
        kind: EvictionKind,
        row: int | None,
    ) -> bool:
        session, mark = self.session, self.session.log.checkpoint()
        reasons = [self._reason(key, replica, kind) for key in keys]
        for key in keys:
            session.lift_running(key)
        room = session.ledger.room(account)
        claim = session.find(shape, account) if row is None else session.placer.on_row(shape, row, room)
        if claim is None or claim.permille > room:
            session.log.rollback(mark)
            return False
        for key, reason in zip(keys, reasons, strict=True):
            session.leaving.add(key)
            self.pool.alive[self.pool.keys.index(key)] = False
            session.evictions.append(Eviction(key[0], key[1], replica.workload, replica.index, kind, reason))
        return self._nominate(replica, claim, account)

    def _nominate(self, replica: PendingReplica, claim: Claim, account: Account) -> bool:
        self.session.hold_for(replica, claim, account, HoldKind.NOMINATED)
        return True

    def _reason(self, victim: ReplicaKey, replica: PendingReplica, kind: EvictionKind) -> str:
        session = self.session
        ledger, account = session.ledger, session.demand.accounts[victim]
        project = ledger.projects[account.project]
        if kind is EvictionKind.PREEMPT:
            mine = session.demand.running[victim].priority
            return (
                f"{replica.workload} of priority {replica.priority} in {project.name} needs its GPUs (priority {mine})."
            )
        held, quota = (
            format_permille(int(ledger.used[account.project]) - session.promised[account.project]),
            format_permille(project.quota_permille or 0),
        )
        return f"{project.name} holds {held} GPUs over its quota of {quota}; {replica.project} is owed them."


def _anybody(_victims: Sequence[int]) -> bool:
    return True
