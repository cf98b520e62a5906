"""Tables about waiting work that are kept from one cycle to the next: first groups, least needs, failed searches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from gpupool.domain.units import WHOLE_GPU
from gpupool.scheduling.state.allocation import Bools, Ints
from gpupool.scheduling.state.cluster import Shape
from gpupool.scheduling.state.ledger import UNBOUNDED, Ledger
from gpupool.scheduling.state.undo import grown
from gpupool.scheduling.values import EvictionKind

First = tuple[Shape, int, float]  # of a group: its shape, size, and the queue time of its first replica
_NOTHING = 0  # instead of the number of a shape: the row is free
_Rules = tuple[object, ...]  # see ``WaitingShapes``


def marked(numbers: AbstractSet[int], count: int) -> Bools:
    """Return a mask of ``count`` rows with some marked."""
    mask = np.zeros(count, np.bool_)
    mask[list(numbers)] = True
    return mask


class WaitingShapes:
    """The shapes in the queue as rows of arrays, by a number that each has while it waits; row 0 is for none.

    A shape needs ``count`` GPUs with ``permille`` of each, or with ``gpu_memory`` MiB of each (0: by part), and of the
    node ``cpu`` thousandths and ``memory`` MiB. ``rules`` numbers what else decides where it fits, ``examples`` has a
    shape for each of these numbers. ``starved`` marks those with a replica that has waited long, see ``Demand.mature``.
    ``version`` grows with every shape, and ``entered`` has its value for each, so that results for an earlier shape of
    a number are not used for its successor.
    """

    def __init__(self) -> None:
        self.live, self.starved = np.zeros(1, np.bool_), np.zeros(1, np.bool_)
        self.entered = np.zeros(1, np.int64)
        self.count, self.permille, self.gpu_memory = (np.zeros(1, np.int64) for _ in range(3))
        self.cpu, self.memory, self.rules = (np.zeros(1, np.int64) for _ in range(3))
        self.examples: dict[int, Shape] = {}
        self._shapes: list[Shape | None] = [None]
        self._numbers: dict[Shape, int] = {}
        self._free: list[int] = []
        self._rules: dict[_Rules, int] = {}
        self._free_rules: list[int] = []
        self._uses: Counter[int] = Counter()  # shapes with each number of rules
        self.version = 0

    def number(self, shape: Shape) -> int:
        """Return the number of a shape; 0 if it does not wait."""
        return self._numbers.get(shape, _NOTHING)

    @property
    def whole(self) -> Bools:
        """Return which shapes request whole GPUs, by number."""
        return np.asarray(self.live & (self.count > 0) & (self.gpu_memory == 0) & (self.permille == WHOLE_GPU))

    def named(self, mask: Bools) -> Iterator[Shape]:
        """Yield the shapes whose rows are marked."""
        for number in np.flatnonzero(mask).tolist():
            if (shape := self._shapes[number]) is not None:
                yield shape

    def mask(self, shapes: Iterable[Shape]) -> Bools:
        """Return a mask of the rows of some shapes; those that do not wait are ignored."""
        mask, number = np.zeros(len(self.live), np.bool_), self._numbers.get
        mask[[number(shape, _NOTHING) for shape in shapes]] = True
        mask[_NOTHING] = False
        return mask

    def enter(self, shape: Shape) -> int:
        """Add a shape and return its number."""
        if not self._free:
            self._widen()
        number = self._numbers[shape] = self._free.pop()
        request, self.version = shape.request, self.version + 1
        self._shapes[number], self.entered[number] = shape, self.version
        self.live[number], self.starved[number] = True, False
        self.count[number], self.permille[number] = request.count, request.permille
        self.gpu_memory[number] = request.memory_mib or 0
        self.cpu[number], self.memory[number] = shape.cpu_milli, shape.mem_mib
        rules = _rules_of(shape)
        if rules not in self._rules:
            used = self._rules[rules] = self._free_rules.pop() if self._free_rules else len(self.examples)
            self.examples[used] = shape
        self.rules[number] = self._rules[rules]
        self._uses[self._rules[rules]] += 1
        return number

    def leave(self, shape: Shape) -> None:
        """Remove a shape."""
        number = self._numbers.pop(shape)
        self._shapes[number], self.live[number] = None, False
        self._free.append(number)
        used = int(self.rules[number])
        self._uses[used] -= 1
        if not self._uses[used]:
            del self._uses[used], self._rules[_rules_of(shape)], self.examples[used]
            self._free_rules.append(used)

    def _widen(self) -> None:
        before = len(self.live)
        after = max(2 * before, 64)
        for name in ("live", "starved", "entered", "count", "permille", "gpu_memory", "cpu", "memory", "rules"):
            setattr(self, name, grown(getattr(self, name), (after,)))
        self._shapes += [None] * (after - before)
        self._free += range(after - 1, before - 1, -1)


def _rules_of(shape: Shape) -> _Rules:
    """Return what decides where a shape fits, apart from amounts; see ``node_filter``."""
    request = shape.request
    several, by_memory = request.count > 1, request.memory_mib is not None
    node = (request.labels, shape.pools, shape.guest, request.gpu_uuid, request.models, shape.model)
    return (*node, request.sharing, request.exceeds_mode, request.whole, by_memory, several, shape.user)


class DeadShapes:
    """The waiting shapes that cannot be served, by number; their number only grows. ``version`` grows with it."""

    def __init__(self, shapes: WaitingShapes, mask: Bools | None = None) -> None:
        self.shapes, self.version = shapes, 0
        self.mask = np.zeros(len(shapes.live), np.bool_) if mask is None else mask & shapes.live

    def __contains__(self, shape: Shape) -> bool:
        return bool(self.mask[self.shapes.number(shape)])

    def add(self, shape: Shape) -> None:
        """Add a shape that waits."""
        self.mask[self.shapes.number(shape)] = True
        self.version += 1

    def add_all(self, mask: Bools) -> None:
        """Add the shapes whose rows are marked."""
        self.mask |= mask & self.shapes.live
        self.version += 1


class FirstGroups:
    """The first group of each shape in the queue of each project, as rows of arrays in no particular order.

    ``project`` is its number, ``size`` how many replicas start at once, ``queued_at`` the queue time of the first.
    ``shape`` is the number of the shape in ``shapes``; 0 for free rows.
    """

    def __init__(self) -> None:
        self.project, self.size, self.queued_at = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
        self.shapes, self.shape = WaitingShapes(), np.zeros(0, np.int64)
        self._place = np.zeros(0, np.int64)  # in its project
        self._rows: dict[int, list[tuple[int, Shape]]] = {}  # by project
        self._free: list[int] = []
        self._uses: Counter[Shape] = Counter()  # rows of each shape
        self._outdated: set[int] = set()

    def outdate(self, project: int) -> None:
        """Note that the queue of a project, or its order, has changed."""
        self._outdated.add(project)

    def update(self, firsts_of: Callable[[int], Sequence[First]]) -> None:
        """Read the queues that have changed; ``firsts_of`` returns the first groups of a project, in order."""
        if not self._outdated:
            return
        emptied = {shape for project in self._outdated for shape in self._remove(project)}
        added = [(project, *entry) for project in self._outdated for entry in enumerate(firsts_of(project))]
        self._outdated.clear()
        self._reserve(len(added))
        rows = [self._free.pop() for _ in added]
        numbers = [self._enter(project, row, first[0]) for row, (project, _, first) in zip(rows, added, strict=True)]
        self.project[rows] = [project for project, _, _ in added]
        self._place[rows] = [place for _, place, _ in added]
        self.shape[rows] = numbers
        self.size[rows] = [size for _, _, (_, size, _) in added]
        self.queued_at[rows] = [queued_at for _, _, (_, _, queued_at) in added]
        for shape in emptied:
            if not self._uses[shape]:
                del self._uses[shape]
                self.shapes.leave(shape)

    def _remove(self, project: int) -> list[Shape]:
        """Remove the rows of a project; return the shapes that have none then."""
        removed = self._rows.pop(project, [])
        for row, shape in removed:
            self._free.append(row)
            self._uses[shape] -= 1
        self.shape[[row for row, _ in removed]] = _NOTHING
        return [shape for _, shape in removed if not self._uses[shape]]

    def _enter(self, project: int, row: int, shape: Shape) -> int:
        self._uses[shape] += 1
        self._rows.setdefault(project, []).append((row, shape))
        return self.shapes.number(shape) or self.shapes.enter(shape)

    def _reserve(self, rows: int) -> None:
        more, before = rows - len(self._free), len(self.project)
        if more <= 0:
            return
        more = max(more, before)
        self._free += range(before, before + more)
        none = np.zeros(more, np.int64)
        self.project, self.size = np.r_[self.project, none], np.r_[self.size, none]
        self.shape, self._place = np.r_[self.shape, none], np.r_[self._place, none]
        self.queued_at = np.r_[self.queued_at, np.zeros(more)]

    def of_shapes(self, shapes: Iterable[Shape], rows: Ints) -> Bools:
        """Return which of some rows are of one of the shapes."""
        return np.asarray(self.shapes.mask(shapes)[self.shape[rows]])

    def projects_with(self, shape: Shape) -> Ints:
        """Return the projects in whose queue a shape is."""
        return np.asarray(self.project[self.of_shapes([shape], np.arange(len(self.project)))])

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
        width = len(firsts.shapes.live)
        found = [
            [project * width + number for project in projects]
            for (other, shape), projects in self._projects.items()
            if other is kind and (number := firsts.shapes.number(shape))
        ]
        return np.isin(firsts.project * width + firsts.shape, list(chain.from_iterable(found)))

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
