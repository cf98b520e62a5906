"""Calibration: how far off past estimates of starts were, and how the next one is corrected.

Each past estimate gives a ratio: the actual wait over the predicted wait, both in seconds from the estimate. The
quartiles of the ratios correct an estimate and bound it; the latest ratios count most.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import exp2

HALF_LIFE = 20.0  # an estimate counts half after this many later ones
MAX_OUTCOMES = 100  # used per project
MIN_OUTCOMES = 5  # with fewer there is no correction
MIN_PREDICTED_S = 10.0  # shorter times count as this: a second more or less is no error
MAX_RATIO = 10.0  # ratios are limited to this and its inverse


@dataclass(frozen=True, slots=True)
class Outcome:
    """The predicted and the actual wait for a start, both in seconds from the prediction."""

    project: str
    predicted_s: float
    actual_s: float

    @property
    def ratio(self) -> float:
        """Return the actual wait as a multiple of the predicted one, within bounds."""
        ratio = max(self.actual_s, MIN_PREDICTED_S) / max(self.predicted_s, MIN_PREDICTED_S)
        return min(max(ratio, 1 / MAX_RATIO), MAX_RATIO)


@dataclass(frozen=True, slots=True)
class Slip:
    """The quartiles of the ratios of ``outcomes`` past estimates; 1: as predicted, more: later."""

    outcomes: int
    low: float
    mid: float
    high: float

    def words(self) -> str:
        """Return ``past estimates were 1.3x too early``; empty when they were about right, or there are none."""
        if self.outcomes and self.mid >= 1.05:
            return f"past estimates were {self.mid:.1f}x too early"
        if self.outcomes and self.mid <= 1 / 1.05:
            return f"past estimates were {1 / self.mid:.1f}x too late"
        return ""


NO_SLIP = Slip(0, 1.0, 1.0, 1.0)


def learn(outcomes: Iterable[Outcome]) -> dict[str, Slip]:
    """Return the slips by project, and of the pool as "", from outcomes with the newest first.

    Projects with fewer than ``MIN_OUTCOMES`` are left out.
    """
    by_project: dict[str, list[float]] = {"": []}
    for outcome in outcomes:
        for name in (outcome.project, ""):
            ratios = by_project.setdefault(name, [])
            if len(ratios) < MAX_OUTCOMES:
                ratios.append(outcome.ratio)
    return {name: _slip(ratios) for name, ratios in by_project.items() if len(ratios) >= MIN_OUTCOMES}


def slip_of(slips: Mapping[str, Slip], project: str) -> Slip | None:
    """Return the slip of a project, or else that of the pool."""
    return slips.get(project) or slips.get("")


def _slip(ratios: list[float]) -> Slip:
    weighted = sorted((ratio, exp2(-age / HALF_LIFE)) for age, ratio in enumerate(ratios))
    low, mid, high = (_quantile(weighted, part) for part in (0.25, 0.5, 0.75))
    return Slip(len(ratios), low, mid, high)


def _quantile(weighted: list[tuple[float, float]], part: float) -> float:
    """Return the least ratio up to which at least ``part`` of the weight lies."""
    wanted, passed = part * sum(weight for _, weight in weighted), 0.0
    for ratio, weight in weighted:
        passed += weight
        if passed >= wanted:
            return ratio
    return weighted[-1][0]
