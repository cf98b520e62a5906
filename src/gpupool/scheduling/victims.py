"""Who could be asked to leave, as arrays of pieces: one running replica each, or what a gang holds on one node.

Of a gang that runs with more members than its least, as many as it has to spare may go one by one; whoever hits
another one hits all of it. So there is a piece for each of the spare ones (on each node: which of them go is open), and
one per node for the rest, which costs the whole gang.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from math import inf
from typing import Any, NamedTuple

import numpy as np

from gpupool.scheduling.capacity import Freed, runs
from gpupool.scheduling.claims import Bools, Ints
from gpupool.scheduling.holders import NO_GANG, Floats, Holders
from gpupool.scheduling.session import Session
from gpupool.scheduling.values import ReplicaKey

_REST = -1


class _Sorted(NamedTuple):
    """Members of gangs in order of (row, gang), those to take first in front."""

    slots: Ints
    row: Ints
    gang: Ints
    single: Bools  # may go alone
    rest: Bools  # goes only with the whole gang


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """What can be freed, P pieces in the order in which one would take them on their node, and by rows.

    ``size`` is how many replicas go with a piece and ``weight`` the thousandths they hold, all over the cluster;
    ``freed`` what it frees on its ``row`` once the pieces of the same gang before it have gone, ``whole`` what it frees
    there by itself. ``slot`` is that of the holder, or -1 for a gang's rest; ``gang`` its number, or ``NO_GANG``.
    ``shielded_until`` is as in ``Holders``; a gang is shielded as long as its oldest member.
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
    freed: Freed
    whole: Freed

    def __len__(self) -> int:
        return len(self.row)


