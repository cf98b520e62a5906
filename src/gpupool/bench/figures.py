"""Measured figures, and reasons for those that were not measured.

A figure without a measured number cannot be made to look like one: ``measured`` refuses what is not finite or rests on
no sample, and everything else carries a reason instead of a value.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class CaseOutcome(StrEnum):
    """The outcome of a measurement."""

    MEASURED = "measured"
    SKIPPED = "skipped"  # something it needs is not here
    FAILED = "failed"  # it was tried and went wrong


class NotMeasuredError(ValueError):
    """A number without a measurement must not be reported."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table. ``detail`` has the basis of the value (samples, runs, arguments).

    ``ratio`` is the value divided by that of the ``baseline``, which was measured in the same run.
    """

    part: str
    name: str
    outcome: CaseOutcome
    value: float | None = None
    unit: str = ""
    goal: str = ""
    reason: str = ""
    detail: dict[str, Any] = field(default_factory=dict)
    baseline: str = ""
    ratio: float | None = None


def measured(part: str, name: str, value: float, unit: str, *, samples: int, goal: str = "", **detail: Any) -> Figure:
    """Return a result with a number; raise ``NotMeasuredError`` if it is not a number or has no basis."""
    if not math.isfinite(value) or samples < 1:
        raise NotMeasuredError(f"{part}, {name}: {value} of {samples} samples is not a measurement")
    return Figure(part, name, CaseOutcome.MEASURED, value, unit, goal, detail={"samples": samples} | detail)


def skipped(part: str, name: str, reason: str) -> Figure:
    """Return a result that cannot be measured here."""
    return Figure(part, name, CaseOutcome.SKIPPED, reason=reason)


def failed(part: str, name: str, reason: str) -> Figure:
    """Return a result whose measurement failed."""
    return Figure(part, name, CaseOutcome.FAILED, reason=reason[-2000:])


def value_text(figure: Figure) -> str:
    """Return the value with four digits and its unit; raise ``NotMeasuredError`` if there is none."""
    if figure.outcome is not CaseOutcome.MEASURED or figure.value is None:
        raise NotMeasuredError(f"{figure.part}, {figure.name}: {figure.reason or 'no value'}")
    return f"{figure.value:.4g} {figure.unit}".strip()


def counts(figures: Iterable[Figure]) -> str:
    """Return ``12 measured, 3 skipped, 0 failed``."""
    found: Sequence[CaseOutcome] = [figure.outcome for figure in figures]
    return ", ".join(f"{found.count(outcome)} {outcome.value}" for outcome in CaseOutcome)
