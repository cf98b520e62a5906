"""The value of the free rest of a GPU, if work of known sizes fills it as well as possible.

It is the solution of a linear programme: fill GPUs with patterns of parts so that as much as possible is in use, and no
size is used more often than it is requested. The dual price of a size is the value of one more request of that size.
The value of a rest of a GPU is that of the best pattern that fits it, less the values of its sizes in other patterns.
Solved by column generation (Gilmore and Gomory, "A linear programming approach to the cutting-stock problem",
Operations Research 9, 1961). GPUs are measured in 120 levels: halves, thirds, quarters, fifths, sixths, eighths and
tenths are whole numbers of them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from gpupool.domain.units import WHOLE_GPU

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

LEVELS = 120
_UNIT = WHOLE_GPU / LEVELS
_LOAD = 1.02  # demand in relation to capacity: just above 1, so that GPUs are scarce and not work
_ROUNDS = 400  # columns at most: about three for each size are enough
_SMALL = 1e-7
_AT = np.arange(LEVELS + 1)
_REST = np.maximum(_AT[:, None] - _AT[None, :], 0)  # [r, a]: the rest of r after a
_BEYOND = np.where(_AT[None, :] > _AT[:, None], -np.inf, 0.0)


def level_of(permille: float) -> int:
    """Return the level nearest to some thousandths, the lower of two."""
    return int(np.ceil(permille / _UNIT - 0.5 - _SMALL))


def wasted(demand: Mapping[int, float]) -> Floats:
    """Return for 0 to 1000 free thousandths of a GPU how many of them will stay unused in the long run.

    ``demand``: the frequency of each size (thousandths), in any unit; it is scaled to slightly more than the capacity.
    """
    sizes, supply = _supply(demand)
    if not len(sizes):
        return np.zeros(WHOLE_GPU + 1)
    worth = sizes * _UNIT - _prices(sizes, supply)
    value = _Filling(sizes, worth).value
    permille = np.arange(WHOLE_GPU + 1)
    levels = np.ceil(permille / _UNIT - 0.5 - _SMALL).astype(np.int64)
    return np.asarray(np.maximum(permille - value[levels], 0.0))


def _supply(demand: Mapping[int, float]) -> tuple[Ints, Floats]:
    """Return the sizes in levels, and the demand for each per GPU."""
    by_level: dict[int, float] = {}
    for permille, often in demand.items():
        level = level_of(permille)
        if 0 < level <= LEVELS and often > 0:
            by_level[level] = by_level.get(level, 0.0) + often
    sizes = np.array(sorted(by_level), dtype=np.int64)
    counts = np.array([by_level[level] for level in sorted(by_level)], dtype=np.float64)
    return sizes, counts * (_LOAD * LEVELS / float(counts @ sizes)) if len(sizes) else counts


class _Filling:
    """The best pattern for each number of levels, from sizes with a value each, by doubling the parts in it."""

    def __init__(self, sizes: Ints, worth: Floats) -> None:
        self._sizes = sizes
        one = np.zeros(LEVELS + 1)
        self._first = np.full(LEVELS + 1, -1)
        for at, (size, gain) in enumerate(zip(sizes.tolist(), worth.tolist(), strict=True)):
            better = one[size:] < gain
            one[size:][better], self._first[size:][better] = gain, at
        self._splits: list[Ints] = []
        self.value = one
        while True:
            both = self.value[None, :] + self.value[_REST] + _BEYOND
            split = both.argmax(axis=1)
            value = both[_AT, split]
            if (value <= self.value + _SMALL).all():
                break
            self._splits.append(split)
            self.value = value

    def pattern(self) -> Floats:
        """Return the number of parts of each size in the best pattern for a whole GPU."""
        counts, todo = np.zeros(len(self._sizes)), [(LEVELS, len(self._splits))]
        while todo:
            level, depth = todo.pop()
            if depth:
                part = int(self._splits[depth - 1][level])
                todo += [(part, depth - 1), (level - part, depth - 1)]
            elif self._first[level] >= 0:
                counts[self._first[level]] += 1
        return counts


def _prices(sizes: Ints, supply: Floats) -> Floats:
    """Return the dual prices of the sizes, in thousandths: the additional use with one more request of a size."""
    rows = len(sizes) + 1  # one for each size, and one for the GPU
    basis, amounts, gains = np.eye(rows), np.append(supply, 1.0), np.zeros(rows)
    for _ in range(_ROUNDS):
        prices = gains @ basis
        column, gain = _entering(sizes, prices)
        if column is None:
            break
        step = basis @ column
        ratios = np.where(step > _SMALL, amounts / np.where(step > _SMALL, step, 1.0), np.inf)
        leaving = int(ratios.argmin())
        least = ratios[leaving]
        amounts = np.maximum(amounts - least * step, 0.0)
        amounts[leaving], gains[leaving] = least, gain
        pivot = basis[leaving] / step[leaving]
        basis = basis - np.outer(step, pivot)
        basis[leaving] = pivot
    return np.asarray(np.maximum(gains @ basis, 0.0)[:-1])


def _entering(sizes: Ints, prices: Floats) -> tuple[Floats | None, float]:
    """Return the column that gains most at some prices, and its value alone; None if none gains."""
    least = int(prices.argmin())
    filling = _Filling(sizes, sizes * _UNIT - prices[:-1])
    gain = filling.value[LEVELS] - prices[-1]
    if max(gain, -prices[least]) <= _SMALL * WHOLE_GPU:
        return None, 0.0
    if -prices[least] > gain:
        return np.eye(len(prices))[least], 0.0
    counts = filling.pattern()
    return np.append(counts, 1.0), float(counts @ sizes) * _UNIT
