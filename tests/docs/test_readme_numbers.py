"""The numbers of the README are those of the recorded benchmarks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pages import ROOT

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def results(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))


def row(start: str) -> str:
    return next(line for line in TEXT.splitlines() if line.startswith(f"| {start}"))


def test_readme_has_at_most_150_lines() -> None:
    assert len(TEXT.splitlines()) <= 150


def test_start_of_a_program() -> None:
    found = results("launch")
    shown = row("`gpupool run -g 1 -- true`")
    assert f"| {found['gpupool_run_true_ms']['p50']:.0f} ms |" in shown
    assert f"{found['srun_true_ms']['p50']:.0f} ms for `srun`" in shown
    assert f"{found['python_that_does_nothing_ms']['p50']:.0f} ms for a Python" in shown


def test_jobs_per_second() -> None:
    found = results("throughput")
    shown = row("jobs of `true`")
    assert found["gpus"] == 8
    assert f"{found['real processes, submissions']['jobs_per_s_median']:.0f} submissions/s" in shown
    assert f"{found['real processes, one sweep']['jobs_per_s_median']:.0f}/s in a sweep" in shown


def test_kills() -> None:
    found = results("chaos")
    assert found["kills"] == 1000
    assert not any(found["violations"].values())
    assert "0 jobs lost, 0 GPUs leased twice" in row("1,000 ")


def test_packing() -> None:
    traces = results("scheduler-packing")["results"].values()
    shown = row("GPUs allocated")
    assert f"{len(traces)} traces" in shown
    for which, text in (("ours", "{} to {} % |"), ("published", "FGD: {} to {} %")):
        figures = [trace[which]["at_100"] for trace in traces]
        assert text.format(round(min(figures) + 1e-9, 1), round(max(figures) + 1e-9, 1)) in shown


def test_pages_of_the_comparison_exist() -> None:
    page = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
    named = [word.strip("`") for word in page.split() if word.startswith("`benchmarks/results/")]
    assert len(named) == 4
    assert all((ROOT / Path(name)).is_file() for name in named)
