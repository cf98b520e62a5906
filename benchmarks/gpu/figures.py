"""Measured figures, and reasons for those that were not measured; their JSON and table.

A figure without a measured number cannot be made to look like one: ``measured`` refuses what is not finite or rests on
no sample, and everything else carries a reason instead of a value.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any


class Outcome(StrEnum):
    """The outcome of a measurement."""

    MEASURED = "measured"
    SKIPPED = "skipped"  # something it needs is not here
    FAILED = "failed"  # it was tried and went wrong


class NotMeasuredError(ValueError):
    """A number without a measurement must not be reported."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table. ``detail`` has the basis of the value (samples, runs, arguments)."""

    part: str
    name: str
    outcome: Outcome
    value: float | None = None
    unit: str = ""
    goal: str = ""
    reason: str = ""
    detail: dict[str, Any] = field(default_factory=dict)


def measured(part: str, name: str, value: float, unit: str, *, samples: int, goal: str = "", **detail: Any) -> Figure:
    """Return a result with a number; raise ``NotMeasuredError`` if it is not a number or has no basis."""
    if not math.isfinite(value) or samples < 1:
        raise NotMeasuredError(f"{part}, {name}: {value} of {samples} samples is not a measurement")
    return Figure(part, name, Outcome.MEASURED, value, unit, goal, detail={"samples": samples} | detail)


def skipped(part: str, name: str, reason: str) -> Figure:
    """Return a result that cannot be measured here."""
    return Figure(part, name, Outcome.SKIPPED, reason=reason)


def failed(part: str, name: str, reason: str) -> Figure:
    """Return a result whose measurement failed."""
    return Figure(part, name, Outcome.FAILED, reason=reason[-2000:])


@dataclass(frozen=True, slots=True)
class Report:
    """All figures of a run with where and how they were taken. ``emulated``: good for trying the benchmark only."""

    facts: dict[str, Any]
    figures: tuple[Figure, ...]
    emulated: bool

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"emulated": self.emulated, "facts": self.facts, "figures": [asdict(f) for f in self.figures]}


def write(report: Report, results: Path) -> tuple[Path, Path]:
    """Store the JSON and the table as ``gpu-<model>-<date>``; the two paths.

    Raises ``NotMeasuredError`` for a report from emulated GPUs, and for one in which nothing was measured.
    """
    if report.emulated:
        raise NotMeasuredError("figures of emulated GPUs are never stored")
    if not any(figure.outcome is Outcome.MEASURED for figure in report.figures):
        raise NotMeasuredError("nothing was measured, so nothing is stored")
    results.mkdir(exist_ok=True)
    stem = f"gpu-{_slug(str(report.facts['gpu']))}-{str(report.facts['date'])[:10]}"
    data, page = results / f"{stem}.json", results / f"{stem}.md"
    data.write_text(json.dumps(report.to_dict(), indent=2) + "\n")
    page.write_text(markdown(report))
    return data, page


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def markdown(report: Report) -> str:
    """Return the report as a page."""
    facts = report.facts
    title = "# Emulated GPUs: no figure of a real one" if report.emulated else f"# {facts['gpu']}, {facts['date']}"
    lines = [title, ""]
    lines += [f"- {name}: {_said(value)}" for name, value in facts.items()]
    for part in dict.fromkeys(figure.part for figure in report.figures):
        lines += ["", f"## {part}", "", "| figure | measured | goal | |", "|---|---|---|---|"]
        lines += [_row(figure) for figure in report.figures if figure.part == part]
    return "\n".join(lines) + "\n"


def _said(value: Any) -> str:
    return ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else str(value)


def _row(figure: Figure) -> str:
    shown = value_text(figure) if figure.outcome is Outcome.MEASURED else figure.outcome.value
    cells = (figure.name, shown, figure.goal or "-", figure.reason.replace("\n", " "))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def value_text(figure: Figure) -> str:
    """Return the value with four digits and its unit; raise ``NotMeasuredError`` if there is none."""
    if figure.outcome is not Outcome.MEASURED or figure.value is None:
        raise NotMeasuredError(f"{figure.part}, {figure.name}: {figure.reason or 'no value'}")
    return f"{figure.value:.4g} {figure.unit}".strip()


def counts(figures: Iterable[Figure]) -> str:
    """Return ``12 measured, 3 skipped, 0 failed``."""
    found: Sequence[Outcome] = [figure.outcome for figure in figures]
    return ", ".join(f"{found.count(outcome)} {outcome.value}" for outcome in Outcome)
