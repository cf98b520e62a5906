"""Whom to evict so that all members of a gang fit at once, on many nodes.

Every node's pieces are taken in order, in steps that each make room for more members; the cheapest steps are taken
until there is room for all. Should the gang stay in one domain, each domain is looked at by itself. A project that may
not be asked for so much, and a gang that would fall apart, are left out of a second attempt. What proves unnecessary is
given back, the most important first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpupool.domain.gang import Gang
from gpupool.scheduling.capacity import nothing, runs
from gpupool.scheduling.claims import Bools, Ints
from gpupool.scheduling.clearing import Clearing, Search
from gpupool.scheduling.holders import NO_GANG, Floats
from gpupool.scheduling.topology import ALONE, domains
from gpupool.scheduling.victims import freed_by

MOST_DOMAINS = 4  # domains in which room is made to see whether the gang fits there
MOST_ATTEMPTS = 8  # until nobody refuses
_NO_DOMAIN = -2
_BIG = 1e9


@dataclass(frozen=True, slots=True, eq=False)
class _Steps:
    """Entry by entry: the piece (with those before it on its node) that makes room for ``gain`` more members."""

    piece: Ints
    row: Ints
    gain: Ints
    cost: Ints  # replicas that go with it, and not with the step before on its node
    rank: Ints  # place in the order of being worth while


@dataclass(frozen=True, slots=True, eq=False)
class _Site:
    """Where a gang may go: the domain of each row (``ALONE``: nowhere), and the room there without anybody gone."""

    where: Ints
    room: Ints


def clear_for_gang(search: Search, gang: Gang | None) -> Iterator[Clearing]:
    """Sets that make room for ``search.need.count`` members, best first.

    Nodes with the same value of ``gang.within`` have room for all of them: must when ``gang.strict``, otherwise where
    that costs no more victims than the cheapest set does.
    """
    cluster = search.cluster
    up = np.flatnonzero(cluster.up)
    room = np.zeros(len(cluster.up), np.int64)
    room[up] = search.room(up, nothing(len(up), cluster.slots))
    anywhere = _Site(np.where(cluster.up, 0, ALONE), room)
    together = _Site(np.where(cluster.up, domains(cluster, gang.within), ALONE), room) if gang else anywhere
    if gang is None or not gang.within:
        yield from _by_domain(search, anywhere)
    elif gang.strict:
        yield from _by_domain(search, together)
    else:
        widest = next(_by_domain(search, anywhere), None)
        near = next(_by_domain(search, together), None)
        if near is not None and (widest is None or len(near.slots) <= len(widest.slots)):
            yield near
        if widest is not None:
            yield widest


def _by_domain(search: Search, site: _Site) -> Iterator[Clearing]:
    steps = _steps(search, site)
    for domain in _cheapest(search, site, steps)[:MOST_DOMAINS]:
        inside = search.among & (site.where[search.pool.pieces.row] == domain)
        found = _attempts(replace(search, among=inside), replace_where(site, domain))
        if found:
            yield Clearing(tuple(slot for group in found for slot in group))


def replace_where(site: _Site, domain: int) -> _Site:
    """The site with one domain only."""
    return _Site(np.where(site.where == domain, domain, ALONE), site.room)


def _steps(search: Search, site: _Site) -> _Steps:
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
    """Cheapest per member first, no step before one that it builds on."""
    p = search.pool.pieces
    unit = np.maximum.accumulate(unit + row * _BIG) - row * _BIG
    order = np.lexsort((row, -p.newness[piece], p.weight[piece], p.priority[piece], -p.over[piece], np.round(unit, 3)))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return rank


def _cheapest(search: Search, site: _Site, steps: _Steps) -> list[int]:
    """The domains in which all members would have room, the cheapest first."""
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


def _chosen(search: Search, site: _Site) -> list[int]:
    """The pieces of the cheapest steps that make room for all, or none."""
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


def _attempts(search: Search, site: _Site) -> list[list[int]]:
    """Groups of victims that nobody refuses, thinned out; none if that is not found."""
    pool = search.pool
    for _ in range(MOST_ATTEMPTS):
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


def _spared(search: Search, site: _Site, chosen: list[int]) -> tuple[list[int], Search]:
    """The choice without breaking gangs of which too many single members were taken, if there is one."""
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
    """The pieces of the projects of those refused, but for those that were agreed to."""
    p, project = search.pool.pieces, search.pool.holders.project
    agreed = {slot for at, group in enumerate(groups) if at not in set(refused) for slot in group}
    mine = np.isin(p.project, project[[groups[at][0] for at in refused]])
    kept = np.isin(p.slot, list(agreed)) | np.isin(p.gang, _gangs_of(search, agreed))
    return np.asarray(mine & ~kept)


def _gangs_of(search: Search, slots: set[int]) -> list[int]:
    gangs = search.pool.holders.gang[list(slots)] if slots else np.zeros(0, np.int64)
    return [int(gang) for gang in np.unique(gangs[gangs != NO_GANG])]


def _thinned(search: Search, site: _Site, groups: list[list[int]]) -> list[list[int]]:
    """Those without whom there is not room for all, the most important given back first."""
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
