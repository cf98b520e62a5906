"""Where one replica goes: which nodes would do, and the one among them that costs least (see ``scoring``).

Whole GPUs are then those of the node that are linked best. Equals are told apart by what the nodes have (how full, GPU
memory, CPU, a digest of all of it), never by name, and only equals in all of that by their row.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from gpupool.domain.gpu import POOL_LABEL, Node, Sharing
from gpupool.domain.sharing import slice_mode
from gpupool.domain.units import WHOLE_GPU
from gpupool.scheduling.cluster import Bools, Claim, ClusterState, Ints
from gpupool.scheduling.links import best_subset
from gpupool.scheduling.modes import NO_MARK, REFUSED, hosts_only, mark_of, marks_by_code
from gpupool.scheduling.scoring import Floats, Scorer
from gpupool.scheduling.shape import Shape

NO_FIT = np.iinfo(np.int64).max
_STEPS = 1 << 10  # of a score in a thousandth of a GPU: coarser than what rounding does to equals
_KEPT = 1 << 60  # a node that is booked for a replica goes before all others
_FREE_LIMIT = (1 << 15) - 1
_ODD = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93], dtype=np.uint64)


@dataclass(frozen=True, slots=True)
class Relax:
    """Which rules to leave out of a look at the cluster: to say which of them is in the way."""

    use: bool = False  # what others hold
    state: bool = False  # cordoned and down nodes
    health: bool = False
    foreign: bool = False
    host: bool = False  # CPU and memory
    model: bool = False
    labels: bool = False
    pools: bool = False  # the nodes that the project's rules name
    mode: bool = False  # how parts of GPUs are shared
    bookings: bool = False  # what is kept for others


STRICT = Relax()
EMPTY = Relax(use=True, state=True, health=True, foreign=True, bookings=True)  # could it ever fit?


class _Cache:
    """Scores of one shape for all rows, as of a tick of the cluster."""

    __slots__ = ("accept", "generation", "least", "scores", "tick", "version")

    def __init__(self) -> None:
        self.scores = np.zeros(0, np.int64)
        self.accept = np.zeros(0, np.bool_)
        self.tick = self.generation = self.version = -1
        self.least = 0


class Placer:
    """Finds places, remembering scores per shape and looking again only at rows that were touched."""

    def __init__(self, cluster: ClusterState) -> None:
        self.cluster = cluster
        self.scorer = Scorer(cluster)
        self._keys, self._keys_tick = np.zeros(0, np.int64), -1
        self._caches: WeakKeyDictionary[Shape, _Cache] = WeakKeyDictionary()

    def accepted(self, shape: Shape) -> Bools:
        """For each model number whether the shape takes it."""
        return self._cache(shape).accept

    def least_permille(self, shape: Shape) -> int:
        """The fewest thousandths that a shape can cost on the GPUs of this cluster; 0 when it fits none."""
        if shape.fixed_permille is not None:
            return shape.fixed_permille
        cache, cluster = self._cache(shape), self.cluster
        if cache.generation != cluster.generation:
            need, _ = shape.needs(cluster.gmem_total)
            need = need[(cluster.model > 0) & (need <= WHOLE_GPU)]
            cache.least = int(need.min()) * shape.request.count if len(need) else 0
            cache.generation = cluster.generation
        return cache.least

    def find(self, shape: Shape, budget: int | None = None) -> Claim | None:
        """The best place, or None. ``budget``: the most thousandths it may cost; matters to requests by memory."""
        scores = self.scores(shape)
        if not len(scores):
            return None
        if budget is not None and shape.fixed_permille is None:
            return self._find_within(shape, budget)
        row = self._first(scores, None)
        return None if row is None else self._claim(shape, row, None)

    def fits_anywhere(self, shape: Shape) -> bool:
        """Whether there is a place now."""
        scores = self.scores(shape)
        return bool(len(scores)) and int(scores.min()) != NO_FIT

    def on_row(self, shape: Shape, row: int, budget: int | None = None) -> Claim | None:
        """The best place on one node, or None."""
        return self._claim(shape, row, budget) if self._usable(shape, np.array([row]), budget).any() else None

    def holds(self, claim: Claim) -> bool:
        """Whether exactly this claim could be charged now: the node takes work and all of it is free."""
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
        """Whether bookings let a shape be placed on a node now."""
        return shape.guest is None or bool(self.cluster.open_to(shape.guest, np.array([row])).all())

    def scores(self, shape: Shape) -> Ints:
        """One number per row, the least is the best place, ``NO_FIT`` is none."""
        cluster, version = self.cluster, self.scorer.refresh()
        cache = self._cache(shape)
        if len(cache.scores) != len(cluster.present) or cache.version != version:
            rows = np.arange(len(cluster.present))
            cache.scores, cache.version = np.full(len(rows), NO_FIT), version
        elif cache.tick == cluster.tick:
            return cache.scores
        else:
            rows = (cluster.touched > cache.tick).nonzero()[0]
        if len(rows):
            cache.scores[rows] = self._score(shape, rows, cache.accept, None)
        cache.tick = cluster.tick
        return cache.scores

    def _cache(self, shape: Shape) -> _Cache:
        cache = self._caches.get(shape)
        if cache is None:
            cache = self._caches[shape] = _Cache()
        if len(cache.accept) != len(self.cluster.models):
            cache.accept = _accepted(self.cluster, shape)
        return cache

    def _find_within(self, shape: Shape, budget: int) -> Claim | None:
        rows = np.flatnonzero(self.scores(shape) != NO_FIT)
        if not len(rows):
            return None
        scores = self._score(shape, rows, self.accepted(shape), budget)
        row = self._first(scores, rows)
        return None if row is None else self._claim(shape, row, budget)

    def _first(self, scores: Ints, rows: Ints | None) -> int | None:
        """The row of the least score (of ``rows``: None is all), equals told apart; None when nothing fits."""
        least = scores.min()
        if least == NO_FIT:
            return None
        best = (scores == least).nonzero()[0]
        best = best if rows is None else rows[best]
        return int(best[self._tie_keys()[best].argmin()] if len(best) > 1 else best[0])

    def _tie_keys(self) -> Ints:
        """What tells equals apart, for every row: fuller nodes first, then ``late_keys``."""
        c = self.cluster
        stale = np.arange(len(c.present))
        if len(self._keys) == len(stale):
            stale = (c.touched > self._keys_tick).nonzero()[0]
        else:
            self._keys = np.zeros(len(stale), np.int64)
        room = np.minimum(np.maximum(c.gpu_free[stale], 0).sum(axis=1), _FREE_LIMIT)
        self._keys[stale], self._keys_tick = room << 28 | self.late_keys(stale), c.tick
        return self._keys

    def _usable(self, shape: Shape, rows: Ints, budget: int | None) -> Bools:
        ok, _ = usable_slots(self.cluster, shape, rows, self.accepted(shape), budget)
        return usable_rows(self.cluster, shape, rows, ok)

    def _score(self, shape: Shape, rows: Ints, accept: Bools, budget: int | None) -> Ints:
        c, scores = self.cluster, np.full(len(rows), NO_FIT)
        at = self._roomy(shape, rows).nonzero()[0]
        if not len(at):
            return scores
        ok, left = usable_slots(c, shape, rows[at], accept, budget)
        fits = usable_rows(c, shape, rows[at], ok).nonzero()[0]
        if len(fits):
            at, ok, left = at[fits], ok[fits], left[fits]
            rows = rows[at]
            cost = self.scorer.scores(shape, rows, ok, c.gpu_free[rows] - left, self._links(shape, rows, ok))
            scores[at] = np.rint(cost * _STEPS).astype(np.int64)
            if shape.guest is not None:
                scores[at] -= _KEPT * c.kept_for(shape.guest, rows)
        return scores

    def _roomy(self, shape: Shape, rows: Ints) -> Bools:
        """Which of ``rows`` may do at all: a look that costs little, as most nodes of a full pool have no room."""
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
        """How well the GPUs are linked that a shape would get on each row (0 to 255); None where it does not matter."""
        links, count = self.cluster.links, shape.request.count
        if not shape.whole or count < 2 or not any(links):
            return None
        found = np.zeros(len(rows))
        for at, row in enumerate(rows.tolist()):
            if links[row]:
                found[at] = best_subset(links[row], tuple(np.flatnonzero(ok[at]).tolist()), count)[1]
        return found

    def late_keys(self, rows: Ints) -> Ints:
        """28 bits that tell equals apart: smaller GPUs first, then fuller CPUs, then a digest of the node's state."""
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
            ok = self.accepted(shape)[c.model[row]] & c.available[row]
            ok &= (c.gpu_free[row] >= WHOLE_GPU) & (c.gmem_free[row] >= total)
            free = ok.nonzero()[0]
            free = free[total[free].argsort(kind="stable")]  # of several kinds the smaller first
            chosen = np.array(best_subset(c.links[row], tuple(free.tolist()), shape.request.count)[0], dtype=np.int64)
        else:
            rows = np.array([row])
            slots, left = usable_slots(c, shape, rows, self.accepted(shape), budget)
            self.scorer.refresh()
            chosen = self.scorer.chosen(shape, rows, slots, c.gpu_free[rows] - left)[0].nonzero()[0]
        need, mem = shape.needs(total)
        gpu, gmem = np.zeros(c.slots, np.int64), np.zeros(c.slots, np.int64)
        gpu[chosen], gmem[chosen] = need[chosen], mem[chosen]
        return Claim(row, gpu, gmem, shape.cpu_milli, shape.mem_mib, mode_on(c, shape, row, gpu), shape.user)


