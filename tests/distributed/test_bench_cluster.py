"""``gpupool bench`` over four nodes with networks of their own: complete figures whose totals add up.

``test_bench_scaling.py`` has ``scaling`` and the jobs of ``tenancy`` on several GPUs.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from machines_harness import Machines
from numpy_only import numpy_only

LIMIT_S = 280.0
pytestmark = pytest.mark.timeout(300)
NODES = ["n1", "n2", "n3", "n4"]
Json = dict[str, Any]


def measure(pool: Machines, benchmark: str, *words: str, python: str | Path = sys.executable) -> list[Json]:
    """Return the figures of a quick run; each is labelled as emulated and names all nodes."""
    file = pool.work / f"{benchmark}-{len(list(pool.work.iterdir()))}.jsonl"
    pool("bench", benchmark, "--quick", "--python", str(python), *words, "-o", str(file), timeout=LIMIT_S)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    names = [line["name"] for line in lines]
    assert len(names) == len(set(names))
    for line in lines:
        assert line["emulated"] is True
        assert sorted(node["name"] for node in line["pool"]["nodes"]) == NODES
        if line["ratio"] is not None:
            baseline = next(each for each in lines if each["name"] == line["baseline"])
            assert line["ratio"] == pytest.approx(line["value"] / baseline["value"])
    return lines


def measured(lines: list[Json]) -> dict[str, Json]:
    """Return the figures by name; all were measured."""
    assert {line["outcome"] for line in lines} == {"measured"}, lines
    return {line["name"]: line for line in lines}


def test_training_is_measured_for_each_batch_size(pool: Machines) -> None:
    lines = measure(pool, "train", python=numpy_only(pool.work))
    measured(lines)
    assert [line["detail"]["batch"] for line in lines] == [1, 8, 32]
    for line in lines:
        assert "NumPy proxy" in line["name"]
        trained = line["detail"]["batch"] * line["detail"]["steps"]
        assert line["value"] == pytest.approx(trained / line["detail"]["train_s"], rel=0.05)


@pytest.mark.needs("native")
def test_shares_of_slices_add_up_to_whole_gpus(pool: Machines) -> None:
    figures = measured(measure(pool, "slices"))
    errors = {name: line for name, line in figures.items() if name.endswith(": share error")}
    assert [line["detail"]["slices"] for line in errors.values()] == [2, 2, 2, 4, 10, 20, 50]
    for line in errors.values():
        detail = line["detail"]
        assert len(detail["shares_percent"]) == len(detail["expected_percent"]) == detail["slices"]
        assert sum(detail["shares_percent"]) == pytest.approx(100 * detail["gpus"], abs=0.5)
        assert sum(detail["expected_percent"]) == pytest.approx(100 * detail["gpus"], abs=0.5)
    for name, line in figures.items():
        if name.endswith(": throughput"):
            assert line["detail"]["samples"] > 0


def test_overhead_of_each_place_is_measured_or_says_why_not(pool: Machines) -> None:
    lines = measure(pool, "overhead", python=numpy_only(pool.work))
    cases = {line["case"]: line["outcome"] for line in lines}
    for batch in (1, 32):
        for place in ("bare", "run", "slice of 1.0", "slice of 0.5"):
            assert cases[f"{place}, batch {batch}"] == "measured"
        for place in ("container", "remote run"):
            assert cases[f"{place}, batch {batch}"] == "skipped"
    assert all(line["reason"] for line in lines if line["outcome"] == "skipped")
    rates = [line for line in lines if line["outcome"] == "measured" and line["unit"] == "images/s"]
    assert Counter(line["detail"]["batch"] for line in rates) == {1: 4, 32: 4}


def test_all_jobs_of_the_queue_end_and_are_counted(pool: Machines) -> None:
    lines = measure(pool, "queue")
    figures = {line["name"]: line for line in lines if line["outcome"] == "measured"}
    assert {line["case"] for line in lines if line["outcome"] == "skipped"} <= {"Slurm"}
    for label, many in (("no GPU", "no GPU"), ("slice of 0.05", "slices of 0.05")):
        ended, started = (figures[f"{label}: submitted until {what}"] for what in ("ended", "started"))
        assert (ended["detail"]["samples"], started["detail"]["samples"]) == (10, 10)
        assert 0 < started["value"] <= ended["value"]
        throughput = figures[f"{many}: throughput"]
        assert (throughput["detail"]["samples"], throughput["unit"]) == (40, "jobs/s")
        assert throughput["value"] <= throughput["detail"]["submitted_per_s"]
    jobs = pool.json("ps", "--all", "-l", "gpupool-bench=queue")["workloads"]
    states = Counter(job["state"] for job in jobs)
    assert states == {"succeeded": len(jobs)}


def test_tenants_of_one_node_add_up(pool: Machines) -> None:
    figures = measured(measure(pool, "tenancy", "--case", "tenant", python=numpy_only(pool.work)))
    sums = [line for name, line in figures.items() if ": sum, " in name]
    assert [len(line["detail"]["jobs_images_per_s"]) for line in sums] == [1, 2, 4]
    for line in sums:
        assert line["value"] == pytest.approx(sum(line["detail"]["jobs_images_per_s"]))
        assert len({node for nodes in line["detail"]["nodes"] for node in nodes}) == 1  # isolated, but on one node
