"""``gpupool bench scaling`` and ``tenancy`` over four nodes: complete figures, ranks on all nodes, sums that add up."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from machines_harness import Machines

LIMIT_S = 280.0
pytestmark = pytest.mark.timeout(300)  # imports of torch and TensorFlow take long on a busy machine


def measure(pool: Machines, benchmark: str, case: str) -> dict[str, dict[str, Any]]:
    """Return the figures of the cases whose name contains a text, by name."""
    file = pool.work / f"{benchmark}-{case}.jsonl".replace(" ", "-")
    words = ("--quick", "--case", case, "--python", sys.executable, "-o", str(file))
    pool("bench", benchmark, *words, timeout=LIMIT_S)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert {line["outcome"] for line in lines} == {"measured"}, lines
    assert all(line["emulated"] for line in lines)
    return {line["name"]: line for line in lines}


def assert_weak_scaling(figures: dict[str, dict[str, Any]], launcher: str, program: str) -> None:
    one = figures[f"{launcher}, weak, 1 rank: {program}"]
    four = figures[f"{launcher}, weak, 4 ranks: {program}"]
    assert one["detail"]["world"] == 1
    assert four["detail"]["world"] == 4
    assert four["detail"]["nodes"] == ["n1", "n2", "n3", "n4"]
    assert four["detail"]["batch"] == one["detail"]["batch"]
    assert four["ratio"] == pytest.approx(four["value"] / one["value"])
    efficiency = figures[f"{launcher}, weak, 4 ranks: efficiency"]
    assert efficiency["value"] == pytest.approx(100 * four["ratio"] / 4)


@pytest.mark.needs("mpirun", "mpi4py")
def test_mpi_scales_over_four_nodes_with_a_proxy(pool: Machines) -> None:
    program = "NumPy proxy (48 px), not ResNet-50"
    figures = measure(pool, "scaling", "MPI")
    assert_weak_scaling(figures, "MPI", program)
    assert 0 < figures["MPI, weak, 4 ranks: all-reduce share"]["value"] < 100
    strong = [figures[f"MPI, strong, {ranks}: {program}"]["detail"] for ranks in ("1 rank", "4 ranks")]
    assert strong[0]["batch"] * 1 == strong[1]["batch"] * 4


@pytest.mark.needs("torch")
def test_torchrun_scales_over_four_nodes(pool: Machines) -> None:
    figures = measure(pool, "scaling", "torchrun, weak")
    assert_weak_scaling(figures, "torchrun", "ResNet-50 (48 px), PyTorch on the CPU")
    assert 0 < figures["torchrun, weak, 4 ranks: all-reduce share"]["value"] < 100


@pytest.mark.needs("torch")
def test_two_jobs_share_the_nodes_and_their_rates_add_up(pool: Machines) -> None:
    figures = measure(pool, "tenancy", "GPUs")
    program = "ResNet-50 (48 px), PyTorch on the CPU"
    one = figures[f"one job on all GPUs: sum, {program}"]
    two = figures[f"two jobs on half of the GPUs each: sum, {program}"]
    assert one["detail"]["nodes"] == [["n1", "n2", "n3", "n4"]]
    first, second = two["detail"]["nodes"]
    assert sorted([*first, *second]) == ["n1", "n2", "n3", "n4"]
    assert two["value"] == pytest.approx(sum(two["detail"]["jobs_images_per_s"]))
    assert two["ratio"] == pytest.approx(two["value"] / one["value"])
    assert 0 < figures["two jobs on half of the GPUs each: slowest / fastest"]["value"] <= 1