def mode_on(c: ClusterState, shape: Shape, row: int, gpu: Ints) -> str:
    """The mode that a shape gets on some GPUs of a node, ``gpu`` thousandths of each."""
    if shape.request.sharing is not None:
        return shape.request.sharing.value
    used = np.flatnonzero(gpu)
    if not len(used):
        return ""
    node, gpus = c.nodes[row], c.gpus[row]
    if node is None:
        return ""
    if (gpu[used] >= WHOLE_GPU).all():
        instances = _can(node, Sharing.MIG) and all(gpus[slot].mig_profile for slot in used.tolist())
        return (Sharing.MIG if instances else Sharing.WHOLE).value
    return slice_mode("", node.policy_of(gpus[int(used[0])].uuid) or "", node.report.sharing) or ""


def mode_fits(c: ClusterState, shape: Shape, rows: Ints, guests: Ints | None) -> Bools:
    """Which GPUs of ``rows`` a shape may share, given who their guests are (None: nobody); [R, G]."""
    if shape.whole and shape.mode is None:
        return np.ones((len(rows), c.slots), np.bool_)
    defaults = c.mode_default[rows]
    if shape.mode is not None:
        ok = _insists(c, shape, rows)
    elif shape.request.count > 1:
        ok = (defaults == c.mode_common[rows][:, None]) & (defaults != REFUSED)
    else:
        ok = defaults != REFUSED
    if guests is not None and not shape.whole:
        marks = marks_by_code(shape.user)
        ok = ok & hosts_only(guests, marks[defaults] if shape.mode is None else int(marks[shape.mode]))
    return np.asarray(ok)


