"""Placement of one replica: the nodes that fit, and the one with the lowest cost (see ``scoring``).

Of whole GPUs the best-linked ones of the node are taken. Ties are broken by the state of the nodes (how full, GPU
memory, CPU, a digest of everything), never by name, and only complete ties by the row.
"""

from __future__ import annotations

from dataclasses import replace
from weakref import WeakKeyDictionary

import numpy as np

from gpupool.domain.units import WHOLE_GPU
from gpupool.scheduling.placement.node_filter import (
    accepted_gpus,
    accepted_models,
    mode_on,
    usable_rows,
    usable_slots,
)
from gpupool.scheduling.placement.scoring import Floats, Scorer
from gpupool.scheduling.state.allocation import Bools, Claim, HeldAllocation, Ints
from gpupool.scheduling.state.cluster import MILLI, ClusterState, RowState, Shape
from gpupool.scheduling.state.gpu_links import best_subset
from gpupool.scheduling.state.queue_tables import WaitingShapes
from gpupool.scheduling.state.sharing_modes import NO_MARK, hosts_only, mark_of
from gpupool.scheduling.values import Hold, ReplicaKey

NO_FIT = np.iinfo(np.int64).max
FEW = 4  # up to this number, rows are looked up one by one
MAX_CACHED = 256  # states of nodes, for each shape
_STEPS = 1 << 10  # of a score in a thousandth of a GPU: coarser than the rounding errors of equal scores
_KEPT = 1 << 60  # a node that is reserved for a replica comes before all others
_FREE_LIMIT = (1 << 15) - 1
_ODD = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93], dtype=np.uint64)


class _Cache:
    """The results for one shape on all rows: the rows that fit, as of a tick of the cluster, and the scores there.

    Scores have a tick of their own: they cost more, and only shapes that are placed need them.
    """

    __slots__ = (
        "accept",
        "fits",
        "generation",
        "known_fits",
        "known_scores",
        "least",
        "most",
        "of_models",
        "scored_at",
        "scores",
        "tick",
        "version",
        "where",
    )

    def __init__(self) -> None:
        self.where = np.zeros(0, np.bool_)
        self.fits = 0  # number of rows
        self.scores = np.zeros(0, np.int64)
        self.accept = np.zeros(0, np.bool_)
        self.tick = self.scored_at = self.generation = self.version = -1
        self.least = self.most = 0
        self.known_fits: dict[tuple[bool, RowState], bool] = {}  # nodes in the same state have the same result
        self.known_scores: dict[RowState, int] = {}
        self.of_models: dict[int, Shape] = {}  # see ``Placer.of_one_model``

    def put(self, rows: Ints, fits: Bools) -> None:
        """Update the rows that fit now."""
        self.fits += int(np.count_nonzero(fits)) - int(np.count_nonzero(self.where[rows]))
        self.where[rows] = fits


_HoldClaim = tuple[Hold, int, Claim]  # a hold in numbers, as of a generation of the cluster
_Usable = tuple[_Cache | None, int, Ints, Bools, Ints]  # as of a tick, on some rows: see ``usable_slots``


