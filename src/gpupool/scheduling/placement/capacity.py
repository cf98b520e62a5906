"""Count how many replicas of a shape would fit if more of the nodes were free, for many nodes or trials at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpupool.domain.units import WHOLE_GPU
from gpupool.scheduling.placement.node_filter import (
    STRICT,
    Relax,
    accepted_gpus,
    labelled,
    mode_fits,
    usable_rows,
    usable_slots,
)
from gpupool.scheduling.state.allocation import Bools, Ints
from gpupool.scheduling.state.cluster import ClusterState, Shape


class Freed(NamedTuple):
    """Additional free amounts, one row per trial: thousandths and MiB per GPU, CPU, memory, guest marks."""

    gpu: Ints
    gmem: Ints
    cpu: Ints
    mem: Ints
    marks: Ints

    def at(self, index: npt.NDArray[Any] | list[int]) -> Freed:
        """Return some of the trials."""
        return Freed(*(column[index] for column in self))

    def total(self) -> Freed:
        """Return the sum of all trials as one trial."""
        return Freed(*(column.sum(axis=0)[None] for column in self))

    def running(self, first: Ints) -> Freed:
        """Return running sums within runs; ``first`` is the row at which the run of each trial begins."""
        return Freed(*(_running(column, first) for column in self))

    def by(self, begins: Ints) -> Freed:
        """Return the sums of the runs that begin at ``begins``."""
        return Freed(*(np.add.reduceat(column, begins, axis=0) for column in self))

    def minus(self, other: Freed) -> Freed:
        """Return the rest without the trials of ``other``."""
        return Freed(*(mine - theirs for mine, theirs in zip(self, other, strict=True)))


def runs(*columns: Ints) -> Ints:
    """Return where the runs of equal values begin."""
    if not len(columns[0]):
        return np.zeros(0, np.int64)
    changes = np.zeros(len(columns[0]) - 1, np.bool_)
    for column in columns:
        changes |= column[1:] != column[:-1]
    return np.flatnonzero(np.r_[True, changes])


def nothing(rows: int, slots: int) -> Freed:
    """Return trials in which nothing more is free."""
    flat, grid = np.zeros(rows, np.int64), np.zeros((rows, slots), np.int64)
    return Freed(grid, grid, flat, flat, grid)


@dataclass(frozen=True, slots=True, eq=False)
class Need:
    """``count`` replicas of a shape, each at ``budget`` thousandths at most, on GPU models that are ``accepted``."""

    shape: Shape
    accepted: Bools
    budget: int
    count: int = 1


def room_with(c: ClusterState, wanted: Need, rows: Ints, freed: Freed) -> Ints:
    """Return how many of the replicas fit on each of ``rows`` with ``freed`` in addition."""
    shape = wanted.shape
    need, need_mem = shape.needs(c.gmem_total[rows])
    free, mem = c.gpu_free[rows] + freed.gpu, c.gmem_free[rows] + freed.gmem
    ok = accepted_gpus(c, shape, wanted.accepted, rows) & c.available[rows] & (free >= need) & (mem >= need_mem)
    ok &= need * shape.request.count <= wanted.budget
    if shape.mode is not None or not shape.whole:
        ok &= mode_fits(c, shape, rows, c.guests[rows] - freed.marks)
    number = ok.sum(axis=1) // max(shape.request.count, 1)
    if wanted.count > 1 and not shape.whole:
        per_slot = np.minimum(free // np.maximum(need, 1), mem // np.maximum(need_mem, 1))
        number = spread_over(np.where(ok, per_slot, 0), shape.request.count)
    if shape.cpu_milli:
        number = np.minimum(number, (c.cpu_free[rows] + freed.cpu) // shape.cpu_milli)
    if shape.mem_mib:
        number = np.minimum(number, (c.mem_free[rows] + freed.mem) // shape.mem_mib)
    number = np.minimum(np.maximum(number, 0), wanted.count) * c.up[rows]
    if shape.guest is not None:
        number = np.where(c.open_to(shape.guest, rows), number, 0)
    if shape.picky:
        number[~_labelled(c, shape, rows, number > 0)] = 0
    return np.asarray(number)


def capacity(c: ClusterState, wanted: Need, rows: Ints, relax: Relax = STRICT) -> Ints:
    """Return how many of the replicas fit on each of ``rows`` at once; their budget does not count."""
    shape = wanted.shape
    ok, _ = usable_slots(c, shape, rows, wanted.accepted, None, relax)
    fits = usable_rows(c, shape, rows, ok, relax)
    if shape.gpuless:
        number = np.full(len(rows), wanted.count)
    elif shape.whole:
        number = ok.sum(axis=1) // shape.request.count
    else:
        number = spread_over(parts_per_slot(c, shape, rows, ok, relax), shape.request.count)
    cpu, mem = (c.cpu_total, c.mem_total) if relax.use else (c.cpu_free, c.mem_free)
    if shape.cpu_milli:
        number = np.minimum(number, cpu[rows] // shape.cpu_milli)
    if shape.mem_mib:
        number = np.minimum(number, mem[rows] // shape.mem_mib)
    return np.where(fits, np.clip(number, 0, wanted.count), 0)


def parts_per_slot(c: ClusterState, shape: Shape, rows: Ints, ok: Bools, relax: Relax = STRICT) -> Ints:
    """Return how many parts of a shape fit on each GPU that is ``ok``."""
    need, mem = shape.needs(c.gmem_total[rows])
    free, gmem = (WHOLE_GPU, c.gmem_total[rows]) if relax.use else (c.gpu_free[rows], c.gmem_free[rows])
    return np.where(ok, np.minimum(free // np.maximum(need, 1), gmem // np.maximum(mem, 1)), 0)


def spread_over(per_slot: Ints, count: int) -> Ints:
    """Return how many replicas of ``count`` GPUs each fit if each GPU serves up to ``per_slot``.

    Each replica needs different GPUs.
    """
    number = per_slot.sum(axis=1) // count
    while count > 1:  # k fit if the slots, each used k times at most, serve k x count
        fewer = np.minimum(per_slot, number[:, None]).sum(axis=1) // count
        if (fewer == number).all():
            break
        number = fewer
    return np.asarray(number)


def _labelled(c: ClusterState, shape: Shape, rows: Ints, wanted: Bools) -> Bools:
    """Return which of the ``wanted`` among ``rows`` have the labels and the pool that a shape asks for."""
    which, back = np.unique(rows[wanted], return_inverse=True)
    found = np.zeros(len(rows), np.bool_)
    found[wanted] = np.array([labelled(c, row, shape) for row in which.tolist()], np.bool_)[back]
    return found


def _running(column: Ints, first: Ints) -> Ints:
    total = column.cumsum(axis=0)
    before = np.concatenate([np.zeros_like(total[:1]), total])[first]
    return np.asarray(total - before)
