"""Priority of the pool over its jobs: niceness and memory scores, and limits of a job on its machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from node_harness import AS_ROOT, Node, spec

from gpupool.node.host import cgroups
from gpupool.node.host.priority import (
    JOB_OOM_SCORE,
    POOL_NICE,
    POOL_OOM_SCORE,
    make_ordinary,
    oom_score,
    protect,
)

SHOW = "import os; print(os.getpriority(0, 0), open('/proc/self/oom_score_adj').read().strip())"
BOMB = """
import os, time
made = 0
try:
    for _ in range(500):
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        made += 1
except OSError as error:
    print('refused after', made, error.errno)
    raise SystemExit(3)
"""


def in_a_process(work: str) -> str:
    """Return the output of a fresh Python process after some work; as root it starts with niceness 0."""
    begin = "import os; os.setpriority(os.PRIO_PROCESS, 0, 0)\n" if AS_ROOT else ""
    done = subprocess.run([sys.executable, "-c", begin + work], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def may_protect_memory() -> bool:
    """Return whether this account may lower a score; a container may forbid it to root."""
    lower = "import os; os.write(os.open('/proc/self/oom_score_adj', os.O_WRONLY), b'-5')"
    return subprocess.run([sys.executable, "-c", lower], check=False, capture_output=True).returncode == 0


@pytest.mark.root
@pytest.mark.skipif(not AS_ROOT, reason="only root may raise a process")
def test_pool_of_root_raises_its_priority_as_far_as_allowed() -> None:
    score = POOL_OOM_SCORE if may_protect_memory() else 0
    raised = in_a_process(f"from gpupool.node.host.priority import protect; protect(); {SHOW}")
    assert raised == f"{POOL_NICE} {score}"


@pytest.mark.root
@pytest.mark.skipif(not AS_ROOT, reason="only root may raise a process")
def test_child_of_raised_process_has_ordinary_priority() -> None:
    work = f"from gpupool.node.host.priority import protect, make_ordinary; protect(); make_ordinary(); {SHOW}"
    assert in_a_process(work) == f"0 {JOB_OOM_SCORE}"


def test_chosen_niceness_and_higher_score_are_kept() -> None:
    chosen = max(7, os.getpriority(os.PRIO_PROCESS, 0))  # only root may lower it
    work = f"""
import os
from gpupool.node.host.priority import protect, make_ordinary
os.setpriority(os.PRIO_PROCESS, 0, {chosen})
open('/proc/self/oom_score_adj', 'w').write('{JOB_OOM_SCORE + 300}')
protect()
make_ordinary()
{SHOW}
"""
    nice, score = in_a_process(work).split()
    assert nice == str(chosen)
    assert int(score) in {JOB_OOM_SCORE + 300, JOB_OOM_SCORE}  # lowered by one that may, raised again to a job's


def test_protection_sets_exactly_the_documented_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs on machines that allow it; not all test machines do."""
    asked: list[int] = []
    monkeypatch.setattr(os, "getpriority", lambda _which, _who: asked[-1] if asked else 0)
    monkeypatch.setattr(os, "setpriority", lambda _which, _who, value: asked.append(value))
    for name in ("oom_score_adj", "autogroup"):
        (tmp_path / name).write_text("0  ")
    protect(tmp_path)
    assert asked == [POOL_NICE]
    assert oom_score(tmp_path) == POOL_OOM_SCORE
    assert (tmp_path / "autogroup").read_text().strip() == str(POOL_NICE)


def test_process_priority_can_be_reset_from_outside() -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        make_ordinary(other.pid)
        assert oom_score(Path(f"/proc/{other.pid}")) == JOB_OOM_SCORE
        other.kill()


def test_job_has_no_raised_priority(node: Node) -> None:
    wanted = spec(sys.executable, "-c", SHOW)
    assert node.run_to_end(wanted).exit_code == 0
    nice = max(0, os.getpriority(os.PRIO_PROCESS, 0))  # the node runs in this process, which may be less than ordinary
    assert node.log(wanted.key).decode().split() == [str(nice), str(JOB_OOM_SCORE)]


# -- processes of a job ------------------------------------------------------------------------------------------------


def limits_processes() -> bool:
    groups = cgroups.make("probe", None, None)
    cgroups.remove(groups.paths)
    return groups.user_processes is None


@pytest.mark.root
@pytest.mark.skipif(not (AS_ROOT and limits_processes()), reason="needs control groups that limit processes")
def test_fork_bomb_stops_at_its_limit_and_node_continues(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cgroups.PROCESSES_VARIABLE, "40")
    node.down()
    node.up()
    bomb, other = spec(sys.executable, "-c", BOMB, grace_s=0.0), spec("echo well")
    report = node.run_to_end(bomb)
    assert report.exit_code == 3
    assert b"refused after" in node.log(bomb.key)
    assert report.message == "Reached its limit of 40 processes."
    assert node.run_to_end(other).exit_code == 0
    assert not list(Path("/sys/fs/cgroup").glob(f"*/gpupool/{bomb.key}"))


