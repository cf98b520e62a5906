"""Job scripts of Slurm on a real pool."""

from __future__ import annotations

import os
from pathlib import Path

from e2e_pool import RealPool

SCRIPT = """#!/bin/bash
#SBATCH --job-name=Sweep
#SBATCH --gres=gpu:1
#SBATCH --array=1-5:2
#SBATCH --cpus-per-task=1
#SBATCH --output=%x-%a.out
#GPUPOOL --partial 0.1

echo "$SLURM_JOB_ID" > id
echo "task $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT: $*"
[ "$SLURM_JOB_NAME" = Sweep ]
"""


def test_script_runs_its_tasks(pool: RealPool, tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text(SCRIPT)
    pool("submit", "--workdir", str(tmp_path), str(tmp_path / "job.sh"), "an argument")
    assert pool.becomes("sweep", "succeeded")
    found = {path.name: path.read_text() for path in tmp_path.glob("*.out")}
    assert found == {f"Sweep-{task}.out": f"task {task} of 3: an argument\n" for task in (1, 3, 5)}
    assert (tmp_path / "id").read_text().strip() == pool.json("describe", "sweep")["id"]


def test_equal_names_and_singleton(pool: RealPool, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    (tmp_path / "job.sh").write_text(f"#!/bin/sh\n#SBATCH -J one -d singleton\nread line < {gate}\n")
    names = [pool.text("submit", str(tmp_path / "job.sh")).split()[0] for _ in range(2)]
    assert names[0] == "one"
    assert names[1].startswith("one-")
    assert pool.becomes(names[0], "running")
    assert pool.state_of(names[1]) == "queued"
    assert names[0] in pool.text("why", names[1])
    gate.write_text("go\n")
    assert pool.becomes(names[0], "succeeded")
    gate.write_text("go\n")
    assert pool.becomes(names[1], "succeeded")
