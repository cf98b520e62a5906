"""``gpupool bench`` on emulated GPUs: complete and consistent results, Ctrl-C, and resume."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from e2e_pool import RealPool, eventually
from numpy_only import numpy_only

from gpupool.node.host.native import missing

needs_driver = pytest.mark.skipif(missing() is not None, reason="the native parts are not built")
LONG_S = 300.0


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def bench(pool: RealPool, *words: str, **options: Any) -> tuple[str, str]:
    done = pool("bench", *words, timeout=LONG_S, **options)
    return done.stdout.decode(), done.stderr.decode()


def assert_labelled(lines: list[dict[str, Any]]) -> None:
    for line in lines:
        assert line["emulated"] is True
        assert line["machine"]["versions"]["gpupool"]
        assert line["machine"]["command"].startswith("gpupool bench")
        assert line["measured_at"]
        assert [node["gpus"] for node in line["pool"]["nodes"]] == [["Tesla T4", "Tesla T4"]]


@needs_driver
def test_slices_divide_a_gpu_and_shares_add_up(pool: RealPool) -> None:
    file = pool.work / "slices.jsonl"
    table, errors = bench(pool, "slices", "--quick", "--python", sys.executable, "-o", str(file))
    assert table.startswith("emulated GPUs")
    assert f"results: {file}" in errors
    lines = lines_of(file)
    assert_labelled(lines)
    assert {line["outcome"] for line in lines} == {"measured"}
    by_name = {line["name"]: line for line in lines}
    whole = by_name["whole GPU: throughput"]
    for name in ("2 x 0.5", "0.1 + 0.9", "20 x 0.05", "50 x 0.02"):
        throughput, error = by_name[f"{name}: throughput"], by_name[f"{name}: share error"]
        assert throughput["baseline"] == "whole GPU: throughput"
        assert throughput["ratio"] == pytest.approx(throughput["value"] / whole["value"])
        measured, expected = error["detail"]["shares_percent"], error["detail"]["expected_percent"]
        assert len(measured) == len(expected) == error["detail"]["slices"]
        assert sum(measured) == pytest.approx(100.0 * error["detail"]["gpus"], abs=0.5)
        assert sum(expected) == pytest.approx(100.0 * error["detail"]["gpus"], abs=0.5)
        assert error["value"] == pytest.approx(
            max(abs(one - other) for one, other in zip(measured, expected, strict=True)), abs=0.02
        )
    assert len(by_name["50 x 0.02: share error"]["detail"]["shares_percent"]) == 50
    assert pool.all_free()


def test_queue_is_compared_with_direct_starts(pool: RealPool) -> None:
    file = pool.work / "queue.jsonl"
    page = pool.work / "queue.html"
    printed, _ = bench(pool, "queue", "--quick", "--json", "-o", str(file), "--html", str(page))
    lines = lines_of(file)
    assert [json.loads(line) for line in printed.splitlines()] == lines
    assert_labelled(lines)
    by_name = {line["name"]: line for line in lines}
    assert by_name["direct: latency"]["value"] > 0
    assert "direct: latency" in page.read_text()
    latency = by_name["slice of 0.05: submitted until ended"]
    assert latency["ratio"] == pytest.approx(latency["value"] / by_name["direct: latency"]["value"])
    assert by_name["slices of 0.05: throughput"]["detail"]["samples"] == 40
    assert by_name["slice of 0.05: submitted until started"]["value"] <= latency["value"]
    assert pool.all_free()


@needs_driver
def test_interrupted_run_keeps_figures_and_is_resumed(pool: RealPool) -> None:
    file = pool.work / "interrupted.jsonl"
    words = ("bench", "slices", "--quick", "--case", "0.5", "--python", sys.executable)
    process = pool.begin(*words, "-o", str(file))
    assert eventually(lambda: file.exists() and file.read_text().splitlines())
    process.send_signal(signal.SIGINT)
    table, errors = process.communicate(timeout=LONG_S)
    assert process.returncode == 130, errors
    assert b"Traceback" not in errors
    assert f"--case 0.5 --resume {file}" in errors.decode()
    kept = lines_of(file)
    cases = {line["case"] for line in kept}
    assert "whole GPU" in cases  # it is the baseline
    assert "2 x 0.5" not in cases
    assert b"whole GPU" in table
    assert pool.all_free()

    bench(pool, *words[1:], "--resume", str(file))
    lines = lines_of(file)
    assert lines[: len(kept)] == kept  # nothing was measured twice
    names = [line["name"] for line in lines]
    assert len(names) == len(set(names))
    assert "2 x 0.5: share error" in names


def test_resume_refuses_other_options(pool: RealPool) -> None:
    file = pool.work / "other.jsonl"
    bench(pool, "queue", "--quick", "-o", str(file))
    done = pool("bench", "queue", "--resume", str(file), ok=False)
    assert done.returncode != 0
    assert b"quick" in done.stderr
    assert b"exists already" in pool("bench", "queue", "-o", str(file), ok=False).stderr


def test_training_by_batch_size_names_its_program(pool: RealPool) -> None:
    file = pool.work / "train.jsonl"
    python = numpy_only(pool.folder)
    table, _ = bench(pool, "train", "--quick", "--python", str(python), "-o", str(file))
    lines = lines_of(file)
    assert_labelled(lines)
    assert [line["case"] for line in lines] == ["batch 1", "batch 8", "batch 32"]
    for line in lines:
        assert line["outcome"] == "measured"
        assert "NumPy proxy" in line["name"]
        assert "not ResNet-50" in line["name"]
        assert line["detail"]["proxy"] is True
        assert line["value"] > 0
    for line in lines[1:]:
        assert line["ratio"] == pytest.approx(line["value"] / lines[0]["value"])
    assert "NumPy proxy" in table


def test_overhead_is_measured_against_a_run_without_the_pool(pool: RealPool) -> None:
    file = pool.work / "overhead.jsonl"
    bench(pool, "overhead", "--quick", "--python", str(numpy_only(pool.folder)), "-o", str(file))
    lines = lines_of(file)
    assert_labelled(lines)
    by_case: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        by_case.setdefault(line["case"], []).append(line)
    for batch in (1, 32):
        bare = by_case[f"bare, batch {batch}"]
        for place in ("run", "slice of 1.0", "slice of 0.5"):
            throughput, startup = by_case[f"{place}, batch {batch}"]
            assert throughput["ratio"] == pytest.approx(throughput["value"] / bare[0]["value"])
            assert startup["ratio"] == pytest.approx(startup["value"] / bare[1]["value"])
        assert by_case[f"container, batch {batch}"][0]["outcome"] == "skipped"
        assert "gpupool login" in by_case[f"remote run, batch {batch}"][0]["reason"]


def test_training_without_numpy_is_skipped_with_the_reason(pool: RealPool) -> None:
    file = pool.work / "nothing.jsonl"
    python = pool.work / "isolated"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    bench(pool, "train", "--quick", "--python", str(python), "-o", str(file))
    assert {line["outcome"] for line in lines_of(file)} == {"skipped"}
    assert "has none of: torch, tensorflow, numpy" in lines_of(file)[0]["reason"]


def test_tenants_of_one_gpu_add_up(pool: RealPool) -> None:
    file = pool.work / "tenants.jsonl"
    words = ("--quick", "--case", "tenant", "--python", str(numpy_only(pool.folder)))
    bench(pool, "tenancy", *words, "-o", str(file))
    lines = lines_of(file)
    assert_labelled(lines)
    assert {line["outcome"] for line in lines} == {"measured"}
    sums = [line for line in lines if ": sum, " in line["name"]]
    assert [len(line["detail"]["jobs_images_per_s"]) for line in sums] == [1, 2, 4]
    for line in sums:
        assert line["value"] == pytest.approx(sum(line["detail"]["jobs_images_per_s"]))
        assert 0 <= line["detail"]["overlap"] <= 1
    assert pool.all_free()


def test_two_results_are_compared(pool: RealPool) -> None:
    first, second = pool.work / "first.jsonl", pool.work / "second.jsonl"
    for file in (first, second):
        bench(pool, "queue", "--quick", "-o", str(file))
    told = pool.json("bench", "compare", str(first), str(second))
    assert told["differences"] == []
    a, b = ({line["name"]: line["value"] for line in lines_of(file)} for file in (first, second))
    assert {figure["name"] for figure in told["figures"]} == set(a)
    for figure in told["figures"]:
        if figure["a"] is not None:
            assert (figure["a"], figure["b"]) == (a[figure["name"]], b[figure["name"]])
            assert figure["ratio"] == pytest.approx(figure["b"] / figure["a"])
    text = pool.text("bench", "compare", str(first), str(second))
    assert text.startswith("emulated GPUs")
    assert "B / A" in text
