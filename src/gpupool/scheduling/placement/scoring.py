"""Scores of places: the cost of a place on each node, given the future needs of the pool's usual work.

Packing adds up, all in thousandths of a GPU: the growth of free capacity that typical work cannot use (see
``fragmentation``), the growth of the GPU's rest that will stay unused permanently (see ``packing_value``), the scarcity
of its model, the looseness of its GPUs' links, and the free rest of the node (full nodes are preferred). Spreading
takes the node and the GPUs with the least load.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gpupool.domain.nodes.gpu import Placement
from gpupool.domain.units import WHOLE_GPU
from gpupool.scheduling.placement.demand_profile import ProfiledRequest, TypicalWork, frequent_kinds
from gpupool.scheduling.placement.fragmentation import UNMET, Fragmentation, GpuClass, need_on
from gpupool.scheduling.placement.packing_value import wasted
from gpupool.scheduling.state.cluster import ClusterState, Shape
from gpupool.scheduling.state.sharing_modes import hosts_own

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

# Chosen with benchmarks/scheduler/packing.py, which names the traces. In thousandths of a GPU.
WASTE_WEIGHT = 20.0  # a thousandth that stays unused permanently, in relation to one that typical work cannot use
SCARCITY_WEIGHT = 200.0  # a whole GPU of a model with a demand equal to its supply
TIGHTNESS_WEIGHT = 60.0  # all the CPUs and GPUs that the largest node can have left, half for either
LINK_WEIGHT = 1000.0  # each GPU of several that is not linked to the others at all
BEST_LINK = 255
NEVER = np.inf


class Scorer:
    """Scores on one cluster, with the profile of its usual work.

    ``version`` grows whenever earlier scores are no longer comparable to new ones.
    """

    def __init__(self, cluster: ClusterState) -> None:
        self.cluster = cluster
        self.work = TypicalWork()
        self.placement = Placement.PACK  # for requests without one
        self.version = 0
        self._learnt = self._generation = -1
        self._classes: tuple[GpuClass, ...] = ()
        self._sizes: tuple[int, ...] = ()
        self._asked: dict[int, float] | None = None
        self._class_of: Ints = np.zeros((0, 1), np.int64)
        self._uniform: Bools = np.zeros(0, np.bool_)
        self._most_cpu = self._most_gpu = 1

    def refresh(self) -> int:
        """Apply the new profile and the changes of the cluster; return ``version``."""
        learnt, generation = self.work.learn(), self.cluster.generation
        changed = generation != self._generation and self._survey()
        self._generation = generation
        if changed or learnt != self._learnt:
            self._learnt = learnt
            self._prepare()
            self.version += 1
        return self.version

    def _survey(self) -> bool:
        """Update the classes of GPUs and their numbers; return whether anything changed."""
        c = self.cluster
        codes = (c.model << 32) | c.gmem_total
        codes[c.model == 0] = 0
        found, self._class_of = np.unique(np.append(0, codes), return_inverse=True)
        sizes = np.bincount(self._class_of[1:], minlength=len(found))
        self._class_of = self._class_of[1:].reshape(codes.shape)
        one = (self._class_of == self._class_of[:, :1]) | (self._class_of == 0)  # nothing is free without a GPU
        self._uniform = one.all(axis=1)
        classes = tuple((c.models[code >> 32], code & 0xFFFFFFFF) for code in found.tolist())
        most = (max(1, int(c.cpu_total.max(initial=1))), max(1, int((c.model > 0).sum(axis=1).max(initial=1))))
        before = (self._classes, self._sizes, self._most_cpu, self._most_gpu)
        self._classes, self._sizes = classes, tuple(sizes.tolist())
        self._most_cpu, self._most_gpu = most
        return before != (classes, self._sizes, *most)

    def _prepare(self) -> None:
        known = self.work.known()
        self._measure = Fragmentation(frequent_kinds(known), self._classes)
        self._price = prices(known, self._classes, self._sizes)
        self._waste_weight = WASTE_WEIGHT * self.work.trust  # low weight while demand is hardly known
        asked = sizes_asked(known, self._classes, self._sizes)
        if asked != self._asked:
            self._asked, self._waste = asked, wasted(asked)

    # --- scores

    def scores(self, shape: Shape, rows: Ints, ok: Bools, need: Ints, links: Floats | None) -> Floats:
        """Return the cost of each of ``rows``, given the fitting GPUs and the needs of each: [R]; needs ``refresh``."""
        if self._spreads(shape):
            return self._loads(shape, rows, ok, need)
        c, count = self.cluster, shape.request.count
        cpu, free, classes = c.cpu_free[rows], self._free(rows, ok), self._classes_of(rows)
        cpu_left = cpu - shape.cpu_milli
        if count == 1 and not shape.whole:
            by_gpu = np.where(ok, self._by_gpu(classes, cpu, cpu_left, free, need), NEVER)
            taken = by_gpu.argmin(axis=1)
            at = np.arange(len(rows))
            cost, amount, one = by_gpu[at, taken], need[at, taken], taken[:, None]
        else:
            chosen = self.chosen(shape, rows, ok, need)
            taken = need * chosen
            left = free - taken
            cost = self._measure.growth(classes, cpu, cpu_left, free, left)
            if not shape.whole:  # for whole GPUs it is the same everywhere
                cost += self._waste_weight * (self._waste[left] - self._waste[free]).sum(axis=1)
            amount, one = taken.sum(axis=1), chosen.argmax(axis=1)[:, None]
        price = self._price[classes if classes.shape[1] == 1 else np.take_along_axis(classes, one, axis=1)][:, 0]
        cost = cost + SCARCITY_WEIGHT * price * amount / WHOLE_GPU
        cost += self._tightness(cpu_left, free.sum(axis=1) - amount)
        return np.asarray(cost if links is None else cost + LINK_WEIGHT * count * (1 - links / BEST_LINK))

    def by_gpu(self, shape: Shape, rows: Ints, ok: Bools, need: Ints) -> Floats:
        """Return the cost of each fitting GPU if a part of it is taken: [R, G]."""
        c = self.cluster
        if self._spreads(shape):
            return np.where(ok, need - c.gpu_free[rows], NEVER)
        cpu, free = c.cpu_free[rows], self._free(rows, ok)
        found = self._by_gpu(self._classes_of(rows), cpu, cpu - shape.cpu_milli, free, need)
        return np.where(ok, found, NEVER)

    def chosen(self, shape: Shape, rows: Ints, ok: Bools, need: Ints) -> Bools:
        """Return the GPUs to take on each row, the cheapest one by one: [R, G]."""
        if shape.whole and self._uniform[rows].all():
            return np.asarray(ok & (ok.cumsum(axis=1) <= shape.request.count))
        cost = np.where(ok, self.cluster.gmem_total[rows], NEVER) if shape.whole else self.by_gpu(shape, rows, ok, need)
        order = cost.argsort(axis=1, kind="stable")
        chosen = np.zeros_like(ok)
        np.put_along_axis(chosen, order[:, : shape.request.count], values=True, axis=1)
        return chosen & ok

    def _spreads(self, shape: Shape) -> bool:
        return (shape.request.placement or self.placement) is Placement.SPREAD

    def _by_gpu(self, classes: Ints, cpu: Ints, cpu_left: Ints, free: Ints, need: Ints) -> Floats:
        left = np.maximum(free - need, 0)
        growth = self._measure.growth_by_gpu(classes, cpu, cpu_left, free, np.minimum(need, UNMET))
        return np.asarray(growth + self._waste_weight * (self._waste[left] - self._waste[free]))

    def _tightness(self, cpu_left: Ints, gpu_left: Ints) -> Floats:
        part = cpu_left / self._most_cpu + gpu_left / (self._most_gpu * WHOLE_GPU)
        return np.asarray(TIGHTNESS_WEIGHT / 2 * part)

    def _loads(self, shape: Shape, rows: Ints, ok: Bools, need: Ints) -> Floats:
        """Return the load that each node would have: of its GPUs, then of the GPU that is taken."""
        c = self.cluster
        gpus = np.maximum((c.model[rows] > 0).sum(axis=1), 1)
        taken = np.where(self.chosen(shape, rows, ok, need), need, 0)
        free = np.clip(c.gpu_free[rows], 0, WHOLE_GPU)
        load = (gpus * WHOLE_GPU - free.sum(axis=1) + taken.sum(axis=1)) / gpus
        fullest = np.where(taken > 0, WHOLE_GPU - free + taken, 0).max(axis=1)
        return np.asarray(load * WHOLE_GPU + fullest)

    def _classes_of(self, rows: Ints) -> Ints:
        found = self._class_of[rows]
        return found[:, :1] if self._uniform[rows].all() else found

    def _free(self, rows: Ints, ok: Bools) -> Ints:
        """Return the thousandths of each GPU that are free for typical work and for the shape that is placed now."""
        c = self.cluster
        guests, open_ = c.guests[rows], ok | c.available[rows]
        if guests.any():
            open_ &= ok | hosts_own(guests, c.mode_default[rows])
        return np.asarray(np.minimum(np.maximum(c.gpu_free[rows], 0), WHOLE_GPU) * open_)


def prices(known: Sequence[ProfiledRequest], classes: Sequence[GpuClass], sizes: Sequence[int]) -> Floats:
    """Return the scarcity of a GPU of each class: the requested GPUs per existing one, [C].

    Every kind requests all GPUs that fit it equally, and all kinds together request as many GPUs as there are.
    """
    size = np.array(sizes, dtype=np.float64)
    found, asked = np.zeros(len(classes)), 0.0
    for kind in known:
        need = np.array([need_on(kind, gpu) for gpu in classes])
        fits = need < UNMET
        among = size[fits].sum()
        if among:
            gpus = kind.part * kind.request.count * float(need[fits] @ size[fits]) / among / WHOLE_GPU
            found[fits] += gpus / among
            asked += gpus
    return found * size[1:].sum() / asked if asked else found


def sizes_asked(
    known: Sequence[ProfiledRequest], classes: Sequence[GpuClass], sizes: Sequence[int]
) -> dict[int, float]:
    """Return the demand for each part of a GPU; requests by memory count on the most usual class that fits."""
    found: dict[int, float] = {}
    ranked = sorted(range(len(classes)), key=lambda number: (-sizes[number], classes[number]))
    for kind in known:
        needs = (need_on(kind, classes[number]) for number in ranked)
        need = next((need for need in needs if need < UNMET), None)
        if need is not None:
            found[need] = found.get(need, 0.0) + kind.part * kind.request.count
    return found
