"""Reclaim and preempt: end work so that somebody who is owed the space, or is more important, can start.

Reclaim: a replica, or all members of a gang at once, evict preemptible work of projects that hold more than they are
due. Preempt: they evict preemptible work of strictly lower priority in their own project. Victims take time to go, so
nothing is granted here: the space is held (nominated) and granted by the cycle that finds it free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import inf

import numpy as np

from gpupool.scheduling.allocate import Turns
from gpupool.scheduling.capacity import Need
from gpupool.scheduling.claims import Bools, Claim
from gpupool.scheduling.clearing import Clearing, OutOfWorkError, Refused, Search, Work
from gpupool.scheduling.clearing_gangs import clear_for_gang
from gpupool.scheduling.evict import evict, reason_of
from gpupool.scheduling.gang import place
from gpupool.scheduling.ledger import UNBOUNDED
from gpupool.scheduling.queue import Group
from gpupool.scheduling.rights import Rights
from gpupool.scheduling.session import Session
from gpupool.scheduling.shape import Shape
from gpupool.scheduling.topology import domains
from gpupool.scheduling.values import EvictionKind, HoldKind, PendingReplica, ReplicaKey
from gpupool.scheduling.victims import VictimPool

RETRY_S = 1.0  # a search that was cut short is gone on with after so long
_OTHERS = -1
Serve = Callable[[Group, PendingReplica], bool]


def make_room(session: Session) -> None:
    """Decide on evictions for those who could not be placed; leaves the session as if whoever must leave had left.

    A cycle searches for so long only (``Settings.max_looks``). What it did not come to is searched first by the next.
    """
    room = _RoomMaker(session)
    owed, important = room.owed_projects(), room.important_projects()
    if not (owed or important or room.someone_reserved()):
        session.demand.searched.clear()
        return
    for key in session.leaving:
        session.lift_running(key)
    try:
        room.retry_reserved()
        for again in (False, True) if session.demand.searched else (False,):
            room.serve_all(room.hopeful(owed), room.reclaim, again=again)
            room.serve_all(important, room.preempt, again=again)
            session.demand.searched.clear()
    except OutOfWorkError:
        session.exhausted = True
        session.demand.searched |= room.in_vain
        session.later.append(session.now + RETRY_S)


class _RoomMaker:
    """The searches of one cycle, with what is known to fail already.

    ``in_vain`` are those for whom nothing was found.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.work = Work(session.settings.max_looks)
        self.rights = Rights(session)
        self.in_vain: set[tuple[EvictionKind, int, Shape]] = set()
        self._hopeless: set[tuple[object, ...]] = set()
        self._hopeful: set[Shape] = set()  # shapes that somebody might reclaim space for
        self._dead: set[Shape] = set()  # the others, as far as they are known
        self._least: dict[Shape, int] = {}
        self._budgets: dict[int, int] = {}  # of projects
        self._pools: dict[int, VictimPool] = {}  # by project; _OTHERS: of all that hold more than they are due

    def owed_projects(self) -> list[int]:
        """Those that may take more, if anybody evictable holds more than he is due."""
        demand, above = self.session.demand, self.rights.reclaimable()
        if not any(kinds and above[project] for project, kinds in demand.evictable.items()):
            return []
        takers = set(np.flatnonzero(self.rights.takers()).tolist())
        return [project for project in demand.lanes if project in takers]

    def hopeful(self, owed: list[int]) -> list[int]:
        """Those of the projects with work that might fit if all who hold more than they are due were gone."""
        session, placer = self.session, self.session.placer
        if not owed:
            return []
        shapes = list(session.demand.shape_users)
        least = self._least = {shape: placer.least_permille(shape) for shape in shapes}
        wants = [(shape.request.count, least[shape] // max(shape.request.count, 1)) for shape in shapes]
        needs = [(*want, shape.cpu_milli, shape.mem_mib) for want, shape in zip(wants, shapes, strict=True)]
        promised = bool(self.rights.any_promised()[owed].any())
        may_fit = self._pool(_OTHERS).may_fit(needs, promised=promised).tolist()
        hopeful = {shape for shape, fits in zip(shapes, may_fit, strict=True) if fits and not shape.gpuless}
        hopeful |= placer.fitting(session.demand.shape_users.keys() - hopeful)
        lanes, budgets = session.demand.lanes, dict(enumerate(self.rights.budgets().tolist()))
        self._hopeful, self._budgets, self._dead = hopeful, budgets, session.demand.shape_users.keys() - hopeful
        smallest = min((least[shape] for shape in hopeful), default=inf)
        able = [p for p in owed if budgets[p] >= smallest]
        return [p for p in able if any(least[shape] <= budgets[p] for shape in hopeful & lanes[p].keys())]

    def important_projects(self) -> list[int]:
        """Those where somebody waits who is more important than somebody evictable."""
        demand = self.session.demand
        if max(demand.priorities_waiting, default=-inf) <= min(demand.priorities_evictable, default=inf):
            return []
        return [p for p in demand.lanes if max(demand.importance[p]) > self._lowest(p)]

    def someone_reserved(self) -> bool:
        """Whether somebody has a reservation: it counts as held, so that nothing more seems to be owed."""
        demand, ghosts = self.session.demand, self.session.ghosts.values()
        return any(demand.evictable.values()) and any(ghost.hold.kind is HoldKind.RESERVED for ghost in ghosts)

    def _lowest(self, project: int) -> float:
        return min(self.session.demand.evictable.get(project, ()), default=inf)

    def _owes(self, group: Group) -> bool:
        return self.rights.may_reclaim(group.account.project, self._permille(group))

    def _permille(self, group: Group) -> int:
        return self.session.placer.least_permille(group.shape) * group.size

    def retry_reserved(self) -> None:
        """Those with a reservation may evict too, should victims have become ripe since."""
        session, reserved = self.session, dict[ReplicaKey, list[ReplicaKey]]()
        for key, ghost in session.ghosts.items():
            if ghost.hold.kind is HoldKind.RESERVED:
                reserved.setdefault(session.demand.gangs.leader(key), []).append(key)
        for leader, keys in reserved.items():
            group = session.demand.group_of(leader)
            if group is None:
                continue
            names = {(k, group.account.project, group.shape) for k in (EvictionKind.RECLAIM, EvictionKind.PREEMPT)}
            if names & session.demand.searched:
                continue
            ghosts = [session.drop_ghost(key) for key in keys]
            replica, served = session.demand.pending[leader], False
            try:
                served = self.reclaim(group, replica) or self.preempt(group, replica)
                self.in_vain |= set() if served else names
            finally:
                for ghost in () if served else ghosts:
                    session.add_ghost(ghost)

    def serve_all(self, projects: list[int], serve: Serve, *, again: bool) -> None:
        """Serve one after another: those not searched for by the cycle before, or ``again`` the others."""
        kind = EvictionKind.RECLAIM if serve == self.reclaim else EvictionKind.PREEMPT
        session, searched = self.session, self.session.demand.searched.copy()

        def wanted(project: int, shape: Shape) -> bool:
            if ((kind, project, shape) in searched) is not again:
                return False
            if kind is EvictionKind.PREEMPT:
                return True
            return shape in self._hopeful and self._least[shape] <= self._budgets[project]

        dead = self._dead if kind is EvictionKind.RECLAIM else set[Shape]()
        if not projects:
            return
        turns = Turns(session, projects, dead, wanted)
        while (first := turns.next()) is not None:
            group, replica, lane = first
            project = group.account.project
            if serve(group, replica):
                self._budgets[project] = self.rights.budget(project)
            else:
                self.in_vain.add((kind, project, group.shape))
                lane.drop()
                if kind is EvictionKind.RECLAIM and not self._owes(group):
                    lane.bar(group.shape)
                if kind is EvictionKind.PREEMPT and replica.priority <= self._lowest(project):
                    lane.close()  # the rest of the lane is no more important
            turns.again(project)

    # --- reclaim

    def reclaim(self, group: Group, replica: PendingReplica) -> bool:
        """Hold space for those who are owed it, at the cost of projects that hold more than they are due if need be."""
        project, need = group.account.project, self._permille(group)
        if not self._owes(group) or group.shape.gpuless:
            return False
        standing, promised = self.rights.standing(project, need), self.rights.promised(project, need)
        known = (group.shape, group.size, group.gang, group.joins, standing, promised, len(self.session.evictions))
        if known in self._hopeless:
            return False
        if self._nominate(group, replica):
            return True
        room = self.session.ledger.room(group.account)
        if need > room:
            return False
        victims = self.rights.victims(project, need)
        self.work.begin()
        pool = self._pool(_OTHERS)
        among = victims[pool.pieces.project]
        shielded = among & ~pool.open(promised=promised)
        among &= ~shielded
        budget = min(room, self.rights.budget(project)) // group.size
        search = self._search(group, pool, among, self.rights.refuses(pool, project, need), budget)
        if search is not None and self._evict(group, replica, search, EvictionKind.RECLAIM):
            return True
        self._hopeless.add(known)
        widest = group.size == 1 and group.joins is None and group.shape.fixed_permille is not None
        if widest and not shielded.any() and not (self.rights.reclaimable() & ~victims).any():
            self._hopeful.discard(group.shape)  # nobody may take from more
            self._dead.add(group.shape)
        return False

    def _pool(self, project: int) -> VictimPool:
        if project not in self._pools:
            chosen = self.rights.reclaimable()
            if project != _OTHERS:
                chosen = np.arange(len(chosen)) == project
            self._pools[project] = VictimPool(self.session, chosen, self.rights.over)
        return self._pools[project]

    def _search(self, group: Group, pool: VictimPool, among: Bools, refused: Refused, budget: int) -> Search | None:
        session, cluster, gang = self.session, self.session.cluster, group.gang
        if gang is not None and gang.strict and group.joins is not None:  # only near those who run
            where, members = domains(cluster, gang.within), session.demand.gangs.get(group.joins)
            rows = [cluster.claims[key].row for key in (members.running if members else ()) if key in cluster.claims]
            among &= np.isin(where[pool.pieces.row], where[[row for row in rows if row >= 0]])
        if not among.any():
            return None
        need = Need(group.shape, session.placer.accepted(group.shape), min(budget, UNBOUNDED), group.size)
        return Search(cluster, pool, need, among, refused, self.work, session.settings.max_nodes_searched)

    # --- preempt

    def preempt(self, group: Group, replica: PendingReplica) -> bool:
        """Hold space for somebody, at the cost of less important work of the project if need be."""
        session, project = self.session, group.account.project
        if replica.priority <= self._lowest(project) or group.shape.gpuless:
            return False
        if self._nominate(group, replica):
            return True
        known = (group.shape, group.size, group.gang, group.joins, project, replica.priority, group.account.user)
        if known in self._hopeless:
            return False
        self.work.begin()
        pool = self._pool(project)
        among = (pool.pieces.priority < replica.priority) & pool.alive
        room = session.ledger.room(group.account)
        if self._permille(group) > room:
            return self._preempt_for_bounds(group, replica, pool, among)
        search = self._search(group, pool, among, _nobody, room // group.size)
        if search is not None and self._evict(group, replica, search, EvictionKind.PREEMPT):
            return True
        self._hopeless.add(known)
        return False

    def _preempt_for_bounds(self, group: Group, replica: PendingReplica, pool: VictimPool, among: Bools) -> bool:
        """The bounds on use are in the way: evict one after another until they are not, then give back."""
        groups = self._until_it_fits(group, replica, pool, among)
        for unit in reversed(groups.copy()):
            rest = [other for other in groups if other is not unit]
            if self._fits_without(group, replica, pool, rest):
                groups = rest
        slots = tuple(slot for unit in groups for slot in unit)
        return bool(slots) and self._carry_out(group, replica, pool, Clearing(slots), EvictionKind.PREEMPT)

    def _until_it_fits(self, group: Group, replica: PendingReplica, pool: VictimPool, among: Bools) -> list[list[int]]:
        p, at, users = pool.pieces, np.flatnonzero(among), pool.holders.user
        other_user = users[np.where(p.slot[at] >= 0, p.slot[at], 0)] != group.account.user
        at = at[np.lexsort((-p.newness[at], p.priority[at], other_user))]
        for end in range(1, 1 + min(len(at), self.session.settings.max_nodes_searched)):
            units = pool.slots_of(at[:end].tolist())
            if self._fits_without(group, replica, pool, units):
                return units
        return []

    def _fits_without(
        self, group: Group, replica: PendingReplica, pool: VictimPool, units: Sequence[Sequence[int]]
    ) -> bool:
        """Whether there would be a place if those were gone."""
        session = self.session
        self.work.look()
        mark = session.log.checkpoint()
        for key in pool.keys(slot for unit in units for slot in unit):
            session.lift_running(key)
        fits = self._claims(group, replica) is not None
        session.log.rollback(mark)
        return fits

    # --- both

    def _claims(self, group: Group, replica: PendingReplica, row: int | None = None) -> list[Claim] | None:
        """Places for all who have to start at once, charged; on a row if one is named."""
        session, account = self.session, group.account
        if group.gang is not None:
            return place(session, self._members(group, replica), group.shape, account, group.size)
        room = session.ledger.room(account)
        claim = session.find(group.shape, account) if row is None else session.placer.on_row(group.shape, row, room)
        if claim is None or claim.permille > room:
            return None
        session.charge(claim, account)
        return [claim]

    def _members(self, group: Group, replica: PendingReplica) -> list[PendingReplica]:
        together = [r for r in self.session.demand.together_with(replica) if r.key not in self.session.gone]
        return together[: group.size]

    def _nominate(self, group: Group, replica: PendingReplica, row: int | None = None) -> bool:
        """Hold a place for all who have to start at once, if there is one as things stand in the trial."""
        session, mark = self.session, self.session.log.checkpoint()
        if row is None and not session.placer.fits_anywhere(group.shape):
            return False
        claims = self._claims(group, replica, row)
        if claims is None:
            session.log.rollback(mark)
            return False
        for member, claim in zip(self._members(group, replica), claims, strict=True):
            session.hold_for(member, claim, group.account, HoldKind.NOMINATED, charged=True)
        return True

    def _evict(self, group: Group, replica: PendingReplica, search: Search, kind: EvictionKind) -> bool:
        return any(
            self._carry_out(group, replica, search.pool, clearing, kind) for clearing in _clearings(search, group)
        )

    def _carry_out(
        self, group: Group, replica: PendingReplica, pool: VictimPool, clearing: Clearing, kind: EvictionKind
    ) -> bool:
        session, mark = self.session, self.session.log.checkpoint()
        keys = pool.keys(clearing.slots)
        bonds = pool.bonds(clearing.slots)
        reasons = [reason_of(session, key, replica, kind) + bond for key, bond in zip(keys, bonds, strict=True)]
        for key in keys:
            session.lift_running(key)
        if not self._nominate(group, replica, clearing.row):
            session.log.rollback(mark)
            return False
        evict(session, keys, replica.key, kind, reasons)
        for each in self._pools.values():
            each.taken(clearing.slots)
        return True


def _clearings(search: Search, group: Group) -> Iterator[Clearing]:
    if group.size > 1:
        yield from clear_for_gang(search, group.gang)
    elif (found := search.for_one()) is not None:
        yield found


def _nobody(_units: Sequence[Sequence[int]]) -> list[int]:
    return []
