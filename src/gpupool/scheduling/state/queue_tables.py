"""Tables about waiting work that are kept from one cycle to the next: first groups, least needs, failed searches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import numpy as np

from gpupool.scheduling.state.allocation import Bools, Ints
from gpupool.scheduling.state.cluster import Shape
from gpupool.scheduling.state.ledger import UNBOUNDED, Ledger
from gpupool.scheduling.values import EvictionKind

First = tuple[Shape, int, float]  # of a group: its shape, size, and the queue time of its first replica
_NOTHING = 0  # instead of the number of a shape: the row is free


def marked(numbers: AbstractSet[int], count: int) -> Bools:
    """Return a mask of ``count`` rows with some marked."""
    mask = np.zeros(count, np.bool_)
    mask[list(numbers)] = True
    return mask


class FirstGroups:
    """The first group of each shape in the queue of each project, as rows of arrays in no particular order.

    ``project`` is its number, ``size`` how many replicas start at once, ``queued_at`` the queue time of the first.
    """

    def __init__(self) -> None:
        self.project, self.size, self.queued_at = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
        self._shape, self._place = np.zeros(0, np.int64), np.zeros(0, np.int64)  # number; place in its project
        self._rows: dict[int, list[tuple[int, Shape]]] = {}  # by project
        self._free: list[int] = []
        self._numbers: dict[Shape, int] = {}
        self._uses: Counter[Shape] = Counter()  # rows of each shape
        self._free_numbers: list[int] = []
        self._outdated: set[int] = set()

    def outdate(self, project: int) -> None:
        """Note that the queue of a project, or its order, has changed."""
        self._outdated.add(project)

    def update(self, firsts_of: Callable[[int], Sequence[First]]) -> None:
        """Read the queues that have changed; ``firsts_of`` returns the first groups of a project, in order."""
        if not self._outdated:
            return
        for project in self._outdated:
            self._remove(project)
        added = [(project, *entry) for project in self._outdated for entry in enumerate(firsts_of(project))]
        self._outdated.clear()
        self._reserve(len(added))
        rows = [self._free.pop() for _ in added]
        numbers = [self._enter(project, row, first[0]) for row, (project, _, first) in zip(rows, added, strict=True)]
        self.project[rows] = [project for project, _, _ in added]
        self._place[rows] = [place for _, place, _ in added]
        self._shape[rows] = numbers
        self.size[rows] = [size for _, _, (_, size, _) in added]
        self.queued_at[rows] = [queued_at for _, _, (_, _, queued_at) in added]

    def _remove(self, project: int) -> None:
        removed = self._rows.pop(project, [])
        for row, shape in removed:
            self._free.append(row)
            self._uses[shape] -= 1
            if not self._uses[shape]:
                del self._uses[shape]
                self._free_numbers.append(self._numbers.pop(shape))
        self._shape[[row for row, _ in removed]] = _NOTHING

    def _enter(self, project: int, row: int, shape: Shape) -> int:
        if shape not in self._numbers:
            self._numbers[shape] = self._free_numbers.pop() if self._free_numbers else len(self._numbers) + 1
        self._uses[shape] += 1
        self._rows.setdefault(project, []).append((row, shape))
        return self._numbers[shape]

    def _reserve(self, rows: int) -> None:
        more, before = rows - len(self._free), len(self.project)
        if more <= 0:
            return
        more = max(more, before)
        self._free += range(before, before + more)
        none = np.zeros(more, np.int64)
        self.project, self.size = np.r_[self.project, none], np.r_[self.size, none]
        self._shape, self._place = np.r_[self._shape, none], np.r_[self._place, none]
        self.queued_at = np.r_[self.queued_at, np.zeros(more)]

    def of_shapes(self, shapes: AbstractSet[Shape], rows: Ints) -> Bools:
        """Return which of some rows are of one of the shapes."""
        numbers = {self._numbers[shape] for shape in shapes & self._numbers.keys()}
        return marked(numbers, len(self._numbers) + len(self._free_numbers) + 1)[self._shape[rows]]

    def projects_with(self, shape: Shape) -> Ints:
        """Return the projects in whose queue a shape is."""
        return np.asarray(self.project[self.of_shapes({shape}, np.arange(len(self.project)))])

    def by_shape(self, values: Mapping[Shape, int], other: int, rows: Ints) -> Ints:
        """Return for each of some rows the value of its shape; ``other`` for free rows and other shapes."""
        by_number = np.full(len(self._numbers) + len(self._free_numbers) + 1, other)
        for shape in values.keys() & self._numbers.keys():
            by_number[self._numbers[shape]] = values[shape]
        return np.asarray(by_number[self._shape[rows]])

    def first(self, rows: Ints, projects: int) -> Ints:
        """Return the first of ``rows`` of each project in its order, -1 for none; ``projects`` is their number."""
        count = max(len(self.project), 1)
        best = np.full(projects, UNBOUNDED)
        np.minimum.at(best, self.project[rows], self._place[rows] * count + rows)
        return np.where(best < UNBOUNDED, best % count, -1)


class LeastNeeds:
    """The least that each user with GPU work in a queue needs: for the smallest of its groups there, in thousandths.

    A request for memory counts as one thousandth. Rows are by ``Account.pair``; 0 stands for no such work.
    """

    def __init__(self) -> None:
        self._needs = np.zeros(0, np.int64)
        self._outdated: set[int] = set()

    def outdate(self, project: int) -> None:
        """Note that the queue of a project has changed."""
        self._outdated.add(project)

    def rows(self, ledger: Ledger, needs_of: Callable[[int], Iterable[tuple[int, int]]]) -> Ints:
        """Return the rows for the queues as they are; ``needs_of`` yields user and need of each group of a project."""
        needs = np.zeros(len(ledger.pair_project), np.int64)
        needs[: len(self._needs)] = self._needs
        if self._outdated:
            needs[marked(self._outdated, len(ledger.projects))[ledger.pair_project]] = 0
        for project in self._outdated:
            for pair, need in needs_of(project):
                needs[pair] = min(need, int(needs[pair]) or need)
        self._outdated.clear()
        self._needs = needs
        return needs


@dataclass(slots=True)
class Searched:
    """For each kind of eviction and each shape the projects whose work was searched for."""

    _projects: dict[tuple[EvictionKind, Shape], set[int]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self._projects)

    def copy(self) -> Searched:
        """Return a copy."""
        return Searched({key: projects.copy() for key, projects in self._projects.items()})

    def has(self, kind: EvictionKind, project: int, shape: Shape) -> bool:
        """Return whether a project's work of a shape was searched for."""
        return project in self._projects.get((kind, shape), ())

    def rows(self, kind: EvictionKind, firsts: FirstGroups) -> Bools:
        """Return which rows of the first groups ``has`` is true for."""
        rows, found = np.arange(len(firsts.project)), np.zeros(len(firsts.project), np.bool_)
        for (other, shape), projects in self._projects.items():
            if other is kind:
                count = int(firsts.project.max(initial=max(projects))) + 1
                found |= firsts.of_shapes({shape}, rows) & marked(projects, count)[firsts.project]
        return found

    def add(self, kind: EvictionKind, shape: Shape, projects: AbstractSet[int]) -> None:
        """Add the work of a shape in some projects."""
        self._projects.setdefault((kind, shape), set()).update(projects)

    def update(self, other: Searched) -> None:
        """Add all of another one."""
        for (kind, shape), projects in other._projects.items():
            self.add(kind, shape, projects)

    def clear(self) -> None:
        """Remove everything."""
        self._projects.clear()
