"""Search for victims so that a replica fits on one node, or all members of a gang fit at once on several nodes.

For one replica, the cheapest single victim is taken, or else a small cheap set. The search is exact for one victim. For
several, it takes the first prefix of each node's pieces with which the replica fits, on the most promising nodes.

For a gang, the pieces of every node are taken in order, in steps that each make room for more members. The cheapest
steps are taken until all members fit. If the gang must stay in one domain, each domain is searched separately. A second
attempt leaves out projects that refused, and gangs that would fall below their minimum.

Unnecessary victims are removed from the result, the most important first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from gpupool.domain.work.gang import Gang
from gpupool.scheduling.eviction.victims import VictimPool, freed_by
from gpupool.scheduling.placement.capacity import Freed, Need, nothing, room_with, runs
from gpupool.scheduling.state.allocation import Bools, Ints
from gpupool.scheduling.state.cluster import ALONE, ClusterState, domains, levels_of
from gpupool.scheduling.state.running import NO_GANG, Floats

# Takes victims as lists of slots that are evicted together, in order. Returns for each list whether it is refused once
# the lists before it are gone.
Refused = Callable[[Sequence[Sequence[int]]], list[int]]
# loss, replicas, ratio to fair share, priority, thousandths, newness
_Cost = tuple[float, int, float, int, int, float]
_FEW = 1_000  # pieces that are checked one by one without a check of all of them first
_FIRST, _MORE = 8, 256  # pieces that are checked before all others
_LOOK = 1_000  # trials in one unit of work
_QUICK = 1 / 32  # of a look: to find that work may not evict
MAX_DOMAINS = 4  # domains that are checked in full
MAX_ATTEMPTS = 8  # until no victim is refused
_NO_DOMAIN = -2
_BIG = 1e9


class OutOfWorkError(Exception):
    """Raised when the cycle has used its search budget."""


class Work:
    """The search budget of a cycle, in looks: array operations over a thousand rows at most.

    A search starts with operations over ``size`` rows: all projects and running replicas. One that has started always
    finishes, so that each cycle completes at least one.
    """

    __slots__ = ("_size", "left")

    def __init__(self, looks: int, size: int) -> None:
        self.left, self._size = float(looks), size

    def consider(self) -> None:
        """Subtract a quick check; raise ``OutOfWorkError`` if the budget is used up."""
        if self.left <= 0:
            raise OutOfWorkError
        self.left -= _QUICK

    def begin(self) -> None:
        """Start another search; raise ``OutOfWorkError`` if the budget is used up."""
        if self.left <= 0:
            raise OutOfWorkError
        self.look(self._size)

    def look(self, trials: int = 1) -> None:
        """Subtract a look at ``trials`` trials from the budget."""
        self.left -= 1 + trials // _LOOK


@dataclass(frozen=True, slots=True)
class Clearing:
    """Victims as slots; ``row`` is the node where that makes room, None for several nodes."""

    slots: tuple[int, ...]
    row: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Search:
    """One search among the pieces of ``pool`` that ``among`` marks and ``refused`` accepts."""

    cluster: ClusterState
    pool: VictimPool
    need: Need
    among: Bools
    refused: Refused
    work: Work
    most_nodes: int

    def for_one(self) -> Clearing | None:
        """Return the cheapest set on one node: fewest, then furthest above fair share, lowest priority, least GPU."""
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

    def may_succeed(self) -> bool:
        """Return whether one replica fits on some node if all pieces go; False is certain."""
        return len(self._hopeful(np.flatnonzero(self.among & self.pool.alive))) > 0

    def _alone(self, at: Ints) -> Iterator[int]:
        """Yield the single pieces with which it fits, in order; usually one of the first is taken."""
        p = self.pool.pieces
        for some in (at[:_FIRST], at[_FIRST:_MORE], at[_MORE:]):
            if len(some):
                yield from some[self.room(p.row[some], p.whole.at(some)) > 0].tolist()

    def _hopeful(self, at: Ints) -> Ints:
        """Return the pieces on nodes where it fits if all of them go."""
        if not len(at):
            return at
        p = self.pool.pieces
        rows = p.row[at]
        begins = runs(rows)
        fits = self.room(rows[begins], p.freed.at(at).by(begins)) > 0
        return at[np.repeat(fits, np.diff(np.r_[begins, len(at)]))]

    def room(self, rows: Ints, freed: Freed) -> Ints:
        """Return how many replicas fit on each of ``rows`` with ``freed`` added to the free resources."""
        self.work.look(len(rows))
        return room_with(self.cluster, self.need, rows, freed)

    def _clearing(self, row: int, pieces: list[int]) -> Clearing:
        return Clearing(tuple(slot for group in self.pool.slots_of(pieces) for slot in group), row)

    def _best_set(self, at: Ints, best: tuple[_Cost, Clearing] | None) -> Clearing | None:
        """Return the cheapest of ``best`` and the reduced first fitting prefixes of the most promising nodes."""
        p = self.pool.pieces
        rows = p.row[at]
        first = np.searchsorted(rows, rows)
        fitting = np.flatnonzero(self.room(rows, p.freed.at(at).running(first)) > 0)
        ends = fitting[runs(rows[fitting])]  # the first fitting prefix of each node
        sizes, stakes = p.size[at].cumsum(), p.stake[at].cumsum()
        cost = sizes[ends] - sizes[first[ends]] + p.size[at[first[ends]]]
        stake = stakes[ends] - stakes[first[ends]] + p.stake[at[first[ends]]]
        ends = ends[np.lexsort((p.priority[at[ends]], -p.over[at[ends]], cost, stake))][: self.most_nodes]
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
        """Return for each prefix, from start to end among ``at``, whether a piece may be unnecessary."""
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
        """Return a sufficient set of accepted victims; empty if there is none."""
        chosen: list[int] = []
        for piece in candidates:
            if not self.refused(self.pool.slots_of([*chosen, piece])):
                chosen.append(piece)
                if self._enough(row, chosen):
                    return chosen
        return []

    def _thinned(self, row: int, chosen: list[int]) -> list[int]:
        """Return the victims that are needed; the most important are removed first."""
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
        stake = float(p.stake[chosen].sum())
        return stake, len(slots), -float(p.over[chosen].min()), most, weight, -float(p.newness[chosen].min())


@dataclass(frozen=True, slots=True, eq=False)
class _Steps:
    """One entry per step: the piece (with those before it on its node) that makes room for ``gain`` more members."""

    piece: Ints
    row: Ints
    gain: Ints
    cost: Ints  # replicas evicted by this step in addition to the previous one on its node
    rank: Ints  # position in the order of preference


@dataclass(frozen=True, slots=True, eq=False)
class _DomainSite:
    """The possible places of a gang: the domain of each row (``ALONE``: excluded), and the free capacity there."""

    where: Ints
    room: Ints


def clear_for_gang(search: Search, gang: Gang | None) -> Iterator[Clearing]:
    """Yield sets of victims that make room for ``search.need.count`` members, best first.

    All members fit on nodes of one domain of each level (see ``levels_of``) that costs no more victims than the
    cheapest set; if ``gang.strict``, always in one of the label that the gang names.
    """
    cluster = search.cluster
    up = np.flatnonzero(cluster.up)
    room = np.zeros(len(cluster.up), np.int64)
    room[up] = search.room(up, nothing(len(up), cluster.slots))

    def found_in(label: str) -> Iterator[Clearing]:
        return _by_domain(search, _DomainSite(np.where(cluster.up, domains(cluster, label), ALONE), room))

    strict = gang is not None and gang.strict
    levels = levels_of(cluster, gang) if gang else ()
    levels, largest = (levels[:-1], levels[-1]) if strict else (levels, "")
    cheapest = found_in(largest)
    first = next(cheapest, None)
    for label in levels if first is not None else levels[-1:]:
        near = next(found_in(label), None)
        if near is not None and (first is None or len(near.slots) <= len(first.slots)):
            yield near
            break
    if first is not None:
        yield first
    if strict or not levels:
        yield from cheapest


def _by_domain(search: Search, site: _DomainSite) -> Iterator[Clearing]:
    steps = _steps(search, site)
    for domain in _cheapest(search, site, steps)[:MAX_DOMAINS]:
        inside = search.among & (site.where[search.pool.pieces.row] == domain)
        found = _attempts(replace(search, among=inside), replace_where(site, domain))
        if found:
            yield Clearing(tuple(slot for group in found for slot in group))


def replace_where(site: _DomainSite, domain: int) -> _DomainSite:
    """Return the site restricted to one domain."""
    return _DomainSite(np.where(site.where == domain, domain, ALONE), site.room)


def _steps(search: Search, site: _DomainSite) -> _Steps:
    p = search.pool.pieces
    at = np.flatnonzero(search.among & search.pool.alive)
    at = at[site.where[p.row[at]] != ALONE]
    rows = p.row[at]
    begins = runs(rows)
    first = np.repeat(begins, np.diff(np.r_[begins, len(at)]))
    room = search.room(rows, p.freed.at(at).running(first)) if len(at) else np.zeros(0, np.int64)
    before = np.r_[np.zeros(1, np.int64), room][: len(at)]
    before[begins] = site.room[rows[begins]]
    entry = np.flatnonzero(room > before)
    size = np.r_[0, p.size[at].cumsum()]
    row = rows[entry]
    starts = runs(row)
    since = np.r_[0, entry + 1][: len(entry)]
    since[starts] = first[entry[starts]]
    gain, cost = (room - before)[entry], size[entry + 1] - size[since]
    return _Steps(at[entry], row, gain, cost, _ranked(search, at[entry], row, cost / gain))


def _ranked(search: Search, piece: Ints, row: Ints, unit: Floats) -> Ints:
    """Return the order of the steps: cheapest per member first, no step before one that it builds on."""
    p = search.pool.pieces
    unit = np.maximum.accumulate(unit + row * _BIG) - row * _BIG
    late = -p.newness[piece], p.weight[piece], p.priority[piece], -p.over[piece]
    order = np.lexsort((row, *late, np.round(unit, 3), p.stake[piece]))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return rank


def _cheapest(search: Search, site: _DomainSite, steps: _Steps) -> list[int]:
    """Return the domains that can have room for all members, the cheapest first."""
    where = site.where[steps.row]
    order = np.lexsort((steps.rank, where))
    where = where[order]
    begins = runs(where)
    first = np.repeat(begins, np.diff(np.r_[begins, len(where)]))
    gain, cost = np.r_[0, steps.gain[order].cumsum()], np.r_[0, steps.cost[order].cumsum()]
    have = np.bincount(site.where[site.where >= 0], site.room[site.where >= 0], int(site.where.max(initial=0)) + 1)
    enough = gain[1:] - gain[first] + have[where] >= search.need.count
    ends = np.flatnonzero(enough)
    ends = ends[runs(where[ends])]
    price = (cost[1:] - cost[first])[ends]
    return [int(where[end]) for end in ends[np.argsort(price, kind="stable")]]


def _chosen(search: Search, site: _DomainSite) -> list[int]:
    """Return the pieces of the cheapest steps that make room for all members, or none."""
    steps = _steps(search, site)
    order = np.argsort(steps.rank)
    have = int(site.room[site.where != ALONE].sum())
    enough = np.flatnonzero(steps.gain[order].cumsum() + have >= search.need.count)
    if not len(enough):
        return []
    taken = order[: enough[0] + 1]
    last = np.full(len(site.where), -1)
    np.maximum.at(last, steps.row[taken], steps.piece[taken])
    at = np.flatnonzero(search.among & search.pool.alive)
    at = at[at <= last[search.pool.pieces.row[at]]]
    rank = np.full(len(search.among), len(steps.rank), np.int64)
    np.minimum.at(rank, steps.piece[taken], steps.rank[taken])
    return [int(piece) for piece in at[np.argsort(rank[at], kind="stable")]]


def _attempts(search: Search, site: _DomainSite) -> list[list[int]]:
    """Return reduced groups of victims without refusals; empty if none is found."""
    pool = search.pool
    for _ in range(MAX_ATTEMPTS):
        chosen = _chosen(search, site)
        chosen, search = _spared(search, site, chosen)
        if not chosen:
            return []
        groups = pool.slots_of(chosen)
        refused = search.refused(groups)
        if not refused:
            return _thinned(search, site, groups)
        search = replace(search, among=search.among & ~_out_of_reach(search, groups, refused))
    return []


def _spared(search: Search, site: _DomainSite, chosen: list[int]) -> tuple[list[int], Search]:
    """Return a choice that does not break gangs by too many single members, if there is one."""
    pool, counts, extra = search.pool, dict[int, int](), list[int]()
    for piece in chosen:
        gang = int(pool.pieces.gang[piece])
        if gang != NO_GANG and pool.pieces.slot[piece] >= 0:
            counts[gang] = counts.get(gang, 0) + 1
            if counts[gang] > pool.spare(gang):
                extra.append(piece)
    if not extra:
        return chosen, search
    among = search.among.copy()
    among[extra] = False
    other = replace(search, among=among)
    rest = _chosen(other, site)
    if not rest:
        return chosen, search
    return _spared(other, site, rest)


def _out_of_reach(search: Search, groups: Sequence[Sequence[int]], refused: Sequence[int]) -> Bools:
    """Return the pieces of the projects that refused, without the victims that were accepted."""
    p, project = search.pool.pieces, search.pool.holders.project
    agreed = {slot for at, group in enumerate(groups) if at not in set(refused) for slot in group}
    mine = np.isin(p.project, project[[groups[at][0] for at in refused]])
    kept = np.isin(p.slot, list(agreed)) | np.isin(p.gang, _gangs_of(search, agreed))
    return np.asarray(mine & ~kept)


def _gangs_of(search: Search, slots: set[int]) -> list[int]:
    gangs = search.pool.holders.gang[list(slots)] if slots else np.zeros(0, np.int64)
    return [int(gang) for gang in np.unique(gangs[gangs != NO_GANG])]


def _thinned(search: Search, site: _DomainSite, groups: list[list[int]]) -> list[list[int]]:
    """Return the groups that are needed to make room for all members; the most important are removed first."""
    h = search.pool.holders
    slots = np.array([slot for group in groups for slot in group])
    group = np.repeat(np.arange(len(groups)), [len(g) for g in groups])
    inside = (h.row[slots] >= 0) & (site.where[h.row[slots]] != ALONE)
    slots, group = slots[inside], group[inside]
    rows, back = np.unique(h.row[slots], return_inverse=True)
    by_row = np.argsort(back, kind="stable")
    gone = freed_by(h, slots[by_row]).by(runs(back[by_row]))
    by_pair = np.lexsort((back, group))
    starts = runs(group[by_pair], back[by_pair])
    pair_group, pair_row = group[by_pair][starts], back[by_pair][starts]
    part = freed_by(h, slots[by_pair]).by(starts)
    room = search.room(rows, gone)
    slack = int(site.room[site.where != ALONE].sum() - site.room[rows].sum() + room.sum()) - search.need.count
    lost = room[pair_row] - search.room(rows[pair_row], gone.at(pair_row).minus(part))
    drop = np.bincount(pair_group, lost, len(groups))
    kept = []
    for at in range(len(groups) - 1, -1, -1):
        if drop[at] > slack:
            kept.append(groups[at])
            continue
        pairs = np.flatnonzero(pair_group == at)
        less = gone.at(pair_row[pairs]).minus(part.at(pairs))
        left = search.room(rows[pair_row[pairs]], less)
        loss = int((room[pair_row[pairs]] - left).sum())
        if loss > slack:
            kept.append(groups[at])
            continue
        slack -= loss
        room[pair_row[pairs]] = left
        for mine, new in zip(gone, less, strict=True):
            mine[pair_row[pairs]] = new
    return kept[::-1]
