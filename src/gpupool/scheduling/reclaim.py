"""Reclaim and preempt: end work so that somebody who is owed the space, or is more important, can start.

Reclaim: a replica whose project stays within its quota evicts preemptible work of projects above theirs. Preempt: a
replica evicts preemptible work of strictly lower priority in its own project. Victims take time to go, so nothing is
granted here: the space is held (nominated) and granted by the cycle that finds it free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from gpupool.domain.units import format_permille
from gpupool.scheduling.allocate import Turns
from gpupool.scheduling.cluster import MILLI, Bools, Claim
from gpupool.scheduling.ledger import UNBOUNDED, Account
from gpupool.scheduling.queue import Group
from gpupool.scheduling.session import Ghost, Session
from gpupool.scheduling.shape import Shape, least_permille
from gpupool.scheduling.values import (
    Eviction,
    EvictionKind,
    Hold,
    HoldKind,
    PendingReplica,
    ReplicaKey,
)
from gpupool.scheduling.victims import VictimPool


def make_room(session: Session) -> None:
    """Decide on evictions for those who could not be placed; leaves the session as if whoever must leave had left."""
    room = _RoomMaker(session)
    projects = room.projects()
    if not projects:
        return
    for key in session.leaving:
        session.lift_running(key)
    room.retry_reserved()
    turns = Turns(session, set(), projects)
    while room.searches_left > 0 and (first := turns.next()) is not None:
        group, replica, lane = first
        if not room.serve(group, replica):
            lane.drop()
        turns.again(group.account.project)


class _RoomMaker:
    """The searches of one cycle, with what is known to fail already."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.searches_left = session.settings.max_searches
        self._hopeless: set[Shape] = set()
        self._pool: VictimPool | None = None

    @property
    def pool(self) -> VictimPool:
        if self._pool is None:
            self._pool = VictimPool(self.session)
        return self._pool

    def projects(self) -> list[int]:
        """Those for whom an eviction is thinkable: owed space while others are over quota, or with mixed priorities."""
        session, ledger = self.session, self.session.ledger
        evictable = session.demand.evictable
        over = any(ledger.over_quota(project) for project, kinds in evictable.items() if kinds)
        return [p for p in session.demand.lanes if (over and not ledger.over_quota(p, 1)) or self._may_preempt(p)]

    def _may_preempt(self, project: int) -> bool:
        priorities = self.session.demand.evictable.get(project)
        lowest = min(priorities) if priorities else None
        return lowest is not None and any(g.priority > lowest for g in self.session.demand.groups(project))

    def retry_reserved(self) -> None:
        """Those with a reservation may evict too, should victims have become ripe since."""
        for key, ghost in list(self.session.ghosts.items()):
            group = self.session.demand.group_of(key)
            if ghost.hold.kind is HoldKind.RESERVED and group is not None and self.searches_left > 0:
                self.session.drop_ghost(key)
                if not self.serve(group, self.session.demand.pending[key]):
                    self.session.add_ghost(ghost)

    def serve(self, group: Group, replica: PendingReplica) -> bool:
        """Hold space for a replica, with evictions if need be; False when nothing helps."""
        account, shape = group.account, group.shape
        need = least_permille(self.session.cluster, shape)
        owed = not self.session.ledger.over_quota(account.project, need) and shape not in self._hopeless
        more_important = self._may_preempt(account.project)
        if not owed and not more_important:
            return False
        claim = self.session.find(shape, account)
        if claim is not None:
            return self._nominate(replica, claim, account)
        self.searches_left -= 1
        if owed and need <= self.session.ledger.room(account):
            if self._reclaim(shape, replica, account):
                return True
            self._hopeless.add(shape)
        return more_important and self._preempt(shape, replica, account)

    # --- reclaim

    def _reclaim(self, shape: Shape, replica: PendingReplica, account: Account) -> bool:
        ledger, pool = self.session.ledger, self.pool
        over = ledger.used > ledger.quota
        among = over[pool.project] & (pool.project != account.project)
        budget = min(ledger.room(account), ledger.quota[account.project] - ledger.used[account.project])
        return self._evict(shape, replica, account, among, EvictionKind.RECLAIM, int(budget))

    def _stays_over(self, victims: Sequence[int]) -> bool:
        """Whether each victim's project is still above quota when its turn comes."""
        ledger, pool = self.session.ledger, self.pool
        freed: Counter[int] = Counter()
        for victim in victims:
            project = int(pool.project[victim])
            if ledger.used[project] - freed[project] <= ledger.quota[project]:
                return False
            freed[project] += int(pool.permille[victim])
        return True

    # --- preempt

    def _preempt(self, shape: Shape, replica: PendingReplica, account: Account) -> bool:
        pool = self.pool
        among = (pool.project == account.project) & (pool.priority < replica.priority) & pool.alive
        if not among.any():
            return False
        room = self.session.ledger.room(account)
        if least_permille(self.session.cluster, shape) <= room:
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
        cluster = self.session.cluster
        hold = Hold(
            workload=replica.workload,
            index=replica.index,
            node=cluster.name_of(claim.row),
            shares=cluster.shares_of(claim),
            cpus=claim.cpu_milli / MILLI,
            memory_mib=claim.mem_mib,
            kind=HoldKind.NOMINATED,
            starts_at=self.session.now,
        )
        self.session.add_ghost(Ghost(hold, claim, account))
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
        held, quota = format_permille(int(ledger.used[account.project])), format_permille(project.quota_permille or 0)
        return f"{project.name} holds {held} GPUs over its quota of {quota}; {replica.project} is owed them."


def _anybody(_victims: Sequence[int]) -> bool:
    return True
