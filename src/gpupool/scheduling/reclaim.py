"""Reclaim: end preemptible work of projects that hold more than they are due, so that who is owed the space can start.

A replica, or all members of a gang at once. What is left is looked for by ``preempt``, inside the projects.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from gpupool.scheduling.allocate import Turns
from gpupool.scheduling.claims import Bools
from gpupool.scheduling.clearing import OutOfWorkError, Refused
from gpupool.scheduling.giving_way import reservations, without_reservations
from gpupool.scheduling.preempt import Preemption
from gpupool.scheduling.queue import Group
from gpupool.scheduling.room_maker import OTHERS, RoomMaker
from gpupool.scheduling.session import Session
from gpupool.scheduling.shape import Shape
from gpupool.scheduling.values import EvictionKind, HoldKind, PendingReplica
from gpupool.scheduling.victims import VictimPool

RETRY_S = 1.0  # a search that was cut short is gone on with after so long
Serve = Callable[[Group, PendingReplica], bool]


def make_room(session: Session) -> None:
    """Decide on evictions for those who could not be placed; leaves the session as if whoever must leave had left.

    A cycle searches for so long only (``Settings.max_looks``). What it did not come to is searched first by the next.
    """
    search = _Searches(session)
    owed, important = search.owed_projects(), search.preemption.projects()
    if not (owed or important or search.someone_reserved()):
        session.demand.searched.clear()
        return
    for key in session.leaving:
        session.lift_running(key)
    try:
        search.retry_reserved()
        for again in (False, True) if session.demand.searched else (False,):
            search.serve_all(search.hopeful(owed), search.reclaim, again=again)
            search.serve_all(important, search.preemption.preempt, again=again)
            session.demand.searched.clear()
    except OutOfWorkError:
        session.exhausted = True
        session.demand.searched |= search.in_vain
        session.later.append(session.now + RETRY_S)


class _Searches:
    """The searches of one cycle, with what is known to fail already.

    ``in_vain`` are those for whom nothing was found.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.room = RoomMaker(session)
        self.rights = self.room.rights
        self.preemption = Preemption(self.room)
        self.in_vain: set[tuple[EvictionKind, int, Shape]] = set()
        self._hopeless: set[tuple[object, ...]] = set()
        self._hopeful: set[Shape] = set()  # shapes that somebody might reclaim space for
        self._dead: set[Shape] = set()  # the others, as far as they are known
        self._least: dict[Shape, int] = {}
        self._budgets: dict[int, int] = {}  # of projects
        self._promised = False  # whether anybody who is owed something may have been promised it

    def owed_projects(self) -> list[int]:
        """Those that may take more, if anybody evictable holds more than he is due, or space is kept for anybody."""
        demand, sources = self.session.demand, self.rights.sources()
        anybody = any(kinds and sources[project] for project, kinds in demand.evictable.items())
        if not anybody and not (reservations(self.session) and self.rights.any_promised(list(demand.lanes))):
            return []
        takers = self.rights.takers()
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
        promised = self._promised = self.rights.any_promised(owed)
        with without_reservations(session, lambda other: promised and self.room.gives_way(other)):
            may_fit = self.room.pool(OTHERS).may_fit(needs, promised=promised).tolist()
            hopeful = {shape for shape, fits in zip(shapes, may_fit, strict=True) if fits and not shape.gpuless}
            hopeful |= placer.fitting(session.demand.shape_users.keys() - hopeful)
        lanes, budgets = session.demand.lanes, self.rights.budgets()
        self._hopeful, self._budgets, self._dead = hopeful, budgets, session.demand.shape_users.keys() - hopeful
        smallest = min((least[shape] for shape in hopeful), default=inf)
        able = [p for p in owed if budgets[p] >= smallest]
        return [p for p in able if any(least[shape] <= budgets[p] for shape in hopeful & lanes[p].keys())]

    def someone_reserved(self) -> bool:
        """Whether somebody has a reservation: it counts as held, so that nothing more seems to be owed."""
        demand, ghosts = self.session.demand, self.session.ghosts.values()
        return any(demand.evictable.values()) and any(ghost.hold.kind is HoldKind.RESERVED for ghost in ghosts)

    def retry_reserved(self) -> None:
        """Those with a reservation may evict too, should victims have become ripe since."""
        session = self.session
        for leader, keys in reservations(session).items():
            group = session.demand.group_of(leader)
            if group is None or not session.ghosts.keys() >= set(keys):  # it gave way to one of those before
                continue
            names = {(k, group.account.project, group.shape) for k in (EvictionKind.RECLAIM, EvictionKind.PREEMPT)}
            if names & session.demand.searched:
                continue
            ghosts = [session.drop_ghost(key) for key in keys]
            replica, served = session.demand.pending[leader], False
            try:
                served = self.reclaim(group, replica) or self.preemption.preempt(group, replica)
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
                if kind is EvictionKind.RECLAIM and not self.room.is_owed(group):
                    lane.bar(group.shape)
                if kind is EvictionKind.PREEMPT and replica.priority <= self.preemption.lowest(project):
                    lane.close()  # the rest of the lane is no more important
            turns.again(project)

    # --- reclaim

    def reclaim(self, group: Group, replica: PendingReplica) -> bool:
        """Hold space for those who are owed it, at the cost of projects that hold more than they are due if need be."""
        account, need = group.account, self.room.permille(group)
        if not self.room.is_owed(group) or group.shape.gpuless:
            return False
        standing = self.rights.standing(account, need)
        known = (group.shape, group.size, group.gang, group.joins, standing, len(self.session.evictions))
        if known in self._hopeless:
            return False
        if self.room.nominate(group, replica):
            return True
        if need > self.session.ledger.room(account):
            return False
        self.room.work.begin()
        if self._take(group, replica, need) or self._take_reserved(group, replica, need):
            return True
        self._hopeless.add(known)
        if self._speaks_for_all(group, need):
            self._hopeful.discard(group.shape)
            self._dead.add(group.shape)
        return False

    def _take(self, group: Group, replica: PendingReplica, need: int) -> bool:
        return self._reclaim_share(group, replica, need) or self._reclaim_model(group, replica, need)

    def _take_reserved(self, group: Group, replica: PendingReplica, need: int) -> bool:
        """The same, for whoever was promised it, where space is kept for those who were not."""
        if not self.room.promised(group):
            return False
        with without_reservations(self.session, self.room.gives_way) as anything:
            return anything and (self.room.nominate(group, replica) or self._take(group, replica, need))

    def _reclaim_share(self, group: Group, replica: PendingReplica, need: int) -> bool:
        """By what the project is due: from those who hold more than they are."""
        pool, project = self.room.pool(OTHERS), group.account.project
        accepted = self.room.session.placer.accepted(group.shape)
        among = self.rights.by_share(pool, project, need, accepted)
        refused = self.rights.refuses(pool, project, need, accepted)
        return self._reclaim_from(group, replica, pool, among, refused)

    def _reclaim_model(self, group: Group, replica: PendingReplica, need: int) -> bool:
        """By its quota of the model that is asked for: from those who hold such GPUs beyond a quota of their own."""
        if not self.rights.models.may_take(group.account, need):
            return False
        pool = self.room.pool(OTHERS)
        among, refused = self.rights.by_model(pool, group.account), self.rights.refuses_model(pool, group.account)
        return self._reclaim_from(group, replica, pool, among, refused, group.shape.request.models[0])

    def _reclaim_from(
        self,
        group: Group,
        replica: PendingReplica,
        pool: VictimPool,
        among: Bools,
        refused: Refused,
        model: str = "",
    ) -> bool:
        budget = min(self.session.ledger.room(group.account), self.rights.budget(group.account.project)) // group.size
        search = self.room.search(group, pool, among, refused, budget)
        return search is not None and self.room.evict(group, replica, search, EvictionKind.RECLAIM, model)

    def _speaks_for_all(self, group: Group, need: int) -> bool:
        """Whether nobody who waits for the same may take from more than one who found nothing."""
        if group.size > 1 or group.joins is not None or group.shape.fixed_permille is None:
            return False
        if self.rights.models.of_interest(group.shape.request.models):
            return False
        if self._promised and not self.room.promised(group) and reservations(self.session):
            return False
        return not self.rights.may_come(self.room.pool(OTHERS), group.account.project, need)
