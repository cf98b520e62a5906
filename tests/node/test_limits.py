"""Limits of host memory and CPUs: enforced by control groups, or reported as not enforced."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
from node_harness import AS_ROOT, Node, spec

from gpupool.node.host import cgroups

HOG = "x = bytearray(400 << 20); print(len(x))"


def writable(controller: str) -> bool:
    groups = cgroups.make("probe", 1.0 if controller == "cpu" else None, 64 if controller == "memory" else None)
    cgroups.remove(groups.paths)
    return not groups.notes


def test_memory_limit_is_enforced_or_reported(node: Node) -> None:
    wanted = spec(sys.executable, "-c", HOG, memory_mib=100)
    report = node.run_to_end(wanted)
    status = node.status(wanted.key)
    assert status is not None
    if AS_ROOT and writable("memory"):
        assert report.signal == signal.SIGKILL
        assert "100 MiB" in report.message
        assert status.notes == ()
    else:
        assert report.exit_code == 0
        assert status.notes == ("memory limit not enforced: no writable cgroup",)


def test_program_within_limits_runs_and_its_groups_are_removed(node: Node) -> None:
    wanted = spec("cat /proc/self/cgroup", memory_mib=200, cpus=0.5)
    assert node.run_to_end(wanted).exit_code == 0
    if AS_ROOT and writable("memory"):
        assert wanted.key.encode() in node.log(wanted.key)
    assert not list(Path("/sys/fs/cgroup").glob(f"**/{wanted.key}"))


def test_missing_control_groups_are_noted(tmp_path: Path) -> None:
    groups = cgroups.make("k", 2.0, 512, root=tmp_path)
    assert groups.paths == ()
    assert groups.notes == [
        "cpu limit not enforced: no writable cgroup",
        "memory limit not enforced: no writable cgroup",
    ]


@pytest.fixture
def hierarchy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that looks like the control groups of a machine to root."""
    monkeypatch.setattr("os.geteuid", lambda: 0)
    return tmp_path


def test_unified_hierarchy_limits_are_written(hierarchy: Path) -> None:
    (hierarchy / "cgroup.procs").touch()
    (hierarchy / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    groups = cgroups.make("k", 1.5, 512, root=hierarchy)
    folder = hierarchy / cgroups.BASE / "k"
    assert groups.paths == (str(folder),)
    assert groups.notes == []
    assert (folder / "cpu.max").read_text() == "150000 100000"
    assert (folder / "memory.max").read_text() == str(512 << 20)
    assert (hierarchy / cgroups.BASE / "cgroup.subtree_control").read_text() == "+pids"  # the last one


def test_separate_hierarchies_are_used_if_unified_has_no_controllers(hierarchy: Path) -> None:
    for name in ("cpu", "memory", "unified"):
        (hierarchy / name).mkdir()
        (hierarchy / name / "cgroup.procs").touch()
    (hierarchy / "unified" / "cgroup.controllers").write_text("hugetlb\n")
    groups = cgroups.make("k", 0.25, 64, root=hierarchy)
    own, cpu, memory = (hierarchy / c / cgroups.BASE / "k" for c in ("unified", "cpu", "memory"))
    assert groups.paths == (str(own), str(cpu), str(memory))
    assert groups.entries == (f"{cpu}/cgroup.procs", f"{memory}/cgroup.procs")
    assert (cpu / "cpu.cfs_quota_us").read_text() == "25000"
    assert (memory / "memory.limit_in_bytes").read_text() == str(64 << 20)


def test_out_of_memory_kills_are_read_in_both_formats(tmp_path: Path) -> None:
    assert not cgroups.out_of_memory((str(tmp_path),))
    (tmp_path / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert cgroups.out_of_memory((str(tmp_path),))
    (tmp_path / "memory.events").write_text("low 0\noom 1\noom_kill 0\n")
    assert not cgroups.out_of_memory((str(tmp_path),))
