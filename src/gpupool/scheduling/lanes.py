"""Whose turn it is in one project: its waiting groups, in order, from one look to the next."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from gpupool.scheduling.queue import Demand, Group, lane_key
from gpupool.scheduling.shape import Shape
from gpupool.scheduling.values import PendingReplica, ReplicaKey


class Lane:
    """The waiting groups of one project in the order in which they are served.

    Higher priority first; within one priority the user who holds and lately held less in the project, then by place.
    """

    __slots__ = ("_barred", "_by_user", "_cursors", "_heap", "_ledger", "_skip")

    def __init__(self, demand: Demand, groups: list[Group], skip: set[ReplicaKey]) -> None:
        self._ledger, self._skip, self._by_user = demand.ledger, skip, demand.ordering.by_user
        self._cursors: dict[Group, int] = {}
        self._barred: set[Shape] = set()
        heap = [(lane_key(self._ledger, g, 0, self._by_user), at, g) for at, g in enumerate(groups) if g.entries]
        heapify(heap)
        self._heap = heap

    def peek(self) -> tuple[Group, PendingReplica] | None:
        """Who is next; None when nobody is left."""
        while self._heap:
            key, at, group = self._heap[0]
            if group.shape in self._barred:
                heappop(self._heap)
                continue
            cursor = self._cursors.get(group, 0)
            while cursor < len(group.entries) and group.entries[cursor][2].key in self._skip:
                cursor += 1
            self._cursors[group] = cursor
            if cursor == len(group.entries):
                heappop(self._heap)
                continue
            fresh = lane_key(self._ledger, group, cursor, self._by_user)
            if fresh == key:
                return group, group.entries[cursor][2]
            heappop(self._heap)
            heappush(self._heap, (fresh, at, group))
        return None

    def drop(self) -> None:
        """The group that is next has no chance now: leave all of it out."""
        heappop(self._heap)

    def bar(self, shape: Shape) -> None:
        """No group of this shape has a chance now."""
        self._barred.add(shape)

    def close(self) -> None:
        """Nobody of this project has a chance now."""
        self._heap.clear()
