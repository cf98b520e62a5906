"""The processes of a real pool come before those of its jobs, and a job cannot take the machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from e2e_pool import RealPool, eventually, folder_for_pool, fresh_pool

from gpupool.node.host import cgroups
from gpupool.node.host.priority import JOB_OOM_SCORE, POOL_NICE, POOL_OOM_SCORE, oom_score

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="only root may raise processes")]

LIVES = "echo $$ > pid; sleep 600"
BOMB = """
import os, time
try:
    while True:
        if os.fork() == 0:
            time.sleep(600)
            os._exit(0)
except OSError:
    open('full', 'w').close()
    time.sleep(20)
    raise SystemExit(9)
"""


def lowest_score() -> int:
    """Return the score that a process of root gets here; a container may forbid lowering it."""
    lower = "import os; os.write(os.open('/proc/self/oom_score_adj', os.O_WRONLY), b'-5')"
    allowed = subprocess.run([sys.executable, "-c", lower], check=False, capture_output=True).returncode == 0
    return POOL_OOM_SCORE if allowed else 0


def priority_of(pid: int) -> tuple[int, int]:
    return os.getpriority(os.PRIO_PROCESS, pid), oom_score(Path(f"/proc/{pid}"))


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_pool_processes_have_raised_priority_and_jobs_do_not(own_pool: RealPool) -> None:
    own_pool("submit", "lives", "-g", "0.5", "--", "sh", "-c", LIVES)
    assert eventually(lambda: (own_pool.work / "pid").exists() and (own_pool.work / "pid").read_text().strip())
    job = int((own_pool.work / "pid").read_text())
    assert eventually(lambda: children(job)), "its sleep"
    pids = own_pool.pids()
    raised = (POOL_NICE, lowest_score())
    kinds = {
        "supervisor": parent(pids["agent"]),
        **pids,
        **{f"helper {pid} of the agent": pid for pid in children(pids["agent"])},
        "shepherd": parent(job),
    }
    assert {kind: priority_of(pid) for kind, pid in kinds.items()} == dict.fromkeys(kinds, raised)
    assert priority_of(job) == (0, JOB_OOM_SCORE)
    assert [priority_of(pid) for pid in children(job)] == [(0, JOB_OOM_SCORE)]
    said = own_pool.text("doctor", "--emulate", ok=False)
    assert f"niceness {POOL_NICE} and oom_score_adj {lowest_score()}" in said


def limits_processes() -> bool:
    groups = cgroups.make("probe", None, None)
    cgroups.remove(groups.paths)
    return groups.user_processes is None


@pytest.mark.skipif(not limits_processes(), reason="needs control groups that limit processes")
def test_fork_bomb_is_contained_and_pool_answers() -> None:
    with folder_for_pool() as folder:
        pool = RealPool(folder, "2xT4")
        pool.env["GPUPOOL_JOB_PROCESSES"] = "300"
        try:
            pool.up()
            pool("submit", "bomb", "-g", "0.5", "--restart", "never", "--", sys.executable, "-c", BOMB)
            assert eventually((pool.work / "full").exists)
            assert "bomb" in pool.text("ps")
            assert pool("run", "-g", "0.5", "--", "sh", "-c", "(exit 0) & wait").returncode == 0
            assert pool.becomes("bomb", "failed")
            assert "Reached its limit of 300 processes" in pool.text("describe", "bomb")
        finally:
            pool("down", "--stop-jobs", ok=False)


def test_chosen_niceness_of_pool_is_kept() -> None:
    with fresh_pool("1xT4", started=False) as pool:
        more = 3 - os.getpriority(os.PRIO_PROCESS, 0)  # nice(1) adds to what the tests run with
        done = subprocess.run(
            ["nice", "-n", str(more), "gpupool", "up", "--background", "--emulate", "1xT4"],
            env=pool.env,
            cwd=pool.work,
            check=False,
            capture_output=True,
        )
        assert done.returncode == 0, done.stderr
        assert {os.getpriority(os.PRIO_PROCESS, pid) for pid in pool.pids().values()} == {3}


@pytest.mark.skipif(
    not Path("/sys/fs/cgroup/cpu/cgroup.procs").exists(), reason="needs a separate hierarchy for processors"
)
def test_pool_and_jobs_have_separate_cpu_groups(own_pool: RealPool) -> None:
    own_pool("submit", "lives", "-g", "0.5", "--", "sh", "-c", LIVES)
    assert eventually(lambda: (own_pool.work / "pid").exists() and (own_pool.work / "pid").read_text().strip())
    job = int((own_pool.work / "pid").read_text())

    def group(pid: int) -> str:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        return next(line.rpartition(":")[2] for line in lines if ":cpu:" in line or ":cpu,cpuacct:" in line)

    assert {group(pid) for pid in (*own_pool.pids().values(), parent(job))} == {"/gpupool-pool"}
    assert group(job) == "/gpupool"