class Placer:
    """Finds places; caches scores per shape and checks only rows that were touched."""

    def __init__(self, cluster: ClusterState) -> None:
        self.cluster = cluster
        self.scorer = Scorer(cluster)
        self._least: tuple[WaitingShapes, int, int, Ints] | None = None  # see ``least_of``
        self._keys, self._keyed_at = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._caches: WeakKeyDictionary[Shape, _Cache] = WeakKeyDictionary()
        self._hold_claims: dict[ReplicaKey, _HoldClaim] = {}
        self._earlier_claims: dict[ReplicaKey, _HoldClaim] = {}  # those of the last cycle
        none = np.zeros((0, 0), np.bool_)
        self._latest: _Usable = None, -1, np.zeros(0, np.int64), none, none.astype(np.int64)  # of ``_fits``

    def begin_cycle(self) -> None:
        """Remove the claims of holds that the last cycle did not use."""
        self._earlier_claims, self._hold_claims = self._hold_claims, {}

    def claim_of(self, hold: Hold, user: str) -> Claim:
        """Return the claim of a hold; most are cached from the last cycle."""
        known, generation = self._earlier_claims.get(hold.key), self.cluster.generation
        if known is None or known[0] is not hold or known[1] != generation or known[2].user != user:
            held = HeldAllocation(hold.node, hold.shares, round(hold.cpus * MILLI), hold.memory_mib, hold.sharing, user)
            known = hold, generation, self.cluster.claim_of(held)
        self._hold_claims[hold.key] = known
        return known[2]

    def accepted(self, shape: Shape) -> Bools:
        """Return for each model number whether the shape accepts it."""
        return self._cache(shape).accept

    def of_one_model(self, shape: Shape) -> dict[int, Shape]:
        """Return the shape restricted to each model that it accepts, by model number; itself if it accepts only one.

        Models with less memory come first.
        """
        cache, c = self._cache(shape), self.cluster
        numbers = cache.accept.nonzero()[0].tolist()
        if len(numbers) == 1:
            return {numbers[0]: shape}
        if cache.of_models.keys() != set(numbers):
            memory = {number: int(c.gmem_total[c.model == number].max(initial=0)) for number in numbers}
            order = sorted(numbers, key=lambda number: (memory[number], c.models[number]))
            cache.of_models = {
                number: cache.of_models.get(number) or replace(shape, model=c.models[number]) for number in order
            }
        return cache.of_models

    def least_permille(self, shape: Shape) -> int:
        """Return the fewest thousandths that a shape can cost on the GPUs of this cluster; 0 when it fits none."""
        return self._costed(shape).least if shape.fixed_permille is None else shape.fixed_permille

    def most_permille(self, shape: Shape) -> int:
        """Return the most thousandths that a shape can cost on the GPUs of this cluster; 0 when it fits none."""
        return self._costed(shape).most if shape.fixed_permille is None else shape.fixed_permille

    def _costed(self, shape: Shape) -> _Cache:
        cache, cluster = self._cache(shape), self.cluster
        if cache.generation != cluster.generation:
            need, _ = shape.needs(cluster.gmem_total)
            need = need[(cluster.model > 0) & (need <= WHOLE_GPU)] * shape.request.count
            cache.least, cache.most = (int(need.min()), int(need.max())) if len(need) else (0, 0)
            cache.generation = cluster.generation
        return cache

    def least_of(self, shapes: WaitingShapes) -> Ints:
        """Return ``least_permille`` of all waiting shapes, by number."""
        c, known = self.cluster, self._least
        if known is not None and known[:3] == (shapes, shapes.version, c.generation):
            return known[3]
        largest = max(int(c.gmem_total[c.model > 0].max(initial=0)), 1)
        by_memory = -(-shapes.gpu_memory * WHOLE_GPU // largest)
        least = np.where(shapes.gpu_memory > 0, by_memory * (by_memory <= WHOLE_GPU), shapes.permille)
        self._least = shapes, shapes.version, c.generation, np.asarray(least * shapes.count)
        return self._least[3]

    def find(self, shape: Shape, budget: int | None = None) -> Claim | None:
        """Return the best place, or None; ``budget``: the most thousandths it may cost, for requests by memory."""
        if not self._seen(shape).fits:
            return None
        if budget is not None and shape.fixed_permille is None:
            return self._find_within(shape, budget)
        row = self._first(self.scores(shape), None)
        return None if row is None else self._claim(shape, row, None)

    def fits_anywhere(self, shape: Shape) -> bool:
        """Return whether there is a place now."""
        return self._seen(shape).fits > 0

    def _seen(self, shape: Shape) -> _Cache:
        """Return the cache of a shape, with the fitting rows up to date."""
        cache, cluster = self._cache(shape), self.cluster
        if cache.tick == cluster.tick and len(cache.where) == len(cluster.present):
            return cache
        if len(cache.where) != len(cluster.present):
            rows, cache.fits = np.arange(len(cluster.present)), 0
            cache.where = np.zeros(len(rows), np.bool_)
        else:
            rows = cluster.touched_since(cache.tick)
        if len(rows) and len(rows) <= FEW and shape.guest is None and not shape.picky:
            cache.put(rows, self._fits_on_few(shape, rows, cache))
        elif len(rows):
            cache.put(rows, self._fits(shape, rows, cache.accept))
        cache.tick = cluster.tick
        return cache

    def on_row(self, shape: Shape, row: int, budget: int | None = None) -> Claim | None:
        """Return the best place on one node, or None."""
        fixed = shape.fixed_permille
        if fixed is None:
            usable = bool(self._usable(shape, np.array([row]), budget).any())
        else:
            usable = (budget is None or fixed <= budget) and bool(self._seen(shape).where[row])
        return self._claim(shape, row, budget) if usable else None

    def holds(self, claim: Claim) -> bool:
        """Return whether exactly this claim could be charged now: the node takes work and all of it is free."""
        c, row = self.cluster, claim.row
        if row < 0 or not c.up[row]:
            return False
        used = claim.gpu > 0
        return bool(
            (c.available[row] | ~used).all()
            and (c.gpu_free[row] >= claim.gpu)[used].all()
            and (c.gmem_free[row] >= claim.gmem)[used].all()
            and ((mark := mark_of(claim.mode, claim.user)) == NO_MARK or hosts_only(c.guests[row], mark)[used].all())
            and c.cpu_free[row] >= claim.cpu_milli * (claim.cpu_milli > 0)
            and c.mem_free[row] >= claim.mem_mib * (claim.mem_mib > 0)
        )

    def may_enter(self, shape: Shape, row: int) -> bool:
        """Return whether reservations let a shape be placed on a node now."""
        return shape.guest is None or bool(self.cluster.open_to(shape.guest, np.array([row])).all())

    def scores(self, shape: Shape) -> Ints:
        """Return one number per row: the least is the best place, ``NO_FIT`` is none."""
        version, cache, cluster = self.scorer.refresh(), self._seen(shape), self.cluster
        if len(cache.scores) != len(cluster.present) or cache.version != version:
            stale = np.arange(len(cluster.present))
            cache.scores, cache.version = np.full(len(stale), NO_FIT), version
            cache.known_scores.clear()
        elif cache.scored_at == cluster.tick:
            return cache.scores
        else:
            stale = cluster.touched_since(cache.scored_at)
        if len(stale):
            cache.scores[stale] = NO_FIT
            rows = stale[cache.where[stale]]
            if len(rows) <= FEW and shape.guest is None:
                self._score_few(shape, rows, cache)
            else:
                cache.scores[rows] = self._score(shape, rows, cache.accept, None)
        cache.scored_at = cluster.tick
        return cache.scores

    def _cache(self, shape: Shape) -> _Cache:
        cache = self._caches.get(shape)
        if cache is None:
            cache = self._caches[shape] = _Cache()
        if len(cache.accept) != len(self.cluster.models):
            cache.accept = accepted_models(self.cluster, shape)
        return cache

    def _find_within(self, shape: Shape, budget: int) -> Claim | None:
        rows = np.flatnonzero(self._seen(shape).where)
        if not len(rows):
            return None
        self.scorer.refresh()
        scores = self._score(shape, rows, self.accepted(shape), budget)
        row = self._first(scores, rows)
        return None if row is None else self._claim(shape, row, budget)

    def _first(self, scores: Ints, rows: Ints | None) -> int | None:
        """Return the row of the least score (of ``rows``; None is all), ties broken; None when nothing fits."""
        least = scores.min()
        if least == NO_FIT:
            return None
        best = (scores == least).nonzero()[0]
        best = best if rows is None else rows[best]
        return int(best[self._tie_keys(best).argmin()] if len(best) > 1 else best[0])

    def _tie_keys(self, rows: Ints) -> Ints:
        """Return tie-break keys: fuller nodes first, then ``late_keys``; cached for each row until it is touched."""
        c = self.cluster
        if len(self._keys) != len(c.present):
            self._keys, self._keyed_at = np.zeros(len(c.present), np.int64), np.full(len(c.present), -1)
        stale = rows[c.touched[rows] > self._keyed_at[rows]]
        if len(stale):
            room = np.minimum(np.maximum(c.gpu_free[stale], 0).sum(axis=1), _FREE_LIMIT)
            self._keys[stale] = room << 28 | self.late_keys(stale)
            self._keyed_at[stale] = c.touched[stale]
        return self._keys[rows]

    def _usable(self, shape: Shape, rows: Ints, budget: int | None) -> Bools:
        ok, _ = usable_slots(self.cluster, shape, rows, self.accepted(shape), budget)
        return usable_rows(self.cluster, shape, rows, ok)

    def _fits(self, shape: Shape, rows: Ints, accept: Bools) -> Bools:
        """Return on which of ``rows`` there is a place."""
        fits = self._roomy(shape, rows)
        at = fits.nonzero()[0]
        if len(at):
            ok, left = usable_slots(self.cluster, shape, rows[at], accept)
            fits[at] = usable_rows(self.cluster, shape, rows[at], ok)
            self._latest = self._caches.get(shape), self.cluster.tick, rows[at], ok, left
        return fits

    def _fits_on_few(self, shape: Shape, rows: Ints, cache: _Cache) -> Bools:
        """Return ``_fits``, from the cache where a node in the same state was examined before."""
        c, known, memory = self.cluster, cache.known_fits, shape.mem_mib
        found = np.zeros(len(rows), np.bool_)
        for at, row in enumerate(rows.tolist()):
            state = bool(c.up[row]) and (not memory or bool(c.mem_free[row] >= memory)), c.state_of(row)
            if state not in known:
                if len(known) >= MAX_CACHED:
                    known.clear()
                known[state] = bool(self._fits(shape, rows[at : at + 1], cache.accept)[0])
            found[at] = known[state]
        return found

    def _score_few(self, shape: Shape, rows: Ints, cache: _Cache) -> None:
        """Set the scores of ``rows``, from the cache where a node in the same state was scored before."""
        known = cache.known_scores
        for at, row in enumerate(rows.tolist()):
            state = self.cluster.state_of(row)
            if state not in known:
                if len(known) >= MAX_CACHED:
                    known.clear()
                known[state] = int(self._score(shape, rows[at : at + 1], cache.accept, None)[0])
            cache.scores[row] = known[state]

    def _score(self, shape: Shape, rows: Ints, accept: Bools, budget: int | None) -> Ints:
        """Return scores of ``rows`` on which there is a place, though perhaps none for ``budget`` thousandths."""
        c, scores = self.cluster, np.full(len(rows), NO_FIT)
        known, tick, where, ok, left = self._latest
        if (
            known is not self._caches.get(shape)
            or tick != c.tick
            or budget is not None
            or not np.array_equal(where, rows)
        ):
            ok, left = usable_slots(c, shape, rows, accept, budget)
        at = np.arange(len(rows))
        if budget is not None:
            at = usable_rows(c, shape, rows, ok).nonzero()[0]
            ok, left, rows = ok[at], left[at], rows[at]
        if len(at):
            cost = self.scorer.scores(shape, rows, ok, c.gpu_free[rows] - left, self._links(shape, rows, ok))
            scores[at] = np.rint(cost * _STEPS).astype(np.int64)
            if shape.guest is not None:
                scores[at] -= _KEPT * c.reserved_for(shape.guest, rows)
        return scores

    def _roomy(self, shape: Shape, rows: Ints) -> Bools:
        """Return which of ``rows`` may fit at all: a cheap test, as most nodes of a full pool have no room."""
        c, request = self.cluster, shape.request
        if request.memory_mib is None:
            free = c.gpu_free[rows] >= request.permille
        else:
            free = c.gmem_free[rows] >= request.memory_mib
        roomy = np.count_nonzero(free, axis=1) >= request.count
        roomy &= c.up[rows]
        if shape.cpu_milli:
            roomy &= c.cpu_free[rows] >= shape.cpu_milli
        return np.asarray(roomy)

    def _links(self, shape: Shape, rows: Ints, ok: Bools) -> Floats | None:
        """Return the link quality of the GPUs that a shape would get on each row (0 to 255); None if irrelevant."""
        links, count = self.cluster.links, shape.request.count
        if not shape.whole or count < 2:
            return None
        found = np.zeros(len(rows))
        for at, row in enumerate(rows.tolist() if any(links) else ()):
            if links[row]:
                found[at] = best_subset(links[row], tuple(np.flatnonzero(ok[at]).tolist()), count)[1]
        return found

    def late_keys(self, rows: Ints) -> Ints:
        """Return 28 bits that break ties: smaller GPUs first, then fuller CPUs, then a digest of the node's state."""
        c = self.cluster
        memory = np.minimum(c.gmem_total[rows].max(axis=1) >> 12, 63)
        cpu = np.clip(c.cpu_free[rows] * 63 // np.maximum(c.cpu_total[rows], 1), 0, 63)
        return np.asarray((memory << 22) | (cpu << 16) | self._digest(rows))

    def _digest(self, rows: Ints) -> Ints:
        c = self.cluster
        slot = c.gpu_free[rows].astype(np.uint64) * _ODD[0] + c.gmem_free[rows].astype(np.uint64) * _ODD[1]
        slot = (slot + c.gmem_total[rows].astype(np.uint64) * _ODD[2] + c.available[rows]) * _ODD[3]
        total = (slot ^ (slot >> np.uint64(29))).sum(axis=1) + c.salt[rows] * _ODD[1]
        total += c.mem_free[rows].astype(np.uint64) * _ODD[0] + c.cpu_free[rows].astype(np.uint64) * _ODD[2]
        return np.asarray((total * _ODD[3]) >> np.uint64(48)).astype(np.int64)

    def _claim(self, shape: Shape, row: int, budget: int | None) -> Claim:
        c, total = self.cluster, self.cluster.gmem_total[row]
        if shape.whole:
            ok = accepted_gpus(c, shape, self.accepted(shape), np.array([row]))[0] & c.available[row]
            ok &= (c.gpu_free[row] >= WHOLE_GPU) & (c.gmem_free[row] >= total)
            free = ok.nonzero()[0]
            if len(free) > 1:
                free = free[total[free].argsort(kind="stable")]  # of several sizes the smaller first
            chosen = free[: shape.request.count]
            if c.links[row]:
                found = best_subset(c.links[row], tuple(free.tolist()), shape.request.count)[0]
                chosen = np.array(found, dtype=np.int64)
        else:
            rows = np.array([row])
            slots, left = usable_slots(c, shape, rows, self.accepted(shape), budget)
            self.scorer.refresh()
            chosen = self.scorer.chosen(shape, rows, slots, c.gpu_free[rows] - left)[0].nonzero()[0]
        need, mem = shape.needs(total)
        gpu, gmem = np.zeros(c.slots, np.int64), np.zeros(c.slots, np.int64)
        gpu[chosen], gmem[chosen] = need[chosen], mem[chosen]
        return Claim(row, gpu, gmem, shape.cpu_milli, shape.mem_mib, mode_on(c, shape, row, gpu), shape.user)
