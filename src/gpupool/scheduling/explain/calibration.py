"""Calibration: the errors of past estimates of starts, and the correction of the next one.

Each past estimate gives a ratio: the actual wait over the predicted wait, both in seconds from the estimate. Five
quantiles of the ratios correct an estimate and bound it. Queues change, so the quantiles of all past ratios say little
about the next one. Each quantile is therefore tracked: it moves up after a ratio above it and down after one below it,
by amounts in the proportion of the parts of the ratios that should lie there (the gradient of the quantile loss). In
the long run these parts are right, however the ratios change.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from math import ceil, exp, log

PARTS = (0.05, 0.25, 0.5, 0.75, 0.95)  # of the ratios that lie below each quantile
STEP = 0.65  # the move of a quantile after one ratio, up and down together; of logarithms
LATEST = 30  # the move is at most the range of the latest ratios: exact estimates stay exact
MAX_OUTCOMES = 300  # used; older ones have no influence
MIN_OUTCOMES = 5  # with fewer there is no correction
MIN_PREDICTED_S = 10.0  # shorter times count as this: a second more or less is no error
MAX_RATIO = 1000.0  # ratios are limited to this and its inverse


@dataclass(frozen=True, slots=True)
class PredictedStart:
    """The predicted and the actual wait for a start, both in seconds from the prediction."""

    predicted_s: float
    actual_s: float

    @property
    def ratio(self) -> float:
        """Return the actual wait as a multiple of the predicted one, within bounds."""
        ratio = max(self.actual_s, MIN_PREDICTED_S) / max(self.predicted_s, MIN_PREDICTED_S)
        return min(max(ratio, 1 / MAX_RATIO), MAX_RATIO)


@dataclass(frozen=True, slots=True)
class Slip:
    """Quantiles of the ratios of ``outcomes`` past estimates; 1: as predicted, more: later.

    Half of the ratios lie between ``low`` and ``high``, nine of ten between ``least`` and ``most``.
    """

    outcomes: int
    least: float = 1.0
    low: float = 1.0
    mid: float = 1.0
    high: float = 1.0
    most: float = 1.0

    def corrected(self, predicted_s: float) -> tuple[float, float, float, float, float]:
        """Return the corrected wait in seconds: least, low, likely, high, most."""
        if not self.outcomes:
            return (predicted_s,) * 5
        base = max(predicted_s, MIN_PREDICTED_S)
        least, low, mid, high, most = (base * ratio for ratio in (self.least, self.low, self.mid, self.high, self.most))
        return _no_shorter(least), _no_shorter(low), mid, high, most

    def words(self) -> str:
        """Return ``past estimates were 1.3x too early``; empty when they were about right, or there are none."""
        if self.outcomes and self.mid >= 1.05:
            return f"past estimates were {self.mid:.1f}x too early"
        if self.outcomes and self.mid <= 1 / 1.05:
            return f"past estimates were {1 / self.mid:.1f}x too late"
        return ""


NO_SLIP = Slip(0)


def learn(outcomes: Iterable[PredictedStart]) -> Slip:
    """Return how far off estimates are, from outcomes with the newest first; ``NO_SLIP`` if there are too few."""
    ratios = [log(outcome.ratio) for outcome in islice(outcomes, MAX_OUTCOMES)][::-1]
    if len(ratios) < MIN_OUTCOMES:
        return NO_SLIP
    first = sorted(ratios[:MIN_OUTCOMES])
    levels = [first[ceil(part * MIN_OUTCOMES) - 1] for part in PARTS]
    for at in range(MIN_OUTCOMES, len(ratios)):
        latest = ratios[max(0, at - LATEST) : at + 1]
        step = min(STEP, max(latest) - min(latest))
        moved = (level + step * (part - (ratios[at] < level)) for level, part in zip(levels, PARTS, strict=True))
        levels = sorted(moved)
    return Slip(len(ratios), *map(exp, levels))


def _no_shorter(seconds: float) -> float:
    """Return 0 for a lower bound of a time that counts as ``MIN_PREDICTED_S``."""
    return seconds if seconds > MIN_PREDICTED_S * (1 + 1e-9) else 0.0
