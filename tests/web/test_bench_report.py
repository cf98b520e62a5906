"""The page of benchmark results in a real browser: complete, labelled, and without content of other origins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from browsers import Chromium
from playwright.sync_api import Page, expect

from gpupool.bench.figures import Figure, measured, skipped
from gpupool.bench.machine import describe_machine
from gpupool.bench.report import NVIDIA
from gpupool.bench.results import ResultsFile, read_results
from gpupool.cli.app import run_app

FIGURES = (
    ("batch 1", measured("train", "batch 1: <ResNet-50> & co", 10.0, "images/s", samples=3)),
    ("batch 8", measured("train", "batch 8: ResNet-50", 40.0, "images/s", samples=3)),
    ("2 x 0.5", measured("slices", "2 x 0.5: share error", 1.25, "points", samples=9, goal="<= 2")),
    ("Slurm", skipped("queue", "Slurm", "Slurm is not installed")),
)


def write(path: Path, figures: tuple[tuple[str, Figure], ...], **changes: Any) -> Path:
    pool = {"version": "1", "nodes": [{"name": "n1", "gpus": ["Tesla T4"]}]}
    facts = {"quick": True, "emulated": True, "machine": describe_machine("gpupool bench all"), "pool": pool}
    file = ResultsFile(path, facts | changes)
    for case, figure in figures:
        file.add(case, figure)
    return path


def opened(chromium: Chromium, page_file: Path) -> tuple[Page, list[str]]:
    page = chromium.new_context().new_page()
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.goto(page_file.as_uri())
    return page, requested


def test_report_shows_all_figures_and_their_sources(chromium: Chromium, tmp_path: Path) -> None:
    results, out = write(tmp_path / "r.jsonl", FIGURES), tmp_path / "report.html"
    assert run_app(["bench", "report", str(results), "-o", str(out)]) == 0
    page, requested = opened(chromium, out)
    try:
        expect(page.locator(".emulated")).to_contain_text("no figure of this page describes a real GPU")
        for part in ("train", "slices", "queue"):
            expect(page.locator(f"section#{part} h2")).to_have_text(part)
        train = page.locator("section#train")
        expect(train.locator("svg rect")).to_have_count(2)
        expect(train.locator("table").first).to_contain_text("batch 1: <ResNet-50> & co")
        expect(train).to_contain_text("Published figures")
        expect(train).to_contain_text(NVIDIA)
        expect(page.locator("section#queue")).to_contain_text("Slurm is not installed")
        widths = [train.locator("svg rect").nth(index).bounding_box() for index in (0, 1)]
        assert widths[0] is not None
        assert widths[1] is not None
        assert widths[1]["width"] / widths[0]["width"] == pytest.approx(4, rel=0.05)
        texts = train.locator("svg text").evaluate_all("all => all.map(one => one.getBBox().x)")
        assert min(texts) >= 0  # no label is cut off
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert requested == [out.as_uri()]
    finally:
        chromium.close(page.context)


def test_report_of_real_gpus_has_no_label(chromium: Chromium, tmp_path: Path) -> None:
    results, out = write(tmp_path / "r.jsonl", FIGURES[:1], emulated=False), tmp_path / "report.html"
    run_app(["bench", "report", str(results), "-o", str(out)])
    page, _ = opened(chromium, out)
    try:
        expect(page.locator("section#train")).to_be_visible()
        expect(page.locator(".emulated")).to_have_count(0)
    finally:
        chromium.close(page.context)


def test_comparison_names_differing_conditions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = write(tmp_path / "a.jsonl", FIGURES)
    b = write(tmp_path / "b.jsonl", FIGURES[1:], emulated=False)
    assert run_app(["bench", "compare", str(a), str(b)]) == 0
    told = capsys.readouterr()
    assert "The files differ in emulated GPUs: True and False." in told.err
    assert told.out.startswith("emulated GPUs")


def test_line_that_a_crash_cut_off_is_left_out(tmp_path: Path) -> None:
    file = write(tmp_path / "cut.jsonl", FIGURES)
    file.write_text(file.read_text()[:-20])
    assert [result.figure for result in read_results(file)] == [figure for _, figure in FIGURES[:-1]]
    write(file, FIGURES[-1:])
    assert [result.figure for result in read_results(file)] == [figure for _, figure in FIGURES]
