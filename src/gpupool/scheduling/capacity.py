"""How many replicas of a shape would fit on nodes if more of them were free, for many nodes or many trials at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpupool.scheduling.claims import Bools, Ints
from gpupool.scheduling.cluster import ClusterState
from gpupool.scheduling.shape import Shape
from gpupool.scheduling.usable import labelled, mode_fits


class Freed(NamedTuple):
    """What would be free in addition, one row per trial: thousandths and MiB per GPU, CPU, memory, marks of guests."""

    gpu: Ints
    gmem: Ints
    cpu: Ints
    mem: Ints
    marks: Ints

    def at(self, index: npt.NDArray[Any] | list[int]) -> Freed:
        """Some of the trials."""
        return Freed(*(column[index] for column in self))

    def total(self) -> Freed:
        """All of it together, as one trial."""
        return Freed(*(column.sum(axis=0)[None] for column in self))

    def running(self, first: Ints) -> Freed:
        """Running sums that begin anew where ``first`` says that the run of each begins."""
        return Freed(*(_running(column, first) for column in self))

    def by(self, begins: Ints) -> Freed:
        """Sums of the runs that begin at ``begins``."""
        return Freed(*(np.add.reduceat(column, begins, axis=0) for column in self))

    def minus(self, other: Freed) -> Freed:
        """What is left without the trials of ``other``."""
        return Freed(*(mine - theirs for mine, theirs in zip(self, other, strict=True)))


def runs(*columns: Ints) -> Ints:
    """Where the runs of equal values begin."""
    if not len(columns[0]):
        return np.zeros(0, np.int64)
    changes = np.zeros(len(columns[0]) - 1, np.bool_)
    for column in columns:
        changes |= column[1:] != column[:-1]
    return np.flatnonzero(np.r_[True, changes])


def nothing(rows: int, slots: int) -> Freed:
    """Trials in which nothing more is free."""
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
    """How many of the replicas fit on each of ``rows`` with ``freed`` in addition."""
    shape = wanted.shape
    need, need_mem = shape.needs(c.gmem_total[rows])
    free, mem = c.gpu_free[rows] + freed.gpu, c.gmem_free[rows] + freed.gmem
    ok = wanted.accepted[c.model[rows]] & c.available[rows] & (free >= need) & (mem >= need_mem)
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


def spread_over(per_slot: Ints, count: int) -> Ints:
    """How many replicas of ``count`` GPUs each fit if every GPU serves so many: each needs GPUs that differ."""
    number = per_slot.sum(axis=1) // count
    while count > 1:  # k fit if the slots, each used k times at most, serve k x count
        fewer = np.minimum(per_slot, number[:, None]).sum(axis=1) // count
        if (fewer == number).all():
            break
        number = fewer
    return np.asarray(number)


def _labelled(c: ClusterState, shape: Shape, rows: Ints, wanted: Bools) -> Bools:
    """Which of ``rows``, of those that are wanted, have the labels that a shape asks for."""
    which, back = np.unique(rows[wanted], return_inverse=True)
    found = np.zeros(len(rows), np.bool_)
    found[wanted] = np.array([labelled(c, row, shape) for row in which.tolist()], np.bool_)[back]
    return found


def _running(column: Ints, first: Ints) -> Ints:
    total = column.cumsum(axis=0)
    before = np.concatenate([np.zeros_like(total[:1]), total])[first]
    return np.asarray(total - before)
