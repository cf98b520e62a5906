"""The folder of a run: each figure as a JSON line, and the report as a table and as an HTML page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpupool.bench.figures import CaseOutcome, Figure, value_text
from gpupool.bench.report import page
from gpupool.bench.results import Result

FIGURES = "figures.jsonl"
EMULATED = "Emulated GPUs: no figure of a real one"


def folder_name(facts: dict[str, Any]) -> str:
    """Return the name of the folder of a run: ``gpu-<model>-<date>``."""
    (model,) = facts["pool"]["nodes"][0]["gpus"]
    slug = re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")
    return f"gpu-{slug}-{facts['machine']['date'][:10]}"


def write_report(results: Sequence[Result], folder: Path, titles: dict[str, str]) -> list[Path]:
    """Write report.md and report.html; ``titles`` explain the parts."""
    table, html = folder / "report.md", folder / "report.html"
    table.write_text(markdown(results, titles), encoding="utf-8")
    html.write_text(page(results), encoding="utf-8")
    return [table, html]


def markdown(results: Sequence[Result], titles: dict[str, str]) -> str:
    """Return the figures as a page with a table for each part."""
    facts = results[0].facts
    node, machine = facts["pool"]["nodes"][0], facts["machine"]
    conditions = {
        "driver": f"{node['driver']}, CUDA {node['cuda']}",
        "memory": f"{node['memory_mib']} MiB",
        "machine": f"{machine['cpu']}, {machine['cores']} cores, kernel {machine['kernel']}",
        "versions": ", ".join(f"{name} {version}" for name, version in machine["versions"].items()),
        "commit": machine["commit"],
        "command": machine["command"],
    }
    title = EMULATED if results[0].emulated else f"{', '.join(node['gpus'])}, {machine['date']}"
    lines = [f"# {title}", "", *(f"- {name}: {value}" for name, value in conditions.items())]
    for part in dict.fromkeys(result.figure.part for result in results):
        lines += ["", f"## {titles.get(part, part)}", "", "| figure | measured | goal | |", "|---|---|---|---|"]
        lines += [_row(result.figure) for result in results if result.figure.part == part]
    return "\n".join(lines) + "\n"


def _row(figure: Figure) -> str:
    shown = value_text(figure) if figure.outcome is CaseOutcome.MEASURED else figure.outcome.value
    cells = (figure.name, shown, figure.goal or "-", figure.reason.replace("\n", " "))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
