"""Serve waiting work by evictions: each action in the scheduling order, within the search bounds of one cycle."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol

from gpupool.scheduling.eviction.planner import EvictionPlanner
from gpupool.scheduling.eviction.victim_search import OutOfWorkError
from gpupool.scheduling.scheduling_order import SchedulingOrder, Wanted
from gpupool.scheduling.session import SchedulingSession
from gpupool.scheduling.state.allocation import Bools, Ints
from gpupool.scheduling.state.cluster import Shape
from gpupool.scheduling.state.queue import Group, ProjectQueue
from gpupool.scheduling.state.queue_tables import DeadShapes, FirstGroups, Searched
from gpupool.scheduling.values import EvictionKind, PendingReplica

RETRY_S = 0.25  # delay before an interrupted search continues
MAX_RETRY_S = 8.0  # upper bound of that delay, while only time has passed
_ENOUGH_ROUNDS = 2  # after a change: the rest of the round in which it happened, and a whole one


class EvictionAction(Protocol):
    """A kind of eviction for waiting work: between projects (``Reclaim``) or inside one (``Preemption``)."""

    kind: EvictionKind
    dead: DeadShapes  # may grow

    def projects(self) -> list[int]:
        """Return the projects with waiting work that may evict."""

    def hopeful(self, projects: list[int]) -> list[int]:
        """Return those of ``projects`` that evictions may help."""

    def wants(self, project: int, shape: Shape) -> bool:
        """Return True if evictions may help work of this shape in a project."""

    def wants_rows(self, firsts: FirstGroups, rows: Ints, least: Ints) -> Bools:
        """Return which ``rows`` ``wants`` is true for; see ``Wanted``."""

    def serve(self, group: Group, replica: PendingReplica) -> bool:
        """Hold GPUs for a group, by evictions if needed."""

    def also_failed(self) -> AbstractSet[int]:
        """Return the projects whose work of the same shape was found to fail too by the last call of ``serve``."""

    def bar(self, group: Group, replica: PendingReplica, queue: ProjectQueue) -> None:
        """Remove from a queue what cannot be served either after ``group`` was not."""


def serve_by_eviction(planner: EvictionPlanner, actions: Sequence[EvictionAction]) -> bool:
    """Decide on evictions for work that does not fit; the session then looks as if the victims had ended.

    The search of a cycle is bounded (``Settings.max_looks``). If the bound is reached, the next cycle starts with the
    work that was left out, until all work was searched: a round. Return True if the bound was reached and not all work
    was searched since a replica was added, started or removed. Until then a search continues after ``RETRY_S``, later
    after twice the time in each round.
    """
    session, in_vain = planner.session, Searched()
    entitled = [(action, action.projects()) for action in actions]
    reserved = any(session.demand.evictable.values()) and session.holds.reservations()  # they hide an entitlement
    if not (reserved or any(projects for _, projects in entitled)):
        session.demand.searched.clear()
        return False
    session.discharge_leaving()
    demand = session.demand
    if session.change_counts != demand.searched_for:
        demand.searched_for, demand.search_rounds = session.change_counts, 0
    try:
        _retry_reserved(session, actions, in_vain)
        for again in (False, True) if demand.searched else (False,):
            earlier = demand.searched.copy()
            if again:
                demand.search_rounds += 1
                demand.searched.clear()
            for action, projects in entitled:
                _serve_all(planner, action, action.hopeful(projects), in_vain, earlier, again=again)
        demand.searched.clear()
    except OutOfWorkError:
        demand.searched.update(in_vain)
        slower = max(0, demand.search_rounds - _ENOUGH_ROUNDS + 1)
        session.outcome.wake_at(session.now + min(RETRY_S * 2.0 ** min(slower, 16), MAX_RETRY_S))
        return demand.search_rounds < _ENOUGH_ROUNDS
    return False


def _retry_reserved(session: SchedulingSession, actions: Sequence[EvictionAction], in_vain: Searched) -> None:
    """Let replicas with a reservation evict too: there may be new victims."""
    for leader, reserved in session.holds.reservations().items():
        keys, group = [active.hold.key for active in reserved], session.demand.group_of(leader)
        if group is None or not session.holds.active.keys() >= set(keys):  # it was released for an earlier one
            continue
        project, shape = group.account.project, group.shape
        if any(session.demand.searched.has(action.kind, project, shape) for action in actions):
            continue
        active_holds = [session.holds.remove(key) for key in keys]
        replica, served = session.demand.pending[leader], False
        try:
            served = any(action.serve(group, replica) for action in actions)
            for action in () if served else actions:
                in_vain.add(action.kind, shape, {project})
        finally:
            for active in () if served else active_holds:
                session.holds.add(active)


class _Open(Wanted):
    """Selects the work that an action wants and that ``earlier`` cycles left out; with ``again`` the other one."""

    def __init__(self, action: EvictionAction, earlier: Searched, *, again: bool) -> None:
        self._action, self._earlier, self._again = action, earlier, again
        self._done: Bools | None = None  # of each row

    def wants(self, project: int, shape: Shape) -> bool:
        done = self._earlier.has(self._action.kind, project, shape)
        return done is self._again and self._action.wants(project, shape)

    def wants_rows(self, firsts: FirstGroups, rows: Ints, least: Ints) -> Bools:
        if self._done is None:
            self._done = self._earlier.rows(self._action.kind, firsts)
        done = self._done[rows]
        return (done if self._again else ~done) & self._action.wants_rows(firsts, rows, least)


def _serve_all(
    planner: EvictionPlanner,
    action: EvictionAction,
    projects: list[int],
    in_vain: Searched,
    earlier: Searched,
    *,
    again: bool,
) -> None:
    """Serve one after another: those that ``earlier`` cycles of the round left out, or with ``again`` the others."""
    session, work, kind = planner.session, planner.work, action.kind
    if not projects:
        return
    turns = SchedulingOrder(session, projects, action.dead, _Open(action, earlier, again=again))
    while (first := turns.next()) is not None:
        group, replica, queue = first
        project = group.account.project
        work.consider()
        if not action.serve(group, replica):
            in_vain.add(kind, group.shape, {project} | action.also_failed())
            queue.drop()
            action.bar(group, replica, queue)
            turns.renew(session.demand.first_groups().shapes.mask([group.shape]))
        turns.again(project)
