"""The waiting shapes that have a place now, all at once: the time of a cycle must not grow with every new request.

A shape fits on a node if enough of its GPUs are suitable and have the amount that the shape needs of each, and if CPU
and memory suffice. Which GPUs are suitable depends on the rules of a shape, which most shapes share. The amounts are
compared for all shapes together, and only with nodes that no other node exceeds in everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary, proxy

import numpy as np

from gpupool.domain.units import WHOLE_GPU
from gpupool.scheduling.placement.node_filter import accepted_models, suitable_rows, suitable_slots
from gpupool.scheduling.state.allocation import Bools, Ints
from gpupool.scheduling.state.cluster import ClusterState
from gpupool.scheduling.state.queue_tables import WaitingShapes

NOWHERE = -1
_UNKNOWN = -2  # the node where it fitted has changed
_NEVER = -1  # instead of a tick of the cluster: the shape is new
_NO_NEED = np.iinfo(np.int64).min
_AT_ONCE = 1 << 21  # comparisons
_FEW_ROWS = 4  # not worth a search for the largest
_FEW_RULES = 8  # not worth a check without them


_tables: WeakKeyDictionary[ClusterState, _FitTable] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """The room on R nodes of G GPUs: the amount of each GPU that can be used, CPU, and memory."""

    amounts: Ints  # [R, G]; negative: none can be used
    cpu: Ints
    memory: Ints

    def find(self, shapes: WaitingShapes, numbers: Ints, amounts: Ints) -> Ints:
        """Return for each of ``numbers`` a node with enough room, -1 for none; it needs ``amounts`` of each GPU."""
        found, counts = np.full(len(numbers), NOWHERE), shapes.count[numbers]
        nth_largest = np.sort(self.amounts, axis=1)[:, ::-1]
        cpu, memory = shapes.cpu[numbers], shapes.memory[numbers]
        needs = amounts, np.where(cpu > 0, cpu, _NO_NEED), np.where(memory > 0, memory, _NO_NEED)
        for count in different(counts):
            if count > self.amounts.shape[1]:
                continue
            room = [nth_largest[:, count - 1], self.cpu, self.memory] if count else [self.cpu, self.memory]
            rows, at = largest(room), np.flatnonzero(counts == count)
            needed = needs if count else needs[1:]
            which = _first_enough([column[rows] for column in room], [column[at] for column in needed])
            found[at] = np.where(which >= 0, rows[which], NOWHERE)
        return found


def different(numbers: Ints) -> list[int]:
    """Return the different values of small numbers that are not negative."""
    return np.flatnonzero(np.bincount(numbers)).tolist()


def largest(room: Sequence[Ints]) -> Ints:
    """Return the rows that no other row exceeds in one column without being less in another one."""
    if len(room[0]) <= _FEW_ROWS:
        return np.arange(len(room[0]))
    table, found = np.stack(room, axis=1), []
    left = np.lexsort(table.T)[::-1]
    while len(left):
        best = left[0]
        found.append(best)
        left = left[(table[left] > table[best]).any(axis=1)]
    return np.array(found, np.int64)


def _first_enough(room: Sequence[Ints], needs: Sequence[Ints]) -> Ints:
    """Return for each row of ``needs`` the first row of ``room`` that is not less in any column; -1 for none."""
    rows, count = len(room[0]), len(needs[0])
    found, step = np.full(count, NOWHERE), max(1, _AT_ONCE // max(rows, 1))
    for begin in range(0, count if rows else 0, step):
        part = slice(begin, begin + step)
        enough = np.logical_and.reduce([has >= need[part, None] for has, need in zip(room, needs, strict=True)])
        found[part] = np.where(enough.any(axis=1), enough.argmax(axis=1), NOWHERE)
    return found


def fitting(cluster: ClusterState, shapes: WaitingShapes, among: Bools) -> Bools:
    """Return which of the shapes ``among`` have a place now, by number; most is known from earlier calls."""
    table = _tables.get(cluster)
    if table is None:
        table = _tables[cluster] = _FitTable(cluster)
    return table.fitting(shapes, among)


class _FitTable:
    """For each waiting shape a node where it fits, or none; renewed for the nodes that were touched."""

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = proxy(cluster)
        self._shapes: WaitingShapes | None = None
        self._rows, self._version = 0, -1  # of the cluster; of the shapes
        self._entered, self._tick, self._place = (np.zeros(0, np.int64) for _ in range(3))

    def fitting(self, shapes: WaitingShapes, among: Bools) -> Bools:
        """Return which of the shapes ``among`` have a place now; look only at what changed since the last call."""
        self._follow(shapes)
        at, c = np.flatnonzero(among), self._cluster
        at = at[self._tick[at] != c.tick]
        if not len(at):
            return np.asarray(among & (self._place >= 0))
        new = self._tick[at] == _NEVER
        known = at[~new]
        if len(known):
            touched = c.touched_since(int(self._tick[known].min()))
            changed = np.zeros(self._rows, np.bool_)
            changed[touched] = True
            lost = (self._place[known] != NOWHERE) & changed[self._place[known]]
            self._place[known[lost]] = _UNKNOWN
            without = known[self._place[known] < 0]
            found = self._search(shapes, without, touched)
            self._place[without] = np.where(found >= 0, found, self._place[without])
        unknown = np.concatenate((at[new], known[self._place[known] == _UNKNOWN]))
        self._place[unknown] = self._search(shapes, unknown, np.flatnonzero(c.present))
        self._tick[at] = c.tick
        return among & (self._place >= 0)

    def _follow(self, shapes: WaitingShapes) -> None:
        """Discard what is known about shapes that have left, or everything if there are more nodes."""
        rows = len(self._cluster.present)
        if self._shapes is not shapes or self._rows != rows:
            self._shapes, self._rows, self._version = shapes, rows, -1
            self._entered, self._tick, self._place = (np.zeros(0, np.int64) for _ in range(3))
        if self._version == shapes.version:
            return
        more = np.full(len(shapes.entered) - len(self._entered), NOWHERE)
        self._place, self._entered = np.r_[self._place, more], np.r_[self._entered, more]
        self._tick = np.r_[self._tick, np.full(len(more), _NEVER)]
        self._tick[self._entered != shapes.entered] = _NEVER
        self._entered, self._version = shapes.entered.copy(), shapes.version

    def _search(self, shapes: WaitingShapes, numbers: Ints, rows: Ints) -> Ints:
        """Return for each of ``numbers`` one of ``rows`` where it fits, -1 for none."""
        c, found, rules = self._cluster, np.full(len(numbers), NOWHERE), shapes.rules[numbers]
        rows = rows[c.up[rows]]
        if (shapes.count[numbers] > 0).all():
            rows = rows[(c.available[rows] & (c.gpu_free[rows] > 0)).any(axis=1)]
        if not len(numbers) or not len(rows):
            return found
        left = np.arange(len(numbers))
        if len(different(rules)) > _FEW_RULES:
            left = left[self._may_fit(shapes, numbers, rows)]
            rules = rules[left]
        for rule in different(rules):
            at = left[rules == rule]
            place = self._search_alike(shapes, numbers[at], rows)
            found[at] = np.where(place >= 0, rows[place], NOWHERE)
        return found

    def _may_fit(self, shapes: WaitingShapes, numbers: Ints, rows: Ints) -> Bools:
        """Return which of ``numbers`` have enough room on one of ``rows`` if all its GPUs are suitable."""
        usable, fits = self._cluster.available[rows], np.zeros(len(numbers), np.bool_)
        for by_memory in (False, True):
            at = np.flatnonzero((shapes.gpu_memory[numbers] > 0) == by_memory)
            fits[at] = self._find(shapes, numbers[at], rows, usable) >= 0
        return fits

    def _search_alike(self, shapes: WaitingShapes, numbers: Ints, rows: Ints) -> Ints:
        """Return an index in ``rows`` for each of ``numbers``, which all have the same rules; -1 for none."""
        c, shape = self._cluster, shapes.examples[int(shapes.rules[numbers[0]])]
        suitable = np.flatnonzero(suitable_rows(c, shape, rows))
        usable = suitable_slots(c, shape, rows[suitable], accepted_models(c, shape))
        place = self._find(shapes, numbers, rows[suitable], usable)
        return np.where(place >= 0, suitable[place], NOWHERE) if len(suitable) else place

    def _find(self, shapes: WaitingShapes, numbers: Ints, rows: Ints, usable: Bools) -> Ints:
        """Return an index in ``rows`` for each of ``numbers``, all by part of a GPU or all by memory; -1 for none."""
        if not len(numbers) or not len(rows):
            return np.full(len(numbers), NOWHERE)
        c, by_memory = self._cluster, bool(shapes.gpu_memory[numbers[0]])
        most = _most_memory(c, rows) if by_memory else _most_permille(c, rows)
        needs = (shapes.gpu_memory if by_memory else shapes.permille)[numbers]
        room = Room(np.where(usable, most, -1), c.cpu_free[rows], c.mem_free[rows])
        return room.find(shapes, numbers, needs)


def _most_permille(c: ClusterState, rows: Ints) -> Ints:
    """Return the largest part of each GPU that fits, with the memory for it: the inverse of ``Shape.needs``, [R, G]."""
    total, free, memory = c.gmem_total[rows], c.gpu_free[rows], c.gmem_free[rows]
    by_memory = ((memory + 1) * WHOLE_GPU - 1) // np.maximum(total, 1)
    return np.where(total > 0, np.minimum(free, by_memory), np.where(memory >= 0, free, -1))


def _most_memory(c: ClusterState, rows: Ints) -> Ints:
    """Return the most MiB of each GPU that fit, with the part that they need; see ``_most_permille``, [R, G]."""
    total, free, memory = c.gmem_total[rows], c.gpu_free[rows], c.gmem_free[rows]
    return np.where(total > 0, np.minimum(memory, free * total // WHOLE_GPU), -1)
