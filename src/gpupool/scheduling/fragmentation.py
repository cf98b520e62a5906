"""How much of what is free on a node is of no use to typical work, and how a placement changes that.

The measure is that of FGD ("Beware of Fragmentation", USENIX ATC 2023): for one kind of work all that is free on a
node counts as lost where the kind does not fit, else what is free of GPUs too full for it; a node's fragmentation is
the mean over the kinds. Here it is exact, in thousandths of a GPU, and vectorised over nodes (R), GPUs (G) and kinds
(K): GPUs are of classes (model and memory), and each class knows how much of one of its GPUs each kind needs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gpupool.domain.units import WHOLE_GPU
from gpupool.scheduling.typical import Kind

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
GpuClass = tuple[str, int]  # model ("" is no GPU) and memory in MiB

UNMET = WHOLE_GPU + 1  # more than any GPU has


def need_on(kind: Kind, gpu: GpuClass) -> int:
    """Thousandths that a kind needs of a GPU; ``UNMET`` where it does not go there."""
    model, memory_mib = gpu
    if not model or not kind.request.accepts_model(model) or (kind.request.memory_mib and not memory_mib):
        return UNMET
    return min(kind.request.permille_on(memory_mib), UNMET)


class Fragmentation:
    """The fragmentation of nodes for given kinds of work on given classes of GPUs.

    ``classes`` of the calls are numbers of the classes, [R, 1] where each node has GPUs of one class, else [R, G];
    ``free`` is in thousandths, 0 for what nobody may use.
    """

    def __init__(self, kinds: Sequence[Kind], classes: Sequence[GpuClass]) -> None:
        single = [kind for kind in kinds if kind.request.count == 1]
        need = _needs(single, classes)
        order = need.argsort(axis=1, kind="stable")
        self._cpu = np.array([kind.cpu_milli for kind in single], dtype=np.int64)[order]
        self._part = np.array([kind.part for kind in single])[order]
        levels = np.arange(WHOLE_GPU + 1)
        sorted_need = np.take_along_axis(need, order, axis=1)
        self._rank = np.array([row.searchsorted(levels, side="right") for row in sorted_need], dtype=np.int64)
        several = [kind for kind in kinds if kind.request.count > 1]
        self._several_need = _needs(several, classes)
        self._several_cpu = np.array([kind.cpu_milli for kind in several], dtype=np.int64)
        self._several_count = np.array([kind.request.count for kind in several], dtype=np.int64)
        self._several_part = np.array([kind.part for kind in several])

    def of(self, classes: Ints, cpu: Ints, free: Ints) -> Floats:
        """The fragmentation of each node, in thousandths: [R]."""
        return np.asarray(free.sum(axis=1) - self.usable(classes, cpu, free))

    def usable(self, classes: Ints, cpu: Ints, free: Ints) -> Floats:
        """What is free and of use, the mean over the kinds: [R]."""
        found = (free * self._reach(classes, cpu, free)[0]).sum(axis=1)
        if len(self._several_part):
            fits, parts = self._several(classes, cpu, free)
            room = (free[:, :, None] * fits).sum(axis=1)
            found += (parts * room * (fits.sum(axis=1) >= self._several_count)).sum(axis=1)
        return np.asarray(found)

    def growth(self, classes: Ints, cpu: Ints, cpu_left: Ints, free: Ints, left: Ints) -> Floats:
        """How the fragmentation of each node changes when CPU and GPUs go down to ``cpu_left`` and ``left``: [R]."""
        return self.of(classes, cpu_left, left) - self.of(classes, cpu, free)

    def growth_by_gpu(self, classes: Ints, cpu: Ints, cpu_left: Ints, free: Ints, need: Ints) -> Floats:
        """The same for each GPU that ``need`` could be taken of: [R, G]; of no meaning where it has less free."""
        left = np.maximum(free - need, 0)
        before, after = self._reach(classes, cpu_left, free, left)
        used = free * before
        usable = used.sum(axis=1)[:, None] - used + left * after
        if len(self._several_part):
            usable += self._several_by_gpu(classes, cpu_left, free, left)
        return np.asarray(self.usable(classes, cpu, free)[:, None] - usable - need)

    def _reach(self, classes: Ints, cpu: Ints, *free: Ints) -> list[Floats]:
        """The part of the work for one GPU that a GPU with so much free can take, given its node's CPUs: [R, G]."""
        parts = self._part[classes] * (self._cpu[classes] <= cpu[:, None, None])
        total = np.zeros((*parts.shape[:2], parts.shape[2] + 1))
        parts.cumsum(axis=2, out=total[:, :, 1:])
        rows, gpus = np.arange(len(cpu))[:, None], np.arange(classes.shape[1])
        return [total[rows, gpus, self._rank[classes, left]] for left in free]

    def _several(self, classes: Ints, cpu: Ints, free: Ints) -> tuple[Bools, Floats]:
        """Which GPUs do for kinds of several GPUs [R, G, K], and the parts of the kinds that have their CPUs [R, K]."""
        fits = self._several_need[classes] <= free[:, :, None]
        return fits, self._several_part * (self._several_cpu <= cpu[:, None])

    def _several_by_gpu(self, classes: Ints, cpu: Ints, free: Ints, left: Ints) -> Floats:
        before, parts = self._several(classes, cpu, free)
        after, _ = self._several(classes, cpu, left)
        count = before.sum(axis=1)[:, None, :] - before + after
        room = free[:, :, None] * before
        room = room.sum(axis=1)[:, None, :] - room + left[:, :, None] * after
        return np.asarray((parts[:, None, :] * room * (count >= self._several_count)).sum(axis=2))


def _needs(kinds: Sequence[Kind], classes: Sequence[GpuClass]) -> Ints:
    """[C, K]."""
    table = [[need_on(kind, gpu) for kind in kinds] for gpu in classes]
    return np.array(table, dtype=np.int64).reshape(len(classes), len(kinds))
