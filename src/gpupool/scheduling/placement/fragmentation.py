"""Fragmentation: the free capacity of a node that typical work cannot use, and its change by a placement.

The measure is that of FGD ("Beware of Fragmentation", USENIX ATC 2023). For one kind of work, all free capacity of a
node counts as lost where the kind does not fit, else the free capacity of GPUs that are too full for it. The
fragmentation of a node is the mean over the kinds. Here it is exact, in thousandths of a GPU, and vectorised over nodes
(R), GPUs (G) and kinds (K). GPUs belong to classes (model and memory), and for each class it is known how much of one
of its GPUs each kind needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from gpupool.domain.nodes.gpu import GpuRequest
from gpupool.domain.units import WHOLE_GPU
from gpupool.scheduling.placement.demand_profile import ProfiledRequest

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
GpuClass = tuple[str, int]  # model ("" is no GPU) and memory in MiB

UNMET = WHOLE_GPU + 1  # more than any GPU has


def need_on(kind: ProfiledRequest, gpu: GpuClass) -> int:
    """Return the thousandths that a kind needs of a GPU; ``UNMET`` where it cannot run."""
    return _need_on(kind.request, *gpu)


@lru_cache(65_536)
def _need_on(request: GpuRequest, model: str, memory_mib: int) -> int:
    if not model or not request.accepts_model(model) or (request.memory_mib and not memory_mib):
        return UNMET
    return min(request.permille_on(memory_mib), UNMET)


class Fragmentation:
    """The fragmentation of nodes for given kinds of work on given classes of GPUs.

    The argument ``classes`` of the methods has numbers of classes, [R, 1] where each node has GPUs of one class, else
    [R, G]; ``free`` is in thousandths, 0 where no work may run. Only the needed CPUs and thousandths of a kind matter.
    So the parts of the kinds are added up beforehand: for all that need no more than a given amount of either.
    """

    def __init__(self, kinds: Sequence[ProfiledRequest], classes: Sequence[GpuClass]) -> None:
        single = [kind for kind in kinds if kind.request.count == 1]
        several = [kind for kind in kinds if kind.request.count > 1]
        self._cpus = np.unique([kind.cpu_milli for kind in kinds]).astype(np.int64)
        need = _needs(single, classes)
        levels = np.unique(need)
        self._rank = levels.searchsorted(np.arange(WHOLE_GPU + 1), side="right")
        self._parts = np.zeros((len(classes), len(self._cpus) + 1, len(levels) + 1))
        for at, kind in enumerate(single):
            cpu = 1 + int(self._cpus.searchsorted(kind.cpu_milli))
            for number, least in enumerate((1 + levels.searchsorted(need[:, at])).tolist()):
                self._parts[number, cpu:, least:] += kind.part
        self._prepare_several(several, _needs(several, classes))

    def _prepare_several(self, kinds: Sequence[ProfiledRequest], need: Ints) -> None:
        """Group kinds for several GPUs by count and needs: arrays [C, K], [K] and [CPU, K] for K groups."""
        groups = {(kind.request.count, *need[:, at].tolist()): at for at, kind in enumerate(kinds)}
        order = {key: at for at, key in enumerate(sorted(groups))}
        self._several_need = need[:, [groups[key] for key in order]]
        self._several_count = np.array([key[0] for key in order], dtype=np.int64)
        self._several_parts = np.zeros((len(self._cpus) + 1, len(order)))
        for at, kind in enumerate(kinds):
            cpu = 1 + int(self._cpus.searchsorted(kind.cpu_milli))
            self._several_parts[cpu:, order[kind.request.count, *need[:, at].tolist()]] += kind.part

    def of(self, classes: Ints, cpu: Ints, free: Ints) -> Floats:
        """Return the fragmentation of each node, in thousandths: [R]."""
        return np.asarray(free.sum(axis=1) - self.usable(classes, cpu, free))

    def usable(self, classes: Ints, cpu: Ints, free: Ints) -> Floats:
        """Return the free thousandths that typical work can use, the mean over the kinds: [R]."""
        cpus = self._cpus.searchsorted(cpu, side="right")
        found = np.einsum("rg,rg->r", free, self._reach(classes, cpus, free))
        if len(self._several_count):
            fits = self._several_need[classes] <= free[:, :, None]
            room = np.einsum("rg,rgk->rk", free, fits)
            enough = np.add.reduce(fits, axis=1, dtype=np.int64) >= self._several_count
            found += np.einsum("rk,rk,rk->r", self._several_parts[cpus], room, enough)
        return np.asarray(found)

    def growth(self, classes: Ints, cpu: Ints, cpu_left: Ints, free: Ints, left: Ints) -> Floats:
        """Return how the fragmentation of each node changes as free CPU and GPUs fall to the ``left`` values: [R]."""
        rows = len(cpu)  # both states in one call: for few nodes, the calls are the cost
        both = np.concatenate((classes, classes)), np.concatenate((cpu, cpu_left)), np.concatenate((free, left))
        found = self.of(*both)
        return np.asarray(found[rows:] - found[:rows])

    def growth_by_gpu(self, classes: Ints, cpu: Ints, cpu_left: Ints, free: Ints, need: Ints) -> Floats:
        """Return ``growth`` for taking ``need`` from each GPU alone: [R, G]; meaningless where less is free."""
        left = np.maximum(free - need, 0)
        cpus = self._cpus.searchsorted(cpu_left, side="right")
        used = free * self._reach(classes, cpus, free)
        usable = left * self._reach(classes, cpus, left) - used + used.sum(axis=1)[:, None]
        if len(self._several_count):
            usable += self._several_by_gpu(classes, cpus, free, left)
        return np.asarray(self.usable(classes, cpu, free)[:, None] - usable - need)

    def _reach(self, classes: Ints, cpus: Ints, free: Ints) -> Floats:
        """Return the part of single-GPU work that fits on a GPU with ``free``, given its node's CPUs: [R, G]."""
        return np.asarray(self._parts[classes, cpus[:, None], self._rank[free]])

    def _several_by_gpu(self, classes: Ints, cpus: Ints, free: Ints, left: Ints) -> Floats:
        """Return the capacity that work for several GPUs can use once a part of one of the GPUs is taken: [R, G]."""
        need = self._several_need[classes]
        before, after = need <= free[:, :, None], need <= left[:, :, None]
        count = np.add.reduce(before, axis=1, dtype=np.int64)[:, None, :] - before + after
        room = free[:, :, None] * before
        room = room.sum(axis=1)[:, None, :] - room + left[:, :, None] * after
        enough = count >= self._several_count
        return np.asarray(np.einsum("rk,rgk,rgk->rg", self._several_parts[cpus], room, enough))


def _needs(kinds: Sequence[ProfiledRequest], classes: Sequence[GpuClass]) -> Ints:
    """Return the thousandths that each kind needs on each class of GPUs: [C, K]."""
    table = [[need_on(kind, gpu) for kind in kinds] for gpu in classes]
    return np.array(table, dtype=np.int64).reshape(len(classes), len(kinds))
