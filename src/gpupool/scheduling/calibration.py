"""How far off past estimates of starts were, and what that says about the next one.

Each past estimate gives a ratio: what came to pass over what was foretold, both in seconds from when it was made. Their
quartiles, the latest counting most, correct an estimate and bound it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import exp2

HALF_LIFE = 20.0  # so many estimates later one counts half
MOST_OUTCOMES = 100  # of a project that are looked at
FEWEST_OUTCOMES = 5  # fewer say nothing
LEAST_S = 10.0  # shorter times are taken for as long as this: a second more or less is no error
MOST_OFF = 10.0  # a ratio beyond this, or below its inverse, is taken for it


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was foretold of a start, and what came of it, both in seconds from when it was foretold."""

    project: str
    predicted_s: float
    actual_s: float

    @property
    def ratio(self) -> float:
        """How many times as long as foretold it took."""
        ratio = max(self.actual_s, LEAST_S) / max(self.predicted_s, LEAST_S)
        return min(max(ratio, 1 / MOST_OFF), MOST_OFF)


@dataclass(frozen=True, slots=True)
class Slip:
    """The quartiles of the ratios of ``outcomes`` past estimates; 1 is as foretold, above it later."""

    outcomes: int
    low: float
    mid: float
    high: float

    def words(self) -> str:
        """``past estimates were 1.3x too early``; empty when they were about right, or there are none."""
        if self.outcomes and self.mid >= 1.05:
            return f"past estimates were {self.mid:.1f}x too early"
        if self.outcomes and self.mid <= 1 / 1.05:
            return f"past estimates were {1 / self.mid:.1f}x too late"
        return ""


NO_SLIP = Slip(0, 1.0, 1.0, 1.0)


def learn(outcomes: Iterable[Outcome]) -> dict[str, Slip]:
    """The slips by project, and of the pool as "", from outcomes with the newest first; those that say something."""
    by_project: dict[str, list[float]] = {"": []}
    for outcome in outcomes:
        for name in (outcome.project, ""):
            ratios = by_project.setdefault(name, [])
            if len(ratios) < MOST_OUTCOMES:
                ratios.append(outcome.ratio)
    return {name: _slip(ratios) for name, ratios in by_project.items() if len(ratios) >= FEWEST_OUTCOMES}


def slip_of(slips: Mapping[str, Slip], project: str) -> Slip | None:
    """The slip of a project, or else that of the pool."""
    return slips.get(project) or slips.get("")


def _slip(ratios: list[float]) -> Slip:
    weighted = sorted((ratio, exp2(-age / HALF_LIFE)) for age, ratio in enumerate(ratios))
    low, mid, high = (_quantile(weighted, part) for part in (0.25, 0.5, 0.75))
    return Slip(len(ratios), low, mid, high)


def _quantile(weighted: list[tuple[float, float]], part: float) -> float:
    """The least ratio up to which lies at least that part of the weight."""
    wanted, passed = part * sum(weight for _, weight in weighted), 0.0
    for ratio, weight in weighted:
        passed += weight
        if passed >= wanted:
            return ratio
    return weighted[-1][0]
