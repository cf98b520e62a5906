"""The report of measured figures: its JSON and its table. Emulated GPUs never get a stored report."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpupool.bench.figures import Figure, NotMeasuredError, Outcome, value_text


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
