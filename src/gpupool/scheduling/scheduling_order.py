"""The scheduling order: the most deprived project first, and the first replica of its queue."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from math import inf

import numpy as np

from gpupool.scheduling.session import SchedulingSession
from gpupool.scheduling.state.allocation import Bools, Ints
from gpupool.scheduling.state.cluster import Shape
from gpupool.scheduling.state.ledger import UNBOUNDED
from gpupool.scheduling.state.queue import Group, ProjectQueue
from gpupool.scheduling.state.queue_tables import DeadShapes, FirstGroups, marked
from gpupool.scheduling.values import PendingReplica

_First = tuple[Group, PendingReplica]
_MISSES = 32  # projects that come up without wanted work before the others are filtered again
_Turn = tuple[int, float, float, float, int]  # see ``Shares.order``; queue time, project


class Wanted:
    """Selects the work that comes up in a scheduling order: here, all of it."""

    def wants(self, project: int, shape: Shape) -> bool:  # noqa: ARG002 - for subclasses
        """Return whether work of a shape in a project is wanted."""
        return True

    def wants_rows(self, firsts: FirstGroups, rows: Ints, least: Ints) -> Bools:  # noqa: ARG002 - for subclasses
        """Return which ``rows`` are wanted; a replica of ``rows[i]`` needs ``least[i]`` thousandths at least."""
        return np.ones(len(rows), np.bool_)


class SchedulingOrder:
    """The scheduling order of projects: the most deprived first, each with the first replica of its queue.

    A project's key only grows while work is granted, so an old key is a lower bound. It is checked when the project
    comes up, and put back if it was too low. All keys are renewed when an eviction lowers the use of a project or its
    department, and those of the projects whose first replica is no longer wanted when that is known. The key of a
    project that has not come up and whose use has changed in this cycle is for its smallest wanted replica.
    """

    def __init__(
        self,
        session: SchedulingSession,
        projects: Iterable[int],
        dead: DeadShapes | None = None,
        wanted: Wanted | None = None,
    ) -> None:
        """Include ``projects`` with shapes that are ``wanted`` and not ``dead``; the set of dead shapes may grow."""
        self._shapes = session.demand.first_groups().shapes
        self._session, self._dead, self._wanted = session, dead or DeadShapes(self._shapes), wanted or Wanted()
        self._queues: dict[int, ProjectQueue] = {}
        self._alive, self._alive_at = self._shapes.live & ~self._dead.mask, self._dead.version
        self._followed = self._alive  # as of the last call of ``next``
        self._any_alive = bool(self._alive.any())
        self._least = session.placer.least_of(self._shapes)
        self._projects = np.fromiter(projects, np.int64)
        count = len(session.ledger.projects)
        self._came_up = np.zeros(count, np.bool_)
        included = marked(set(self._projects.tolist()), count)[session.demand.first_groups().project]
        self._rows = np.flatnonzero(included)  # of the first groups
        self._seen, self._use = session.moves, self._use_now()
        self._checked: dict[int, tuple[int, tuple[_Turn, _First] | None]] = {}  # with the moves that it is for
        self._heap: list[_Turn] = []  # of projects that came up
        self._include()

    def _include(self) -> None:
        """Set the order of the projects that have not come up yet."""
        session, firsts = self._session, self._session.demand.first_groups()
        rows = self._rows[~self._came_up[firsts.project[self._rows]]]
        rows = rows[self._wanted_rows(rows)]
        first_of = firsts.first(rows, len(session.ledger.projects))
        projects = np.flatnonzero(first_of >= 0)
        first = first_of[projects]
        needs = self._least[firsts.shape[first]] * firsts.size[first]
        queued_at, changed = firsts.queued_at[first], marked(session.changed_projects, len(first_of))[projects]
        if changed.any():  # another group of a shape may be the first now
            smallest = np.full(len(first_of), UNBOUNDED)
            np.minimum.at(smallest, firsts.project[rows], self._least[firsts.shape[rows]])
            needs, queued_at = np.where(changed, smallest[projects], needs), np.where(changed, -inf, queued_at)
        self._untouched, self._keys = session.shares.orders(projects, needs, queued_at)
        self._first_rows = first_of[self._untouched]
        self._looked_at, self._misses = -1, 0
        self._advance()

    def _wanted_rows(self, rows: Ints) -> Bools:
        """Return which rows of the first groups are wanted now."""
        firsts = self._session.demand.first_groups()
        shapes = firsts.shape[rows]
        wanted = self.alive()[shapes]
        wanted[wanted] = self._wanted.wants_rows(firsts, rows[wanted], self._least[shapes[wanted]])
        return wanted

    def _advance(self) -> None:
        """Go to the next project that has not come up."""
        self._looked_at += 1
        while self._looked_at < len(self._untouched) and self._came_up[self._untouched[self._looked_at]]:
            self._looked_at += 1
        self._upcoming: _Turn | None = None
        if self._looked_at < len(self._untouched):
            rank, dept_part, part, queued_at = (column[self._looked_at].item() for column in self._keys)
            self._upcoming = rank, dept_part, part, queued_at, int(self._untouched[self._looked_at])

    def next(self) -> tuple[Group, PendingReplica, ProjectQueue] | None:
        """Return the next group; the caller grants it or drops it from the queue, then calls ``again``."""
        self._follow_use()
        before, self._followed = self._followed, self.alive()
        if before is not self._followed:
            self._any_alive = bool(self._followed.any())
            self.renew(before & ~self._followed)
        while (self._heap or self._upcoming) and self._any_alive:
            if self._upcoming is not None and (not self._heap or self._upcoming <= self._heap[0]):
                self._misses += not self._put(self._upcoming[-1])
                self._advance()
                if self._misses >= _MISSES:
                    self._include()
                continue
            turn = heappop(self._heap)
            checked = self._check(turn[-1])
            if checked is None:
                continue
            fresh, first = checked
            if fresh <= turn:
                return (*first, self._queue(turn[-1]))
            heappush(self._heap, fresh)
        return None

    def renew(self, shapes: Bools) -> None:
        """Renew the keys of projects whose first replica has one of the shapes, if it is no longer wanted.

        ``shapes`` marks them by number.
        """
        renewed = {turn for turn in self._heap if self._starts_with(turn[-1], shapes)}
        if renewed:
            self._heap = [turn for turn in self._heap if turn not in renewed]
            heapify(self._heap)
            for turn in renewed:
                self._put(turn[-1])
        if self._upcoming is None:
            return
        firsts, rest = self._session.demand.first_groups(), slice(self._looked_at, None)
        concerned = shapes[firsts.shape[self._first_rows[rest]]]
        if not concerned.any():
            return
        unwanted = ~self._wanted_rows(self._first_rows[rest][concerned])
        projects = self._untouched[rest][concerned][unwanted]
        if len(projects) > _MISSES:
            self._include()
            return
        for project in projects[~self._came_up[projects]].tolist():
            self._put(project)
        if self._came_up[self._upcoming[-1]]:
            self._advance()

    def _starts_with(self, project: int, shapes: Bools) -> bool:
        """Return whether the first replica of a project that came up was of one of the shapes."""
        checked = self._checked[project][1]
        return checked is not None and bool(shapes[self._shapes.number(checked[1][0].shape)])

    def _follow_use(self) -> None:
        """Renew the order if the use of a project or a department has dropped."""
        if self._seen == self._session.moves:
            return
        before, self._seen, self._use = self._use, self._session.moves, self._use_now()
        if (self._use < before).any():
            self._include()
            projects = [turn[-1] for turn in self._heap]
            self._heap.clear()
            for project in projects:
                self._put(project)

    def _use_now(self) -> Ints:
        """Return what each project holds, and then what the department of each project holds."""
        ledger = self._session.ledger
        return np.concatenate((ledger.used[self._projects], ledger.dept_used[ledger.dept[self._projects]]))

    def again(self, project: int) -> None:
        """Put a project back: it may have more work."""
        self._checked.pop(project, None)
        self._put(project)

    def _put(self, project: int) -> bool:
        self._came_up[project] = True
        checked = self._check(project)
        if checked is not None:
            heappush(self._heap, checked[0])
        return checked is not None

    def alive(self) -> Bools:
        """Return which shapes are not dead, by number."""
        if self._alive_at != self._dead.version:
            self._alive, self._alive_at = self._shapes.live & ~self._dead.mask, self._dead.version
        return self._alive

    def _check(self, project: int) -> tuple[_Turn, _First] | None:
        """Return the key of a project now and the first replica of its queue; None if it has no wanted work."""
        known, moves = self._checked.get(project), self._session.moves
        unwanted = known is not None and known[1] is not None and not self._may_serve(project, known[1][1][0].shape)
        if known is None or known[0] != moves or unwanted:
            known = self._checked[project] = moves, self._find(project)
        return known[1]

    def _find(self, project: int) -> tuple[_Turn, _First] | None:
        first = self._first(project)
        if first is None:
            return None
        group, replica = first
        need = int(self._least[self._shapes.number(group.shape)]) * group.size
        return (*self._session.shares.order(project, need), replica.queued_at, project), first

    def _first(self, project: int) -> _First | None:
        if project not in self._queues:
            shapes = self._wanted_shapes(project)
            first = self._session.first(project, shapes) if shapes else None
            if first is not None or not shapes:
                return first
        queue = self._queue(project)
        while (first := queue.peek()) is not None and not self._may_serve(project, first[0].shape):
            queue.bar(first[0].shape)
        return first

    def _may_serve(self, project: int, shape: Shape) -> bool:
        return shape not in self._dead and self._wanted.wants(project, shape)

    def _wanted_shapes(self, project: int) -> list[Shape]:
        waiting = self._session.demand.project_queues[project]
        return [shape for shape in waiting if self._may_serve(project, shape)]

    def _queue(self, project: int) -> ProjectQueue:
        if project not in self._queues:
            self._queues[project] = self._session.project_queue(project, self._wanted_shapes(project))
        return self._queues[project]
