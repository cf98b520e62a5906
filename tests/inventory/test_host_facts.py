import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.domain.ids import check_name
from gpupool.node.inventory.host import boot_id, clean_node_name, read_host, usable_cpus, usable_memory_mib

ALLOWED = len(os.sched_getaffinity(0))


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Return a simulated machine with 8 GiB and without control groups."""
    put(tmp_path, "proc/meminfo", "MemTotal:        8388608 kB\nMemFree:  1 kB\n")
    return tmp_path


def put(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def test_whole_machine_counts_without_limits(machine: Path) -> None:
    assert usable_memory_mib(machine) == 8192
    assert usable_cpus(machine) == ALLOWED


def test_tightest_limit_of_parent_groups_counts(machine: Path) -> None:
    put(machine, "proc/self/cgroup", "0::/a/b\n")
    put(machine, "sys/fs/cgroup/memory.max", "max\n")
    put(machine, "sys/fs/cgroup/a/memory.max", str(2 << 30))
    put(machine, "sys/fs/cgroup/a/b/memory.max", str(3 << 30))
    put(machine, "sys/fs/cgroup/a/b/cpu.max", "50000 100000\n")
    put(machine, "sys/fs/cgroup/a/cpu.max", "max 100000\n")
    assert usable_memory_mib(machine) == 2048
    assert usable_cpus(machine) == 0.5


def test_control_group_v1_limits_count(machine: Path) -> None:
    put(machine, "proc/self/cgroup", "4:memory:/job\n3:cpu,cpuacct:/job\n0::/\n")
    put(machine, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    put(machine, "sys/fs/cgroup/memory/job/memory.limit_in_bytes", str(1 << 30))
    put(machine, "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "25000\n")
    put(machine, "sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n")
    assert usable_memory_mib(machine) == 1024
    assert usable_cpus(machine) == 0.25


def test_invisible_host_path_falls_back_to_container_mount(machine: Path) -> None:
    put(machine, "proc/self/cgroup", "0::/../../kubepods/pod1\n")
    put(machine, "sys/fs/cgroup/memory.max", str(1 << 30))
    assert usable_memory_mib(machine) == 1024


def test_unlimited_cgroup_quota_is_no_limit(machine: Path) -> None:
    put(machine, "proc/self/cgroup", "3:cpu:/\n")
    put(machine, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    put(machine, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    assert usable_cpus(machine) == ALLOWED


def test_boot_is_identified_by_kernel_id_or_time(machine: Path) -> None:
    assert boot_id(machine) == "unknown"
    put(machine, "proc/stat", "cpu 1\nbtime 1700000000\n")
    assert boot_id(machine) == "btime-1700000000"
    put(machine, "proc/sys/kernel/random/boot_id", "abc-def\n")
    assert boot_id(machine) == "abc-def"


@given(st.text(max_size=300))
def test_any_host_name_becomes_a_valid_node_name(text: str) -> None:
    assert check_name(clean_node_name(text)) == clean_node_name(clean_node_name(text))


def test_facts_of_this_machine_are_readable() -> None:
    host = read_host("n1")
    assert (host.name, host.boot_id) == ("n1", Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    assert 0 < host.cpus <= ALLOWED
    assert host.memory_mib > 0
    assert read_host().name == clean_node_name(os.uname().nodename)
