"""Unmodified programs of torch, Open MPI and TensorFlow over four nodes."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from machines_harness import Machines

EXAMPLES = Path(__file__).parents[2] / "examples" / "distributed"
PROGRAMS = Path(__file__).parent / "programs"
PATIENCE = ("--timeout", "250s")
pytestmark = pytest.mark.timeout(300)  # imports of torch and TensorFlow take long on a busy machine
Needs = Callable[[str], None]


def submit(pool: Machines, name: str, *words: str, program: Path) -> None:
    quiet = ("--env", "OMP_NUM_THREADS=1", "--env", "TF_CPP_MIN_LOG_LEVEL=3")
    arguments = [str(EXAMPLES / "torch_ddp.py")] if program.parent != EXAMPLES else []
    pool("submit", name, "--grace", "2s", *quiet, *words, "--", sys.executable, str(program), *arguments)


def numbers(pattern: str, text: str) -> list[float]:
    found = re.search(pattern, text)
    assert found, text
    return [float(number) for number in found.groups()]


@pytest.mark.needs("torch")
def test_torch_resumes_from_checkpoint_with_equal_loss(pool: Machines) -> None:
    four_nodes = ("--workers", "4", "--gpus-per-worker", "1", "--env", f"CHECKPOINT={pool.work}/ddp.pt")
    submit(pool, "ddp", "--framework", "torch", *four_nodes, program=PROGRAMS / "ddp_that_dies_once.py")
    pool("wait", "ddp", *PATIENCE, timeout=260)
    detail = pool.get("workloads/ddp")
    assert {row["node"] for row in detail["replicas"]} == {"n1", "n2", "n3", "n4"}
    assert [row["rank"] for row in detail["replicas"]] == [0, 1, 2, 3]
    assert detail["exit_status"] == 0
    # A thread of gloo aborts a rank that ends before the thread has freed the last reduced tensor: torch keeps the
    # thread after ``destroy_process_group`` if a DDP model exists. The pool runs such a gang again like any other.
    ends = re.findall(r"RETRY .*: (killed by signal \d+) \(SIG[A-Z]+\); will be run again", pool.text("events", "ddp"))
    assert ends == ["killed by signal 9", *["killed by signal 6"] * (len(ends) - 1)]
    assert sum(row["failures"] for row in detail["replicas"]) == len(ends), "one of the gang, not one of each rank"
    assert detail["gang"]["round"] == 1 + len(ends)
    second = pool.text("logs", "ddp", "--rank", "0", "--attempt", "2")
    assert re.search(r"rank 0 of 4 continues from step [36]", second), second
    told = pool.text("logs", "ddp", "--rank", "0")
    together, alone = numbers(r"loss ([0-9.]+) after 12 steps on 4 ranks\nalone ([0-9.]+)", told)
    assert abs(together - alone) < 1e-9


@pytest.mark.needs("mpirun", "mpi4py")
def test_mpi_collectives_equal_numpy(pool: Machines) -> None:
    submit(pool, "mpi", "--workers", "4", "--framework", "mpi", program=EXAMPLES / "mpi_collectives.py")
    pool("wait", "mpi", *PATIENCE, timeout=260)
    told = pool.text("logs", "mpi", "--role", "launcher")
    for rank in range(4):
        found = re.search(rf"rank {rank} of 4 on \S+: allreduce True, allgather True, broadcast True", told)
        assert found, told
    workers = [row for row in pool.get("workloads/mpi")["replicas"] if row["role"] == "worker"]
    assert {row["node"] for row in workers} == {"n1", "n2", "n3", "n4"}
    assert {row["state"] for row in workers} == {"succeeded"}


@pytest.mark.needs("tensorflow")
def test_tensorflow_trains_with_a_parameter_server(pool: Machines) -> None:
    roles = ("--framework", "tf", "--chief", "--ps", "1", "--workers", "2", "--gpus-per-worker", "1")
    submit(pool, "ps", *roles, "--env", "STEPS=20", program=EXAMPLES / "tf_parameter_server.py")
    pool("wait", "ps", *PATIENCE, timeout=260)
    detail = pool.get("workloads/ps")
    assert [row["role"] for row in detail["replicas"]] == ["chief", "ps", "worker", "worker"]
    assert len({row["node"] for row in detail["replicas"] if row["role"] != "ps"}) == 3
    served, alone = numbers(r"loss ([0-9.]+), without servers ([0-9.]+)", pool.text("logs", "ps", "--role", "chief"))
    assert abs(served - alone) < 1e-5