class VictimPool:
    """Who may be evicted among the holders of some projects, and what the eviction of each would free.

    Left out: protected work, whoever is on the way out, whoever has run for less than the minimum, and holders on
    nodes that are gone or take no work. ``over`` says for each project how much it has beyond what it is due. A gang
    has run as long as its oldest member. ``alive`` are the pieces that nobody has taken yet in this cycle.
    """

    def __init__(self, session: Session, projects: Bools, over: Floats) -> None:
        self._session, self._projects, self._over = session, projects, over
        self.holders: Holders = session.demand.holders
        self.holders.catch_up(session.cluster)
        self.version = 0
        self._rank: Ints | None = None
        self._unshielded: Bools | None = None
        self.refresh()

    def refresh(self) -> None:
        """Build the pieces anew, of those who are left."""
        h, cluster = self.holders, self._session.cluster
        leaving = [h.slots[key] for key in self._session.leaving if key in h.slots]
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
        self.pieces, self._rank, self._unshielded = self._pieces(slots), None, None
        self.alive = np.ones(len(self.pieces), np.bool_)
        single = np.flatnonzero(self.pieces.slot >= 0)
        self._piece_of = np.full(len(h.row), -1, np.int64)
        self._piece_of[self.pieces.slot[single]] = single

    def _pieces(self, slots: Ints) -> Pieces:
        h, now = self.holders, self._session.now
        ripe_at = h.ripe_at(slots, self._session.settings.min_runtime_s)
        lone = h.gang[slots] == NO_GANG
        self._tell_later(ripe_at[lone])
        singles = slots[lone & (ripe_at <= now)]
        if lone.all():
            return self._of_singles(singles)
        members = self._sorted(slots[~lone], ripe_at[~lone])
        return self._joined(singles, members)

    def _tell_later(self, ripe_at: Floats) -> None:
        later = ripe_at[ripe_at > self._session.now]
        if len(later):
            self._session.later.append(float(later.min()))

    def _sorted(self, slots: Ints, ripe_at: Floats) -> _Sorted:
        h, now = self.holders, self._session.now
        oldest = np.full(len(h.gang_size), inf)
        np.minimum.at(oldest, h.gang[slots], ripe_at)
        self._tell_later(oldest[oldest < inf])
        ripe = ripe_at <= now
        order = np.lexsort((-h.born[slots], -h.started_at[slots], ~ripe, h.gang[slots], h.row[slots]))
        slots, ripe = slots[order], ripe[order]
        row, gang = h.row[slots], h.gang[slots]
        begins = runs(row, gang)
        rank = np.arange(len(slots)) - np.repeat(begins, np.diff(np.r_[begins, len(slots)]))
        single = ripe & (rank < (self.size - h.gang_least)[gang])
        return _Sorted(slots, row, gang, single, ~single & (oldest[gang] <= now))

    def _of_singles(self, slots: Ints) -> Pieces:
        h = self.holders
        over = self._over[h.project[slots]]
        keys = (-h.born[slots], -h.started_at[slots], h.priority[slots], -over, h.row[slots])
        at = slots[np.lexsort(keys)]
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
            freed=freed,
            whole=freed,
        )

    def _joined(self, singles: Ints, members: _Sorted) -> Pieces:
        """Singles and spare members as pieces of one, and the rests of gangs, one per node."""
        ones = self._of_singles(np.concatenate([singles, members.slots[members.single]]))
        return _merged(ones, self._of_rests(members)) if members.rest.any() else ones

    def _of_rests(self, members: _Sorted) -> Pieces:
        h, rest = self.holders, members.slots[members.rest]
        begins = runs(members.row[members.rest], members.gang[members.rest])
        first = rest[begins]
        row, gang, project = h.row[first], h.gang[first], h.project[first]
        freed = whole = freed_by(h, rest).by(begins)
        if members.single.any():  # whoever could go alone goes with it
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

    def open(self, *, promised: bool) -> Bools:
        """The pieces that may be taken from those who hold too much: by whoever was ``promised`` it, or by others."""
        if promised:
            return np.ones(len(self.pieces), np.bool_)
        if self._unshielded is None:
            self._tell_later(self.pieces.shielded_until)
            self._unshielded = np.asarray(self.pieces.shielded_until <= self._session.now)
        return self._unshielded

    def may_fit(self, needs: Sequence[tuple[int, int, int, int]], *, promised: bool) -> Bools:
        """Whether some node of the pieces, all that are ``open`` gone, has so much: a quick look for many at once.

        Of each kind: GPUs, thousandths of each, thousandths of CPUs, MiB of memory. Models, labels and modes are left
        out, so that some for whom it may fit find no place.
        """
        c, p, at = self._session.cluster, self.pieces, np.flatnonzero(self.open(promised=promised))
        if not len(at) or not needs:
            return np.zeros(len(needs), np.bool_)
        begins = runs(p.row[at])
        rows, freed = p.row[at][begins], p.freed.at(at).by(begins)
        slots = np.sort(np.where(c.available[rows], c.gpu_free[rows] + freed.gpu, -1), axis=1)[:, ::-1]
        count, permille, cpu, mem = np.array(needs).T
        enough = slots[:, np.clip(count, 1, slots.shape[1]) - 1] >= permille
        enough &= (count >= 1) & (count <= slots.shape[1])
        enough &= ((c.cpu_free[rows] + freed.cpu)[:, None] >= cpu) | (cpu == 0)
        enough &= ((c.mem_free[rows] + freed.mem)[:, None] >= mem) | (mem == 0)
        return np.asarray(enough.any(axis=0))

    def cheapest_first(self, at: Ints) -> Ints:
        """Some pieces: fewest replicas, furthest beyond their due, lowest priority, least GPU, newest first."""
        if self._rank is None:
            p = self.pieces
            order = np.lexsort((-p.newness, p.weight, p.priority, -p.over, p.size))
            self._rank = np.empty_like(order)
            self._rank[order] = np.arange(len(order))
        return at[self._rank[at].argsort()]

    # --- what a choice of pieces comes to

    def spare(self, gang: int) -> int:
        """How many members of a gang may go before it has fewer than its least."""
        return max(0, int(self.size[gang] - self.holders.gang_least[gang]))

    def slots_of(self, pieces: Iterable[int]) -> list[list[int]]:
        """The slots that go with some pieces: one list for each single, and one for each gang that goes as a whole."""
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
        """The slots of a gang's members that have not been told to end."""
        return [slot for slot in self.holders.members(gang) if self._stays[slot]]

    def keys(self, slots: Iterable[int]) -> list[ReplicaKey]:
        """Who is in some slots."""
        return [key for slot in slots if (key := self.holders.keys[slot]) is not None]

    def bonds(self, slots: Sequence[int]) -> list[str]:
        """For each of some victims a sentence more, empty but for members of gangs that go as a whole."""
        gangs = self.holders.gang[list(slots)].tolist()
        counts = Counter(gangs)
        return [
            f" Its gang cannot run with fewer than {self.holders.gang_least[gang]} members."
            if gang != NO_GANG and counts[gang] > self.spare(gang)
            else ""
            for gang in gangs
        ]

    def taken(self, slots: Iterable[int]) -> None:
        """These have been told to end."""
        slots = list(slots)
        self.version += 1
        if any(self.holders.gang[slot] != NO_GANG for slot in slots):
            self.refresh()
        else:
            self._stays[slots] = False
            pieces = self._piece_of[slots]
            self.alive[pieces[pieces >= 0]] = False


def freed_by(h: Holders, slots: Ints | list[int]) -> Freed:
    """What the holders in some slots would free, each on its row."""
    return Freed(h.gpu[slots], h.gmem[slots], h.cpu[slots], h.mem[slots], h.marks[slots])


def _merged(ones: Pieces, rests: Pieces) -> Pieces:
    """Both by row: singles before the rests of gangs, of each kind those to take first in front."""
    kind = np.r_[np.zeros(len(ones)), np.ones(len(rests))]
    late = -np.r_[ones.newness, rests.newness], np.r_[ones.priority, rests.priority], -np.r_[ones.over, rests.over]
    order = np.lexsort((*late, kind, np.r_[ones.row, rests.row]))

    def joined(name: str) -> Any:
        a, b = getattr(ones, name), getattr(rests, name)
        if isinstance(a, Freed):
            return Freed(*(np.concatenate(pair)[order] for pair in zip(a, b, strict=True)))
        return np.concatenate([a, b])[order]

    return Pieces(**{f.name: joined(f.name) for f in fields(Pieces)})