def _insists(c: ClusterState, shape: Shape, rows: Ints) -> Bools:
    """Where the mode that a shape insists on may be had: policies are about parts of GPUs, not about whole ones."""
    wanted = shape.request.sharing
    if wanted is Sharing.MPS and shape.request.count > 1:
        return np.zeros((len(rows), c.slots), np.bool_)  # one server, one GPU
    if not shape.whole:
        return np.asarray((c.mode_open[rows] >> (shape.mode or 0)) & 1 != 0)
    if wanted is None or wanted is Sharing.WHOLE:
        return np.ones((len(rows), c.slots), np.bool_)
    nodes = [c.nodes[row] if row < len(c.nodes) else None for row in rows.tolist()]
    offers = np.array([node is not None and _can(node, wanted) for node in nodes], np.bool_)
    return np.repeat(offers[:, None], c.slots, axis=1)


def _can(node: Node, mode: Sharing) -> bool:
    """Whether a node can use a mode, as far as it says."""
    return not node.report.sharing or mode in node.report.sharing


def _accepted(cluster: ClusterState, shape: Shape) -> Bools:
    accepts = shape.request.accepts_model
    return np.array([False] + [accepts(model) for model in cluster.models[1:]], dtype=np.bool_)


def usable_slots(
    c: ClusterState, shape: Shape, rows: Ints, accept: Bools, budget: int | None = None, relax: Relax = STRICT
) -> tuple[Bools, Ints]:
    """Which GPUs of ``rows`` would do, and the thousandths each would have left: [R, G] both."""
    total = c.gmem_total[rows]
    need, mem = shape.needs(total)
    free, gmem = (np.full_like(total, WHOLE_GPU), total) if relax.use else (c.gpu_free[rows], c.gmem_free[rows])
    ok = (c.model[rows] > 0) if relax.model else accept[c.model[rows]]
    ok &= free >= need
    ok &= gmem >= mem
    if not relax.health and not relax.foreign:
        ok &= c.available[rows]
    elif not relax.health:
        ok &= c.healthy[rows]
    elif not relax.foreign:
        ok &= ~c.foreign[rows]
    if not relax.mode and (shape.mode is not None or not shape.whole):
        ok &= mode_fits(c, shape, rows, None if relax.use else c.guests[rows])
    if budget is not None:
        ok &= need * shape.request.count <= budget
    return ok, free - need