def test_user_process_limit_applies_without_control_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cgroups.PROCESSES_VARIABLE, "123")
    groups = cgroups.make("k", None, None, root=tmp_path)
    assert groups.user_processes == 123
    assert groups.notes == []


def test_default_process_limit_is_a_share_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    most = int(Path("/proc/sys/kernel/pid_max").read_text())
    monkeypatch.delenv(cgroups.PROCESSES_VARIABLE, raising=False)
    assert 0 < cgroups.process_limit() <= min(most // 4, cgroups.MAX_PROCESSES)
    monkeypatch.setenv(cgroups.PROCESSES_VARIABLE, "77")
    assert cgroups.process_limit() == 77
    monkeypatch.setenv(cgroups.PROCESSES_VARIABLE, "many")
    assert cgroups.process_limit() <= most // 4


# -- groups ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("line", "group"), [("8:pids:/a/b", "a/b"), ("3:cpu,pids:/", ""), ("0::/a", None)])
def test_moves_are_prepared_by_a_move_to_the_own_group(tmp_path: Path, line: str, group: str | None) -> None:
    own = tmp_path / "own"
    own.write_text(f"9:memory:/m\n{line}\n", encoding="utf-8")
    for folder in ("pids/a/b", "memory/m"):
        (tmp_path / folder).mkdir(parents=True)
    cgroups.prepare_moves(tmp_path, own)
    written = {path.parent.relative_to(tmp_path / "pids") for path in tmp_path.rglob("cgroup.procs")}
    assert written == (set() if group is None else {Path(group)})
    cgroups.prepare_moves(tmp_path / "nothing", own)


@pytest.fixture
def unified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that looks like the unified hierarchy of a machine to root."""
    monkeypatch.setattr("os.geteuid", lambda: 0)
    root = tmp_path / "groups"
    root.mkdir()
    (root / "cgroup.procs").touch()
    (root / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    return root


def test_jobs_have_one_group_next_to_the_pool_group(unified: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("0::/user.slice/session-3.scope\n")
    cgroups.prepare(unified)
    cgroups.enter_pool_group(unified, own)
    assert int((unified / cgroups.BASE / "pids.max").read_text()) > cgroups.process_limit()
    pool = unified / cgroups.POOL_GROUP
    assert (pool / "cpu.weight").read_text() == "1000"
    assert int((pool / "memory.min").read_text()) == 128 << 20
    assert int((pool / "memory.low").read_text()) == 512 << 20
    assert (pool / "cgroup.procs").read_text() == "0"
    groups = cgroups.make("k", None, None, root=unified)
    assert groups.own is not None
    assert groups.own.parent == unified / cgroups.BASE
    assert (groups.own / "pids.max").read_text() == str(cgroups.process_limit())


@pytest.mark.parametrize(
    "group",
    [
        "/system.slice/gpupool.service",
        "/user.slice/user-0.slice/user@0.service/app.slice",
        "/docker/5ad",
        "/kubepods/a",
    ],
)
def test_pool_stays_in_its_given_group(unified: Path, tmp_path: Path, group: str) -> None:
    own = tmp_path / "own"
    own.write_text(f"0::{group}\n")
    cgroups.enter_pool_group(unified, own)
    assert not (unified / cgroups.POOL_GROUP).exists()


def test_jobs_share_cpus_as_one_group_in_separate_hierarchies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    for name in ("cpu", "pids"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.procs").touch()
    own = tmp_path / "own"
    own.write_text("9:name=systemd:/\n1:cpu,cpuacct:/\n0::/\n")
    cgroups.prepare(tmp_path)
    cgroups.enter_pool_group(tmp_path, own)
    jobs, pool = (int((tmp_path / "cpu" / name / "cpu.shares").read_text()) for name in ("gpupool", "gpupool-pool"))
    assert 1024 * (os.cpu_count() or 1) < jobs <= pool
    assert (tmp_path / "cpu" / "gpupool-pool" / "cgroup.procs").read_text() == "0"
    own.write_text("1:cpu,cpuacct:/docker/5ad\n")
    assert cgroups.make("k", None, None, root=tmp_path, own=own).common is None  # no process leaves a container's group
    own.write_text("1:cpu,cpuacct:/gpupool-pool\n")
    groups = cgroups.make("k", None, None, root=tmp_path, own=own)
    assert groups.entries == (
        f"{tmp_path}/pids/{cgroups.BASE}/k/cgroup.procs",
        f"{tmp_path}/cpu/{cgroups.BASE}/cgroup.procs",
    )
    assert str(tmp_path / "cpu" / cgroups.BASE) not in groups.paths  # what is killed with the program
