"""Possible victims as arrays of pieces: a single replica, or the part of a gang on one node.

A gang with more members than its minimum can lose its spare members one by one. The eviction of any other member ends
the whole gang. So there is a piece for each spare member (any members of the gang on the node), and one piece per node
for the rest, which costs the whole gang.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from math import inf
from typing import Any, NamedTuple, Protocol

import numpy as np

from gpupool.scheduling.outcome import CycleOutcome
from gpupool.scheduling.placement.capacity import Freed, runs
from gpupool.scheduling.placement.fit_table import Room
from gpupool.scheduling.policy import Settings
from gpupool.scheduling.state.allocation import Bools, Ints
from gpupool.scheduling.state.cluster import ClusterState
from gpupool.scheduling.state.queue import Demand
from gpupool.scheduling.state.queue_tables import WaitingShapes
from gpupool.scheduling.state.running import NO_GANG, Floats, RunningTable
from gpupool.scheduling.values import ReplicaKey

_REST = -1


class _Sorted(NamedTuple):
    """Gang members ordered by (row, gang), the preferred victims first."""

    slots: Ints
    row: Ints
    gang: Ints
    single: Bools  # can be evicted alone
    rest: Bools  # can be evicted only with the whole gang


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """P pieces that can be evicted, ordered by row and preference.

    ``size`` is the number of replicas that a piece ends and ``weight`` their thousandths, over the whole cluster.
    ``freed`` is what it frees on its ``row`` after the earlier pieces of the same gang; ``whole`` is what it frees
    there alone. ``slot`` is that of the replica, or -1 for the rest of a gang; ``gang`` is its number, or ``NO_GANG``.
    ``shielded_until`` is as in ``RunningTable``; a gang is shielded as long as its oldest member. ``stake`` is the work
    that would be lost, as in ``RunningTable.at_stake``. Pieces with a loss are evicted only for a configured quota.
    """

    row: Ints
    slot: Ints
    gang: Ints
    project: Ints
    priority: Ints
    size: Ints
    weight: Ints
    newness: Floats
    shielded_until: Floats
    over: Floats
    stake: Floats
    freed: Freed
    whole: Freed

    def __len__(self) -> int:
        return len(self.row)


class CycleState(Protocol):
    """The state of a cycle, as far as a pool of victims reads it."""

    @property
    def cluster(self) -> ClusterState:
        """Return the cluster."""

    @property
    def demand(self) -> Demand:
        """Return the waiting and running replicas."""

    @property
    def outcome(self) -> CycleOutcome:
        """Return the decisions so far."""

    @property
    def settings(self) -> Settings:
        """Return the settings."""

    @property
    def now(self) -> float:
        """Return the time."""


class VictimPool:
    """The evictable replicas of some projects, and what the eviction of each would free.

    Left out: protected work, replicas that are ending, replicas within their min-runtime, and nodes that are gone or
    take no work. ``over`` is the ratio of each project to its fair share. A gang has run as long as its oldest member.
    ``alive`` marks the pieces that were not evicted in this cycle.
    """

    def __init__(self, session: CycleState, projects: Bools, over: Floats) -> None:
        self._session, self._projects, self._over = session, projects, over
        self.holders: RunningTable = session.demand.holders
        self.holders.catch_up(session.cluster)
        self.version = 0
        self._rank: Ints | None = None
        self._unshielded: Bools | None = None
        self._sizes: list[int] | None = None
        self.refresh()

    def refresh(self) -> None:
        """Build the pieces again from the remaining replicas."""
        h, cluster = self.holders, self._session.cluster
        leaving = [h.slots[key] for key in self._session.outcome.leaving if key in h.slots]
        self.size = h.gang_size.copy()
        stays = h.evictable.copy()
        for slot in leaving:
            if stays[slot] and h.gang[slot] != NO_GANG:
                self.size[h.gang[slot]] -= 1
            stays[slot] = False
        slots = np.flatnonzero(stays & (h.row >= 0))
        slots = slots[self._projects[h.project[slots]]]
        slots = slots[cluster.up[h.row[slots]]]
        self._stays = stays
        self.pieces, self._rank, self._unshielded, self._sizes = self._pieces(slots), None, None, None
        self.alive = np.ones(len(self.pieces), np.bool_)
        single = np.flatnonzero(self.pieces.slot >= 0)
        self._piece_of = np.full(len(h.row), -1, np.int64)
        self._piece_of[self.pieces.slot[single]] = single

    def _pieces(self, slots: Ints) -> Pieces:
        h, now = self.holders, self._session.now
        evictable_at = h.evictable_at(slots, self._session.settings.min_runtime_s)
        lone = h.gang[slots] == NO_GANG
        self._tell_later(evictable_at[lone])
        singles = slots[lone & (evictable_at <= now)]
        if lone.all():
            return self._of_singles(singles)
        members = self._sorted(slots[~lone], evictable_at[~lone])
        return self._joined(singles, members)

    def _tell_later(self, evictable_at: Floats) -> None:
        later = evictable_at[evictable_at > self._session.now]
        if len(later):
            self._session.outcome.wake_at(float(later.min()))

    def _sorted(self, slots: Ints, evictable_at: Floats) -> _Sorted:
        h, now = self.holders, self._session.now
        oldest = np.full(len(h.gang_size), inf)
        np.minimum.at(oldest, h.gang[slots], evictable_at)
        self._tell_later(oldest[oldest < inf])
        evictable = evictable_at <= now
        order = np.lexsort((-h.born[slots], -h.started_at[slots], ~evictable, h.gang[slots], h.row[slots]))
        slots, evictable = slots[order], evictable[order]
        row, gang = h.row[slots], h.gang[slots]
        begins = runs(row, gang)
        rank = np.arange(len(slots)) - np.repeat(begins, np.diff(np.r_[begins, len(slots)]))
        single = evictable & (rank < (self.size - h.gang_least)[gang])
        return _Sorted(slots, row, gang, single, ~single & (oldest[gang] <= now))

    def _of_singles(self, slots: Ints) -> Pieces:
        h = self.holders
        over = self._over[h.project[slots]]
        stake = self._at_stake(slots)
        keys = (-h.born[slots], -h.started_at[slots], h.priority[slots], -over, stake, h.row[slots])
        order = np.lexsort(keys)
        at = slots[order]
        freed = freed_by(h, at)
        return Pieces(
            row=h.row[at],
            slot=at,
            gang=h.gang[at],
            project=h.project[at],
            priority=h.priority[at],
            size=np.ones(len(at), np.int64),
            weight=h.permille[at],
            newness=h.started_at[at],
            shielded_until=h.shielded_until(at, self._session.settings.min_runtime_s),
            over=self._over[h.project[at]],
            stake=stake[order],
            freed=freed,
            whole=freed,
        )

    def _at_stake(self, slots: Ints) -> Floats:
        return self.holders.at_stake(slots, self._session.now, self._session.settings.unsaved_after_s)

    def _gangs_at_stake(self) -> Floats:
        h = self.holders
        slots = np.flatnonzero(self._stays & (h.gang != NO_GANG))
        return np.bincount(h.gang[slots], self._at_stake(slots), len(h.gang_size)).astype(np.float64)

    def _joined(self, singles: Ints, members: _Sorted) -> Pieces:
        """Return spare members as single pieces, and the rests of gangs, one per node."""
        ones = self._of_singles(np.concatenate([singles, members.slots[members.single]]))
        return _merged(ones, self._of_rests(members)) if members.rest.any() else ones

    def _of_rests(self, members: _Sorted) -> Pieces:
        h, rest = self.holders, members.slots[members.rest]
        begins = runs(members.row[members.rest], members.gang[members.rest])
        first = rest[begins]
        row, gang, project = h.row[first], h.gang[first], h.project[first]
        freed = whole = freed_by(h, rest).by(begins)
        if members.single.any():  # the spare members end with the whole gang
            every = members.single | members.rest
            starts = runs(members.row[every], members.gang[every])
            width = len(h.gang_size)
            key = (members.row[every] * width + members.gang[every])[starts]
            whole = freed_by(h, members.slots[every]).by(starts).at(np.searchsorted(key, row * width + gang))
        return Pieces(
            row=row,
            slot=np.full(len(row), _REST),
            gang=gang,
            project=project,
            priority=h.priority[first],
            size=self.size[gang],
            weight=self._weights()[gang],
            newness=np.maximum.reduceat(h.started_at[rest], begins),
            shielded_until=self._gangs_shielded_until()[gang],
            over=self._over[project],
            stake=self._gangs_at_stake()[gang],
            freed=freed,
            whole=whole,
        )

    def _gangs_shielded_until(self) -> Floats:
        h, slots = self.holders, np.flatnonzero(self._stays & (self.holders.gang != NO_GANG))
        first = np.full(len(h.gang_size), inf)
        np.minimum.at(first, h.gang[slots], h.shielded_until(slots, self._session.settings.min_runtime_s))
        return first

    def _weights(self) -> Ints:
        h = self.holders
        slots = np.flatnonzero(self._stays & (h.gang != NO_GANG))
        return np.bincount(h.gang[slots], h.permille[slots], len(h.gang_size)).astype(np.int64)

    @property
    def sizes(self) -> list[int]:
        """Return the different weights of the pieces, in order."""
        if self._sizes is None:
            self._sizes = np.unique(self.pieces.weight).tolist()
        return self._sizes

    def users(self) -> Ints:
        """Return the ledger number of the user of each piece."""
        h, p = self.holders, self.pieces
        of_gang = np.zeros(len(h.gang_size), np.int64)
        members = np.flatnonzero(h.gang != NO_GANG)
        of_gang[h.gang[members]] = h.user[members]
        return np.where(p.slot >= 0, h.user[p.slot], of_gang[p.gang])

    def open(self, *, promised: bool) -> Bools:
        """Return the pieces that may be taken: all with ``promised`` (a configured quota), else the unshielded ones."""
        if promised:
            return np.ones(len(self.pieces), np.bool_)
        if self._unshielded is None:
            self._tell_later(self.pieces.shielded_until)
            self._unshielded = np.asarray((self.pieces.shielded_until <= self._session.now) & (self.pieces.stake == 0))
        return self._unshielded

    def may_fit(self, shapes: WaitingShapes, permille: Ints, *, promised: bool) -> Bools:
        """Return for which shapes with GPUs some node might have room once all open pieces are gone.

        ``permille`` of each GPU, by shape. Models, labels and modes are not checked, so the answer can be too
        optimistic.
        """
        c, p, at = self._session.cluster, self.pieces, np.flatnonzero(self.open(promised=promised))
        found = np.zeros(len(shapes.live), np.bool_)
        if not len(at):
            return found
        begins = runs(p.row[at])
        rows, freed = p.row[at][begins], p.freed.at(at).by(begins)
        slots = np.where(c.available[rows], c.gpu_free[rows] + freed.gpu, -1)
        numbers = np.flatnonzero(shapes.live & (shapes.count > 0))
        room = Room(slots, c.cpu_free[rows] + freed.cpu, c.mem_free[rows] + freed.mem)
        found[numbers] = room.find(shapes, numbers, permille[numbers]) >= 0
        return found

    def cheapest_first(self, at: Ints) -> Ints:
        """Order pieces: least loss, fewest replicas, furthest above fair share, lowest priority, smallest, newest."""
        if self._rank is None:
            p = self.pieces
            order = np.lexsort((-p.newness, p.weight, p.priority, -p.over, p.size, p.stake))
            self._rank = np.empty_like(order)
            self._rank[order] = np.arange(len(order))
        return at[self._rank[at].argsort()]

    def piece_of(self, slots: Ints) -> Ints:
        """Return the piece of each slot; -1: it cannot be evicted."""
        h, p = self.holders, self.pieces
        found = np.where(slots >= 0, self._piece_of[slots], -1)
        rests = np.flatnonzero(p.slot == _REST)
        wanted = np.flatnonzero((slots >= 0) & (found < 0) & (h.gang[slots] != NO_GANG) & self._stays[slots])
        if len(rests) and len(wanted):
            width = len(h.gang_size)
            keys = p.row[rests] * width + p.gang[rests]
            order = keys.argsort()
            mine = h.row[slots[wanted]] * width + h.gang[slots[wanted]]
            near = order[np.minimum(np.searchsorted(keys, mine, sorter=order), len(order) - 1)]
            found[wanted] = np.where(keys[near] == mine, rests[near], -1)
        return np.asarray(found)

    # --- properties of chosen pieces

    def spare(self, gang: int) -> int:
        """Return how many members of a gang can go before it falls below its minimum."""
        return max(0, int(self.size[gang] - self.holders.gang_least[gang]))

    def slots_of(self, pieces: Iterable[int]) -> list[list[int]]:
        """Return the slots of some pieces: one list for each single, and one for each gang that ends as a whole."""
        p = self.pieces
        singles: list[list[int]] = []
        gangs: dict[int, list[int]] = {}
        for piece in pieces:
            gang = int(p.gang[piece])
            if gang == NO_GANG:
                singles.append([int(p.slot[piece])])
            else:
                gangs.setdefault(gang, []).append(int(p.slot[piece]))
        for gang, slots in gangs.items():
            if _REST in slots or len(slots) > self.spare(gang):
                singles.append(self.members(gang))
            else:
                singles += [[slot] for slot in slots]
        return singles

    def members(self, gang: int) -> list[int]:
        """Return the slots of a gang's members that were not asked to end."""
        return [slot for slot in self.holders.members(gang) if self._stays[slot]]

    def keys(self, slots: Iterable[int]) -> list[ReplicaKey]:
        """Return the replicas in some slots."""
        return [key for slot in slots if (key := self.holders.keys[slot]) is not None]

    def bonds(self, slots: Sequence[int]) -> list[str]:
        """Return an extra sentence for each victim; empty except for members of a gang that ends as a whole."""
        gangs = self.holders.gang[list(slots)].tolist()
        counts = Counter(gangs)
        return [
            f" Its gang cannot run with fewer than {self.holders.gang_least[gang]} members."
            if gang != NO_GANG and counts[gang] > self.spare(gang)
            else ""
            for gang in gangs
        ]

    def taken(self, slots: Iterable[int]) -> None:
        """Mark replicas as evicted."""
        slots = list(slots)
        self.version += 1
        if any(self.holders.gang[slot] != NO_GANG for slot in slots):
            self.refresh()
        else:
            self._stays[slots] = False
            pieces = self._piece_of[slots]
            self.alive[pieces[pieces >= 0]] = False


def freed_by(h: RunningTable, slots: Ints | list[int]) -> Freed:
    """Return what the replicas in some slots would free, each on its row."""
    return Freed(h.gpu[slots], h.gmem[slots], h.cpu[slots], h.mem[slots], h.marks[slots])


def _merged(ones: Pieces, rests: Pieces) -> Pieces:
    """Merge both by row: singles before the rests of gangs, the preferred victims first."""
    kind = np.r_[np.zeros(len(ones)), np.ones(len(rests))]
    late = -np.r_[ones.newness, rests.newness], np.r_[ones.priority, rests.priority], -np.r_[ones.over, rests.over]
    order = np.lexsort((*late, kind, np.r_[ones.stake, rests.stake], np.r_[ones.row, rests.row]))

    def joined(name: str) -> Any:
        a, b = getattr(ones, name), getattr(rests, name)
        if isinstance(a, Freed):
            return Freed(*(np.concatenate(pair)[order] for pair in zip(a, b, strict=True)))
        return np.concatenate([a, b])[order]

    return Pieces(**{f.name: joined(f.name) for f in fields(Pieces)})
