"""Whom to evict so that one replica fits on one node: the cheapest single victim, or else the cheapest few found.

Exact for one victim; otherwise the first fitting prefix of each node's pieces is thinned out, on the most promising
nodes, and what proves unnecessary is given back, the most important first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from gpupool.scheduling.capacity import Freed, Need, room_with, runs
from gpupool.scheduling.claims import Bools, Ints
from gpupool.scheduling.cluster import ClusterState
from gpupool.scheduling.victims import VictimPool, freed_by

# Victims as lists of slots that go together, in order: which of the lists may not be evicted, those before being gone?
Refused = Callable[[Sequence[Sequence[int]]], list[int]]
_Cost = tuple[int, float, int, int, float]  # replicas, beyond their due, priority, thousandths, newness
_FEW = 1_000  # pieces that are looked at one by one without asking first whether all of them would do
_FIRST, _MORE = 8, 256  # pieces that are looked at before all others
_LOOK = 1_000  # trials looked at in one unit of work


class OutOfWorkError(Exception):
    """The cycle has searched as much as it may."""


class Work:
    """How much searching is left to a cycle, in looks: some array operations over a thousand trials at most.

    A search that has begun comes to its end, so that each cycle finishes one at least.
    """

    __slots__ = ("left",)

    def __init__(self, looks: int) -> None:
        self.left = looks

    def begin(self) -> None:
        """Another search begins; raises ``OutOfWorkError`` when there is nothing left for it."""
        if self.left <= 0:
            raise OutOfWorkError

    def look(self, trials: int = 1) -> None:
        """Count a look at so many trials."""
        self.left -= 1 + trials // _LOOK


@dataclass(frozen=True, slots=True)
class Clearing:
    """Whom to evict, as slots of holders; ``row`` is where that makes room, None for more than one node."""

    slots: tuple[int, ...]
    row: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Search:
    """One search among the pieces of ``pool`` that ``among`` marks, as far as ``refused`` agrees."""

    cluster: ClusterState
    pool: VictimPool
    need: Need
    among: Bools
    refused: Refused
    work: Work
    most_nodes: int

    def for_one(self) -> Clearing | None:
        """The cheapest set on one node: fewest, then of those furthest beyond their due, lowest priority, least GPU."""
        at = np.flatnonzero(self.among & self.pool.alive)
        if len(at) > _FEW:
            at = self._hopeful(at)
        if not len(at):
            return None
        p = self.pool.pieces
        for piece in islice(self._alone(self.pool.cheapest_first(at)), self.most_nodes):
            if not self.refused(self.pool.slots_of([piece])):
                clearing = self._clearing(int(p.row[piece]), [piece])
                return clearing if p.size[piece] == 1 else self._best_set(at, (self._cost([piece]), clearing))
        at = self._hopeful(at)
        return self._best_set(at, None) if len(at) else None

    def _alone(self, at: Ints) -> Iterator[int]:
        """Those after which it fits, in order; most often one of the first is taken."""
        p = self.pool.pieces
        for some in (at[:_FIRST], at[_FIRST:_MORE], at[_MORE:]):
            if len(some):
                yield from some[self.room(p.row[some], p.whole.at(some)) > 0].tolist()

    def _hopeful(self, at: Ints) -> Ints:
        """Those on nodes where it fits if all of them go."""
        if not len(at):
            return at
        p = self.pool.pieces
        rows = p.row[at]
        begins = runs(rows)
        fits = self.room(rows[begins], p.freed.at(at).by(begins)) > 0
        return at[np.repeat(fits, np.diff(np.r_[begins, len(at)]))]

    def room(self, rows: Ints, freed: Freed) -> Ints:
        """How many of the replicas fit on each of ``rows`` with ``freed`` in addition."""
        self.work.look(len(rows))
        return room_with(self.cluster, self.need, rows, freed)

    def _clearing(self, row: int, pieces: list[int]) -> Clearing:
        return Clearing(tuple(slot for group in self.pool.slots_of(pieces) for slot in group), row)

    def _best_set(self, at: Ints, best: tuple[_Cost, Clearing] | None) -> Clearing | None:
        """The cheapest of the first fitting prefixes of the most promising nodes, each thinned out, and of ``best``."""
        p = self.pool.pieces
        rows = p.row[at]
        first = np.searchsorted(rows, rows)
        fitting = np.flatnonzero(self.room(rows, p.freed.at(at).running(first)) > 0)
        ends = fitting[runs(rows[fitting])]  # the first fitting prefix of each node
        sizes = p.size[at].cumsum()
        cost = sizes[ends] - sizes[first[ends]] + p.size[at[first[ends]]]
        ends = ends[np.lexsort((p.priority[at[ends]], -p.over[at[ends]], cost))][: self.most_nodes]
        for end, slack in zip(ends.tolist(), self._with_slack(at, first[ends], ends), strict=True):
            row, found = int(rows[end]), at[first[end] : end + 1].tolist()
            if self.refused(self.pool.slots_of(found)):
                every = at[first[end] : np.searchsorted(rows, row, side="right")].tolist()
                found = self._thinned(row, self._agreed(row, every))
            elif slack:
                found = self._thinned(row, found)
            if found and (best is None or self._cost(found) < best[0]):
                best = self._cost(found), self._clearing(row, found)
        return None if best is None else best[1]

    def _with_slack(self, at: Ints, starts: Ints, ends: Ints) -> list[bool]:
        """Whether some piece of each prefix, from start to end among ``at``, may be unnecessary."""
        p, lengths = self.pool.pieces, ends - starts + 1
        if not len(ends):
            return []
        begins = lengths.cumsum() - lengths
        prefix = np.repeat(np.arange(len(ends)), lengths)
        pieces = at[np.arange(len(prefix)) - begins[prefix] + starts[prefix]]
        freed = p.freed.at(pieces)
        spare = self.room(p.row[pieces], freed.by(begins).at(prefix).minus(freed)) > 0
        return [bool(any_) for any_ in np.logical_or.reduceat(spare, begins)]

    def _agreed(self, row: int, candidates: list[int]) -> list[int]:
        """A fitting choice of those that are not refused; none if they do not suffice."""
        chosen: list[int] = []
        for piece in candidates:
            if not self.refused(self.pool.slots_of([*chosen, piece])):
                chosen.append(piece)
                if self._enough(row, chosen):
                    return chosen
        return []

    def _thinned(self, row: int, chosen: list[int]) -> list[int]:
        """Without those that are not needed, the most important given back first."""
        for piece in reversed(chosen.copy()):
            rest = [other for other in chosen if other != piece]
            if self._enough(row, rest):
                chosen = rest
        return chosen

    def _enough(self, row: int, chosen: list[int]) -> bool:
        slots = [slot for group in self.pool.slots_of(chosen) for slot in group]
        slots = [slot for slot in slots if self.pool.holders.row[slot] == row]
        return bool(slots) and bool(self.room(np.array([row]), freed_by(self.pool.holders, slots).total())[0])

    def _cost(self, chosen: list[int]) -> _Cost:
        p, groups = self.pool.pieces, self.pool.slots_of(chosen)
        slots = [slot for group in groups for slot in group]
        weight = int(self.pool.holders.permille[slots].sum())
        most = int(p.priority[chosen].max())
        return len(slots), -float(p.over[chosen].min()), most, weight, -float(p.newness[chosen].min())
