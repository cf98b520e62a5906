"""The scheduling order: the most deprived project first, and the first replica of its queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from heapq import heappop, heappush

import numpy as np

from gpupool.scheduling.session import SchedulingSession
from gpupool.scheduling.state.allocation import Ints
from gpupool.scheduling.state.cluster import Shape
from gpupool.scheduling.state.ledger import UNBOUNDED
from gpupool.scheduling.state.queue import Group, ProjectQueue
from gpupool.scheduling.values import PendingReplica

_First = tuple[Group, PendingReplica]
_MANY = 100  # projects that come up before the order of the others is renewed, if more shapes are dead
_Turn = tuple[int, float, float, float, int]  # see ``Shares.order``; queue time, project


class SchedulingOrder:
    """The scheduling order of projects: the most deprived first, each with the first replica of its queue.

    A project's key only grows while work is granted, so an old key is a lower bound. It is checked when the project
    comes up, and put back if it was too low. All keys are renewed when an eviction lowers the use of a project or its
    department. The first key is for the smallest shape of the project. A checked key stays valid until the use of any
    project or the set of dead shapes changes, its first shape is not wanted any more, or ``again`` is called.
    """

    def __init__(
        self,
        session: SchedulingSession,
        projects: Iterable[int],
        dead: set[Shape],
        wanted: Callable[[int, Shape], bool],
    ) -> None:
        """Include ``projects`` with shapes that are ``wanted`` and not ``dead``; the set of dead shapes may grow."""
        self._session, self._dead, self._wanted = session, dead, wanted
        self._queues: dict[int, ProjectQueue] = {}
        self._live = session.demand.shape_projects.keys() - dead
        self._alive, self._dead_when = self._live, len(dead)
        self._least = {shape: session.placer.least_permille(shape) for shape in self._live}
        self._projects = np.fromiter(projects, np.int64)
        self._seen, self._use = session.moves, self._use_now()
        self._heap: list[_Turn] = []
        self._include(self._projects)
        self._checked: dict[int, tuple[tuple[int, int], tuple[_Turn, _First] | None]] = {}  # with the state it is for

    def _include(self, projects: Ints) -> None:
        """Set the projects that have not come up yet, in order."""
        least = {shape: self._least[shape] for shape in self.alive()}
        smallest = self._session.demand.smallest(least)[projects]
        projects, smallest = projects[smallest < UNBOUNDED], smallest[smallest < UNBOUNDED]
        self._untouched, self._keys = self._session.shares.orders(projects, smallest)
        self._included_when, self._looked_at = self._dead_when, 0
        self._upcoming = self._at(0)

    def _at(self, position: int) -> tuple[int, float, float, int] | None:
        """Return the key and the number of the project at a position of the order; None at its end."""
        if position == len(self._untouched):
            return None
        rank, dept_part, part = (column[position].item() for column in self._keys)
        return rank, dept_part, part, int(self._untouched[position])

    def next(self) -> tuple[Group, PendingReplica, ProjectQueue] | None:
        """Return the next group; the caller grants it or drops it from the queue, then calls ``again``."""
        self._follow_use()
        while (self._heap or self._upcoming) and self.alive():
            if self._upcoming is not None and (not self._heap or self._upcoming[:3] <= self._heap[0][:3]):
                self._put(self._upcoming[-1])
                self._looked_at += 1
                self._upcoming = self._at(self._looked_at)
                if self._looked_at >= _MANY and self._included_when != self._dead_when:
                    self._include(self._untouched[self._looked_at :])
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

    def _follow_use(self) -> None:
        """Renew the order if the use of a project or a department has dropped."""
        if self._seen == self._session.moves:
            return
        before, self._seen, self._use = self._use, self._session.moves, self._use_now()
        if (self._use < before).any():
            waiting = np.array([turn[-1] for turn in self._heap], np.int64)
            self._heap.clear()
            self._include(np.unique(np.concatenate((waiting, self._untouched[self._looked_at :]))))

    def _use_now(self) -> Ints:
        """Return what each project holds, and then what the department of each project holds."""
        ledger = self._session.ledger
        return np.concatenate((ledger.used[self._projects], ledger.dept_used[ledger.dept[self._projects]]))

    def again(self, project: int) -> None:
        """Put a project back: it may have more work."""
        self._checked.pop(project, None)
        self._put(project)

    def _put(self, project: int) -> None:
        checked = self._check(project)
        if checked is not None:
            heappush(self._heap, checked[0])

    def alive(self) -> AbstractSet[Shape]:
        """Return the shapes that are not dead."""
        if len(self._dead) != self._dead_when:
            self._alive, self._dead_when = self._live - self._dead, len(self._dead)
        return self._alive

    def _check(self, project: int) -> tuple[_Turn, _First] | None:
        """Return the key of a project now and the first replica of its queue; None if it has no wanted work."""
        state = self._session.moves, len(self._dead)
        known = self._checked.get(project)
        unwanted = known is not None and known[1] is not None and not self._wanted(project, known[1][1][0].shape)
        if known is None or known[0] != state or unwanted:
            known = self._checked[project] = state, self._find(project)
        return known[1]

    def _find(self, project: int) -> tuple[_Turn, _First] | None:
        first = self._first(project)
        if first is None:
            return None
        group, replica = first
        need = self._least[group.shape] * group.size
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
        return shape not in self._dead and self._wanted(project, shape)

    def _wanted_shapes(self, project: int) -> list[Shape]:
        waiting = self._session.demand.project_queues[project]
        return [shape for shape in waiting.keys() & self.alive() if self._wanted(project, shape)]

    def _queue(self, project: int) -> ProjectQueue:
        if project not in self._queues:
            self._queues[project] = self._session.project_queue(project, self._wanted_shapes(project))
        return self._queues[project]
