"""Search for GPUs to clear for whole-GPU work, one GPU after another.

A GPU can be cleared if all replicas on it may be evicted and belong to projects beyond their bounds (see
``whole_claims``). Each cleared GPU changes these projects, so the footprints are computed again each time.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gpupool.domain.units import WHOLE_GPU
from gpupool.scheduling.eviction.victim_search import Clearing, Work
from gpupool.scheduling.eviction.victims import VictimPool, freed_by
from gpupool.scheduling.eviction.whole_claims import Claimed, FootprintUse
from gpupool.scheduling.placement.capacity import Need, nothing, room_with, runs
from gpupool.scheduling.placement.node_filter import Relax, accepted_gpus, fitting_rows
from gpupool.scheduling.session import SchedulingSession
from gpupool.scheduling.state.allocation import EPSILON, Bools, Ints
from gpupool.scheduling.state.cluster import ALONE, domains
from gpupool.scheduling.state.queue import Group
from gpupool.scheduling.state.running import Floats


class GpuClearing:
    """One search for GPUs to clear for a group, within the open pieces of ``pool``.

    It tries evictions in the session and reverts all of them.
    """

    def __init__(
        self, session: SchedulingSession, pool: VictimPool, found: Claimed, open_: Bools, need: Need, work: Work
    ) -> None:
        self._session, self._pool, self._claim, self._footprints = session, pool, found.claim, found.footprints
        self._need, self._work = need, work
        self._piece = pool.piece_of(self._footprints.slot)
        self._open = np.append(open_, False)  # the last entry stands for no piece
        self._rows = fitting_rows(session.cluster, need.shape, Relax(use=True))
        self._chosen: list[int] = []  # pieces
        self._gone: dict[int, None] = {}  # slots

    def clearings(self, group: Group) -> Iterator[Clearing]:
        """Yield sets of victims that make room for all replicas of a group that must start together."""
        if not self._promising():
            return
        for rows in self._sites(group):
            slots = self._cleared(rows)
            if slots:
                yield Clearing(slots, int(rows[0]) if len(rows) == 1 else None)

    def _promising(self) -> bool:
        """Return True if the whole group would fit once every clearable GPU is cleared."""
        f, cluster = self._footprints, self._session.cluster
        on_it = np.isin(f.at, self._clearable(self._rows)) & (f.amount > 0)
        slots = np.unique(f.slot[on_it])
        if not len(slots):
            return False
        slots = slots[self._pool.holders.row[slots].argsort(kind="stable")]
        rows = self._pool.holders.row[slots]
        begins = runs(rows)
        freed = freed_by(self._pool.holders, slots).by(begins)
        others = self._rows[~np.isin(self._rows, rows)]
        room = room_with(cluster, self._need, rows[begins], freed).sum()
        return bool(room + self._room(others) >= self._need.count)

    def _sites(self, group: Group) -> Iterator[Ints]:
        """Return the rows of each domain where the whole group may run."""
        gang, cluster = group.gang, self._session.cluster
        if gang is None or not gang.strict:
            yield self._rows
            return
        where = domains(cluster, gang.within)[self._rows]
        allowed = np.unique(where[where != ALONE])
        members = self._session.demand.gangs.get(group.joins) if group.joins is not None else None
        if members is not None:
            rows = [cluster.claims[key].row for key in members.running if key in cluster.claims]
            allowed = np.intersect1d(allowed, domains(cluster, gang.within)[[row for row in rows if row >= 0]])
        for domain in allowed.tolist():
            yield self._rows[where == domain]

    def _cleared(self, rows: Ints) -> tuple[int, ...]:
        """Return the slots to evict so that the whole group fits on some rows; empty if it does not."""
        log, before = self._session.log, self._footprints.amounts()
        mark = log.checkpoint()
        self._chosen, self._gone = [], {}
        while (room := self._room(rows)) < self._need.count and len(rows):
            row = self._next_row(rows)
            if row is None:
                break
            if not self._clear_on(row):
                rows = rows[rows != row]
        log.rollback(mark)
        self._footprints.restore(before)
        return tuple(self._gone) if room >= self._need.count else ()

    def _room(self, rows: Ints) -> int:
        cluster = self._session.cluster
        self._work.look(len(rows))
        return int(room_with(cluster, self._need, rows, nothing(len(rows), cluster.slots)).sum()) if len(rows) else 0

    def _clear_on(self, row: int) -> bool:
        """Clear GPUs of one node until one more replica fits there; otherwise revert."""
        log, before = self._session.log, self._footprints.amounts()
        mark, chosen, gone = log.checkpoint(), self._chosen.copy(), self._gone.copy()
        rows = np.array([row])
        room = self._room(rows)
        while self._room(rows) <= room:
            gpus = self._clearable(rows)
            if not len(gpus):
                log.rollback(mark)
                self._footprints.restore(before)
                self._chosen, self._gone = chosen, gone
                return False
            self._clear(int(gpus[0]))
        return True

    def _clear(self, gpu: int) -> None:
        f = self._footprints
        on_it = np.flatnonzero((f.at == gpu) & (f.amount > 0))
        self._chosen += [piece for piece in self._piece[on_it].tolist() if piece not in self._chosen]
        slots = [slot for unit in self._pool.slots_of(self._chosen) for slot in unit if slot not in self._gone]
        for key in self._pool.keys(slots):
            self._session.discharge_running(key)
        self._gone |= dict.fromkeys(slots)
        f.without(slots)

    def _next_row(self, rows: Ints) -> int | None:
        """Return the node where the missing GPUs for one more replica cost least."""
        f, cluster, count = self._footprints, self._session.cluster, self._need.shape.request.count
        gpus = self._clearable(rows)
        where = f.gpus[gpus] // cluster.slots
        free = (self._usable(rows) & (cluster.gpu_free[rows] >= WHOLE_GPU)).sum(axis=1)
        missing = np.zeros(len(cluster.present), np.int64)
        missing[rows] = count - free % count
        order = np.argsort(where, kind="stable")
        begins = runs(where[order])
        nth = np.empty(len(gpus), np.int64)
        nth[order] = np.arange(len(gpus)) - np.repeat(begins, np.diff(np.r_[begins, len(gpus)]))
        enough = np.flatnonzero(nth + 1 == missing[where])
        return int(where[enough[0]]) if len(enough) else None

    def _usable(self, rows: Ints) -> Bools:
        cluster, need = self._session.cluster, self._need
        return np.asarray(accepted_gpus(cluster, need.shape, need.accepted, rows) & cluster.available[rows])

    def _clearable(self, rows: Ints) -> Ints:
        """Return the GPUs of some rows that can be cleared, as indexes into ``Footprints.gpus``, cheapest first."""
        f, cluster = self._footprints, self._session.cluster
        standing, count = f.standing(self._claim.bounds), len(f.gpus)
        self._work.look(len(f.slot))
        here = f.amount > 0
        may_go = here & self._open[self._piece] & standing.beyond[f.project] & self._leaves_quota(standing)
        users = np.bincount(f.at, here, count)
        free = cluster.gpu_free.flat[f.gpus] + np.bincount(f.at, f.amount * (f.slot >= 0), count)
        row, slot = np.divmod(f.gpus, cluster.slots)
        site = np.zeros(cluster.gpu_free.shape, np.bool_)
        site[rows] = self._usable(rows)
        good = (users > 0) & (np.bincount(f.at, may_go, count) == users) & (free >= WHOLE_GPU) & site[row, slot]
        after = standing.own_used[f.pair_project] - standing.own
        short = np.maximum(self._claim.due[f.pair_project] - after, 0.0) * (standing.own > 0)
        shortfall = np.bincount(f.pair_at, short, count).astype(np.float64)
        if not self._claim.promised:
            good &= shortfall <= EPSILON
        return self._cheapest_first(np.flatnonzero(good), shortfall)

    def _leaves_quota(self, standing: FootprintUse) -> Bools:
        """Return the entries that may go: slices, or whole GPUs beyond the project's bound."""
        f, weights = self._footprints, self._pool.pieces.weight
        left = standing.own_used[f.project] - np.append(weights, 0)[self._piece]
        return np.asarray((f.amount < WHOLE_GPU) | (left + EPSILON >= self._claim.bounds.project[f.project]))

    def _cheapest_first(self, gpus: Ints, shortfall: Floats) -> Ints:
        """Return the GPUs in order: least loss below fair share first, then as ``VictimPool.cheapest_first``."""
        f, p, count = self._footprints, self._pool.pieces, len(self._footprints.gpus)
        at = np.flatnonzero((f.amount > 0) & (self._piece >= 0))
        piece, gpu = self._piece[at], f.at[at]
        stake, size = np.bincount(gpu, p.stake[piece], count), np.bincount(gpu, p.size[piece], count)
        weight = np.bincount(gpu, p.weight[piece], count)
        over, priority, newness = np.full(count, np.inf), np.full(count, -np.inf), np.full(count, np.inf)
        np.minimum.at(over, gpu, p.over[piece])
        np.maximum.at(priority, gpu, p.priority[piece])
        np.minimum.at(newness, gpu, p.newness[piece])
        keys = (-newness, weight, priority, -over, size, stake, np.round(shortfall, 3))
        return gpus[np.lexsort([key[gpus] for key in keys])]
