"""Reclaim: evict preemptible work of projects above their fair share for projects that are entitled to GPUs.

It serves single replicas and whole gangs. ``Preemption`` handles evictions inside a project.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from functools import partial

import numpy as np

from gpupool.domain.units import WHOLE_GPU
from gpupool.scheduling.eviction.gpu_victim_search import GpuClearing
from gpupool.scheduling.eviction.notices import reason_of, reason_of_model, reason_of_parts
from gpupool.scheduling.eviction.planner import ALL_PRIORITIES, OTHERS, EvictionPlanner, Why, without_reservations
from gpupool.scheduling.eviction.victim_search import Refused, Search
from gpupool.scheduling.eviction.victims import VictimPool
from gpupool.scheduling.eviction.whole_claims import WholeClaims
from gpupool.scheduling.gang_placement import model_choices
from gpupool.scheduling.placement.capacity import Need
from gpupool.scheduling.placement.fit_table import fitting
from gpupool.scheduling.scheduling_order import Wanted
from gpupool.scheduling.state.allocation import Bools, Ints
from gpupool.scheduling.state.cluster import Shape
from gpupool.scheduling.state.ledger import UNBOUNDED
from gpupool.scheduling.state.queue import Group, ProjectQueue
from gpupool.scheduling.state.queue_tables import DeadShapes, FirstGroups
from gpupool.scheduling.values import EvictionKind, PendingReplica

_CHECKS = 16  # groups whose search is known to fail, checked with each of them that comes up


class Reclaim(Wanted):
    """The reclaims of one cycle, with the searches that are known to fail."""

    kind = EvictionKind.RECLAIM

    def __init__(self, room: EvictionPlanner) -> None:
        self.session, self.room, self.rights = room.session, room, room.rights
        self.whole = WholeClaims(room.session)
        self._shapes = room.session.demand.first_groups().shapes
        self.dead = DeadShapes(self._shapes)
        self._hopeless: set[tuple[object, ...]] = set()
        self._outgrown: set[tuple[object, ...]] = set()  # hopeless for projects whose parts of GPUs outgrow their bound
        self._hopeful = np.zeros(len(self._shapes.live), np.bool_)  # may get GPUs; the others are dead, once known
        self._least = room.session.placer.least_of(self._shapes)  # thousandths, by shape
        self._able: list[int] = []  # the latest result of ``hopeful``
        self._impossible: set[tuple[object, ...]] = set()  # of ``_hopeless``: no set of victims is enough
        self._failing: dict[Shape, Bools] = {}  # projects whose work of a shape fails, until something is served
        self._also_failed: AbstractSet[int] = frozenset()
        self._exhaustive = True  # whether the current search proves that no set of victims is enough
        self._spares_whole = False  # whether it leaves out whole GPUs, because of the parts that the project holds
        self._budgets = np.zeros(len(room.session.ledger.projects), np.int64)  # by project
        self._checked_at, self._unchecked = -1, iter(list[Group]())  # see ``_stop_if_all_fail``: since these moves
        self._open: Group | None = None  # the next one to check
        self._promised = False  # whether an entitled project may have a configured quota

    def projects(self) -> list[int]:
        """Return the projects entitled to more, if any project is above its fair share or any GPUs are held."""
        demand, sources = self.session.demand, self.rights.sources()
        anybody = any(kinds and sources[project] for project, kinds in demand.evictable.items())
        anybody = anybody or (any(demand.evictable.values()) and self.whole.exist)
        reserved = self.session.holds.reservations()
        if not anybody and not (reserved and self.rights.any_promised(list(demand.project_queues))):
            return []
        takers = self.rights.takers()
        return [project for project in demand.project_queues if project in takers]

    def hopeful(self, projects: list[int]) -> list[int]:
        """Return those of ``projects`` with work that might fit if all victims above their fair share were gone."""
        session, shapes = self.session, self._shapes
        if not projects:
            return []
        promised = self._promised = self.rights.any_promised(projects)
        with without_reservations(session, lambda other: promised and self.room.gives_way(other)):
            per_gpu = self._least // np.maximum(shapes.count, 1)
            hopeful = self.room.pool(OTHERS).may_fit(shapes, per_gpu, promised=promised)
            hopeful |= fitting(session.cluster, shapes, shapes.live & ~hopeful)
        if self.whole.exist:
            hopeful |= shapes.whole
        self._hopeful, self.dead = hopeful, DeadShapes(shapes, ~hopeful)
        self._budgets = self.rights.budgets()
        self._checked_at = -1
        self._failing.clear()
        firsts = session.demand.first_groups()
        rows = np.arange(len(firsts.project))
        rows = rows[hopeful[firsts.shape]]
        wanted = self.wants_rows(firsts, rows, self._least[firsts.shape[rows]])
        able = set(firsts.project[rows[wanted]].tolist())
        self._able = [project for project in projects if project in able]
        return self._able

    def wants(self, project: int, shape: Shape) -> bool:
        """Return True if the project may take enough for a shape that may get GPUs."""
        number = self._shapes.number(shape)
        able = self._hopeful[number] and self._least[number] <= self._budgets[project]
        return bool(able) and (shape not in self._failing or not self._failing[shape][project])

    def wants_rows(self, firsts: FirstGroups, rows: Ints, least: Ints) -> Bools:
        """Return which ``rows`` of shapes that may get GPUs are wanted; see ``Wanted``."""
        able = np.asarray(least <= self._budgets[firsts.project[rows]])
        for shape, failing in self._failing.items():
            able &= ~(firsts.of_shapes([shape], rows) & failing[firsts.project[rows]])
        return able

    def also_failed(self) -> AbstractSet[int]:
        """Return the projects whose work of the same shape was found to fail too by the last call of ``serve``."""
        return self._also_failed

    def bar(self, group: Group, replica: PendingReplica, queue: ProjectQueue) -> None:  # noqa: ARG002 - the interface
        """Bar the shape if the project may not reclaim for a single replica of it either."""
        if not self.rights.may_reclaim(group.account, self.session.placer.least_permille(group.shape)):
            queue.bar(group.shape)

    def serve(self, group: Group, replica: PendingReplica) -> bool:
        """Hold GPUs for an entitled group, by eviction of projects above their fair share if needed."""
        self._also_failed = frozenset()
        served = self._reclaim(group, replica)
        if served:
            self._budgets[group.account.project] = self.rights.budget(group.account.project)
            self._failing.clear()
        return served

    def _reclaim(self, group: Group, replica: PendingReplica) -> bool:
        account, need = group.account, self.room.permille(group)
        if not self.room.is_owed(group) or group.shape.gpuless:
            return False
        known = self._key(group, need)
        if self._is_known(known, group):
            self._spares_whole = known not in self._hopeless
            self._fail_with(group, need, exhaustive=known in self._impossible)
            self._stop_if_all_fail()
            return False
        if self.room.nominate(group, replica):
            return True
        if need > self.session.ledger.room(account):
            return False
        self.room.work.begin()
        self._exhaustive, self._spares_whole = self._stands_for_others(group), False
        if self._take(group, replica, need) or self._take_reserved(group, replica, need):
            return True
        (self._outgrown if self._spares_whole else self._hopeless).add(known)
        if self._exhaustive:
            self._impossible.add(known)
        self._fail_with(group, need, exhaustive=self._exhaustive)
        return False

    def _key(self, group: Group, need: int) -> tuple[object, ...]:
        """Return everything that decides the search of a group, except whether it ``outgrows`` its bound.

        After one search failed, all others with the same key fail. If it failed because whole GPUs were left out, only
        those fail that must leave them out too.
        """
        account = group.account
        standing = self.rights.standing(account, need, self.room.pool(OTHERS).sizes)
        claimant = account.project if self.whole.of(group, need) else None
        protected = account.project if self.session.depends_on_protected(group.shape, account) else None
        evicted = len(self.session.outcome.evictions)
        own = (group.size, group.gang, group.joins, self._tight_budget(group))
        return (group.shape, own, standing, claimant, protected, evicted)

    def _tight_budget(self, group: Group) -> int | None:
        """Return the budget of a group if it excludes the models on which the request takes the most of a GPU."""
        if group.shape.fixed_permille is not None:
            return None
        budget = self._budget(group)
        return budget if budget < self.session.placer.most_permille(group.shape) else None

    def _stop_if_all_fail(self) -> None:
        """Give up all shapes if the search of every waiting group is known to fail.

        Each call checks some groups only, and the next call continues, so that the checks cost little if they find one
        without a failed search. They start again after a change.
        """
        if self._checked_at != self.session.moves:
            self._checked_at, self._unchecked = self.session.moves, self._groups()
            self._open = next(self._unchecked, None)
        for _ in range(_CHECKS):
            if self._open is None:
                self.dead.add_all(self._hopeful)
                self._hopeful = np.zeros_like(self._hopeful)
                return
            if not self._fails(self._open):
                return
            self._open = next(self._unchecked, None)

    def _groups(self) -> Iterator[Group]:
        """Yield a waiting group of each kind that a project may reclaim for."""
        queues = self.session.demand.project_queues
        for project in self._able:
            for shape in queues[project]:
                if self.wants(project, shape):
                    yield from {self._kind(group): group for group in queues[project][shape].values()}.values()

    def _kind(self, group: Group) -> tuple[object, ...]:
        """Return what distinguishes the searches of a project's groups of one shape."""
        account = group.account
        return (account.model, account.preemptible, group.size, group.gang, group.joins, self._tight_budget(group))

    def _fails(self, group: Group) -> bool:
        return not self.room.is_owed(group) or self._is_known(self._key(group, self.room.permille(group)), group)

    def _is_known(self, key: tuple[object, ...], group: Group) -> bool:
        """Return whether the search of a group with this key is known to fail."""
        return key in self._hopeless or (key in self._outgrown and self.whole.outgrows(group))

    def _take(self, group: Group, replica: PendingReplica, need: int) -> bool:
        return (
            self._reclaim_share(group, replica, need)
            or self._reclaim_model(group, replica, need)
            or self._reclaim_whole(group, replica, need)
        )

    def _take_reserved(self, group: Group, replica: PendingReplica, need: int) -> bool:
        """Do the same with a configured quota, on GPUs that are held for groups without one."""
        if not self.room.promised(group):
            return False
        with without_reservations(self.session, self.room.gives_way) as anything:
            return anything and (self.room.nominate(group, replica) or self._take(group, replica, need))

    def _reclaim_share(self, group: Group, replica: PendingReplica, need: int) -> bool:
        """Reclaim by fair share: from projects above theirs."""
        pool, project = self.room.pool(OTHERS), group.account.project
        accepted = self.room.session.placer.accepted(group.shape)
        among = self.rights.by_share(pool, project, need, accepted)
        whole = among & (pool.pieces.freed.gpu >= WHOLE_GPU).any(axis=1)
        if whole.any() and self.whole.outgrows(group):
            among &= ~whole
            self._exhaustive, self._spares_whole = False, True  # other projects may take these
        refused = self.rights.refuses(pool, project, need, accepted)
        why = partial(reason_of, kind=EvictionKind.RECLAIM)
        search = self._search(group, pool, among, refused)
        if self._exhaustive and (search is None or not search.may_succeed()):
            return False
        self._exhaustive = False
        return self._reclaim_from(group, replica, search, why)

    def _reclaim_model(self, group: Group, replica: PendingReplica, need: int) -> bool:
        """Reclaim by a GPU model quota: from projects that hold such GPUs beyond their own quota."""
        if not self.rights.models.may_take(group.account, need):
            return False
        pool = self.room.pool(OTHERS)
        among, refused = self.rights.by_model(pool, group.account), self.rights.refuses_model(pool, group.account)
        why = partial(reason_of_model, model=group.shape.request.models[0], account=group.account)
        return self._reclaim_from(group, replica, self._search(group, pool, among, refused), why)

    def _reclaim_whole(self, group: Group, replica: PendingReplica, need: int) -> bool:
        """Reclaim by a quota in whole GPUs: from projects whose footprint exceeds theirs."""
        claim = self.whole.of(group, need)
        found = self.whole.effective(claim, need) if claim else None
        if claim is None or found is None:
            return False
        session, pool = self.session, self.room.pool(ALL_PRIORITIES)
        accepted = session.placer.accepted(group.shape)
        open_ = self.rights.open_to_whole(pool, accepted, promised=claim.promised)
        needs = [
            Need(choice.shape, session.placer.accepted(choice.shape), UNBOUNDED, group.size)
            for choice in model_choices(session, group)
        ]
        why = partial(reason_of_parts, used=found.standing.used, due=claim.bounds.project)
        return any(
            self.room.carry_out(group, replica, clearing, EvictionKind.RECLAIM, why, pool)
            for need_of in needs
            for clearing in GpuClearing(session, pool, found, open_, need_of, self.room.work).clearings(group)
            if not self.rights.takes_safe(pool, clearing.slots, accepted)
        )

    def _search(self, group: Group, pool: VictimPool, among: Bools, refused: Refused) -> Search | None:
        return self.room.search(group, pool, among, refused, self._budget(group))

    def _budget(self, group: Group) -> int:
        """Return the most thousandths that each replica of a group may take."""
        return min(self.session.ledger.room(group.account), self.rights.budget(group.account.project)) // group.size

    def _reclaim_from(self, group: Group, replica: PendingReplica, search: Search | None, why: Why) -> bool:
        return search is not None and self.room.evict(group, replica, search, EvictionKind.RECLAIM, why)

    def _stands_for_others(self, group: Group) -> bool:
        """Return True if the search of a group depends on its shape and on the rights of its project only."""
        placer = self.session.placer
        if group.gang is not None or self._budget(group) < placer.most_permille(group.shape):
            return False
        if self.session.depends_on_protected(group.shape, group.account):
            return False
        if self.rights.models.of_interest(group.shape.request.models) or (group.shape.whole and self.whole.exist):
            return False
        return not (self._promised and self.room.promised(group) and self.session.holds.reservations())

    def _fail_with(self, group: Group, need: int, *, exhaustive: bool) -> None:
        """Note that a shape fails in all projects with the same standing as the one in which it failed.

        With ``exhaustive``, in all that may not take more.
        """
        demand, shape, pieces = self.session.demand, group.shape, self.room.pool(OTHERS).sizes
        if group.gang is not None or self.rights.models.of_interest(shape.request.models) or self.whole.of(group, need):
            return
        if self._tight_budget(group) is not None or self.session.depends_on_protected(shape, group.account):
            return  # others may have a larger budget, or may use more GPUs
        if shape not in self._failing:
            self._failing[shape] = np.zeros(len(self.session.ledger.projects), np.bool_)
        failing, others = self._failing[shape], demand.first_groups().projects_with(shape)
        others = others[~failing[others]]
        compare = self.rights.may_take_no_more if exhaustive else self.rights.stands_like
        failed = others[compare(others, group.account.project, need, pieces)]
        if self._spares_whole:
            failed = failed[self.whole.outgrown_by(failed, group)]
        if shape.whole and self.whole.exist:
            failed = failed[~self.whole.claimed_by(failed, need)]
        self._also_failed = set(failed.tolist()) - demand.shape_gangs.get(shape, Counter()).keys()
        failing[list(self._also_failed)] = True