def usable_rows(c: ClusterState, shape: Shape, rows: Ints, ok: Bools, relax: Relax = STRICT) -> Bools:
    """Which of ``rows`` would do, given their usable slots."""
    fits = c.present[rows] & (ok.sum(axis=1) >= shape.request.count) & (shape.request.count > 0)
    if not relax.state:
        fits &= c.up[rows]
    if not relax.host:
        cpu, mem = (c.cpu_total, c.mem_total) if relax.use else (c.cpu_free, c.mem_free)
        if shape.cpu_milli:
            fits &= cpu[rows] >= shape.cpu_milli
        if shape.mem_mib:
            fits &= mem[rows] >= shape.mem_mib
    if shape.guest is not None and not relax.bookings:
        fits &= c.open_to(shape.guest, rows)
    if shape.picky:
        fits &= np.array([labelled(c, row, shape, relax) for row in rows.tolist()], dtype=np.bool_)
    return np.asarray(fits)


def labelled(c: ClusterState, row: int, shape: Shape, relax: Relax = STRICT) -> bool:
    """Whether a node has the labels that a shape asks for, and is in a pool where it may be."""
    node = c.nodes[row] if row < len(c.nodes) else None  # rows beyond are spare
    if node is None:
        return False
    labels = node.all_labels
    wanted = () if relax.labels else shape.request.labels
    in_pool = relax.pools or not shape.pools or labels.get(POOL_LABEL) in shape.pools
    return in_pool and all(labels.get(k) == v for k, v in wanted)


def fitting_rows(c: ClusterState, shape: Shape, relax: Relax = STRICT) -> Ints:
    """The rows where a shape would fit with some rules left out."""
    rows = np.flatnonzero(c.present)
    ok, _ = usable_slots(c, shape, rows, _accepted(c, shape), None, relax)
    return rows[usable_rows(c, shape, rows, ok, relax)]
