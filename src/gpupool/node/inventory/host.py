"""The machine without its GPUs, as far as this process may use it: name, CPUs, memory, boot, and current use."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gpupool.domain.ids import MAX_NAME_LENGTH, is_workload_id

_MIB = 1024 * 1024
_NO_LIMIT_BYTES = 1 << 60  # cgroup v1 writes "no limit" as a number close to 2**63
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_START_BYTES = 4096
_USAGE = ("memory.current", "memory.usage_in_bytes")
_CACHE = re.compile(r"^(?:total_)?inactive_file (\d+)", re.MULTILINE)
_TOTAL = re.compile(r"^MemTotal:\s+(\d+) kB", re.MULTILINE)
_AVAILABLE = re.compile(r"^MemAvailable:\s+(\d+) kB", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class HostFacts:
    """The part of a node report without GPUs. ``cpus`` may be a fraction under a cgroup quota."""

    name: str
    cpus: float
    memory_mib: int
    boot_id: str


def read_host(node_name: str | None = None, root: Path = Path("/")) -> HostFacts:
    """Read the facts of this machine; ``node_name`` overrides the host name, ``root`` contains /proc and /sys."""
    return HostFacts(
        name=clean_node_name(node_name or os.uname().nodename),
        cpus=usable_cpus(root),
        memory_mib=usable_memory_mib(root),
        boot_id=boot_id(root),
    )


def clean_node_name(text: str) -> str:
    """Convert a host name to a valid node name: other characters become dashes, at most 63, never empty."""
    plain = re.sub(r"[^a-z0-9._-]+", "-", text.lower())[:MAX_NAME_LENGTH].strip("._-")
    if not plain:
        return "node"
    return f"node-{plain}" if is_workload_id(plain) else plain


def usable_cpus(root: Path = Path("/")) -> float:
    """Return the CPUs that this process may use: the minimum of its affinity and its cgroup quotas."""
    allowed = float(len(os.sched_getaffinity(0)))
    quotas = _limits(root, "cpu", _cpu_quota)
    return round(min([allowed, *(q for q in quotas if q > 0)]), 3)


def usable_memory_mib(root: Path = Path("/")) -> int:
    """Return the MiB of memory that this process may use: the minimum of machine and cgroup limits."""
    match = _TOTAL.search(_read(root / "proc/meminfo"))
    total = int(match.group(1)) * 1024 if match else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [limit for limit in _limits(root, "memory", _memory_limit) if limit < _NO_LIMIT_BYTES]
    return int(min([total, *limits])) // _MIB


def memory_limit_folder(root: Path = Path("/")) -> Path | None:
    """Return the cgroup with the lowest limit below the machine's memory; None if there is none."""
    match = _TOTAL.search(_read(root / "proc/meminfo"))
    total = int(match.group(1)) * 1024 if match else 0
    limits = [(limit, folder) for folder in _cgroup_folders(root, "memory") if (limit := _memory_limit(folder))]
    tightest = min(limits, default=None)
    return tightest[1] if tightest is not None and tightest[0] < total else None


def boot_id(root: Path = Path("/")) -> str:
    """Return a text that changes when the machine restarts: the kernel's boot id, or its boot time."""
    text = _read(root / "proc/sys/kernel/random/boot_id").strip()
    if text:
        return text
    match = re.search(r"^btime (\d+)", _read(root / "proc/stat"), re.MULTILINE)
    return f"btime-{match.group(1)}" if match else "unknown"


def _limits(root: Path, controller: str, read: Callable[[Path], float | None]) -> list[float]:
    """Return the results of ``read`` for each cgroup from this process's own to the root, for both cgroup versions."""
    found = [read(folder) for folder in _cgroup_folders(root, controller)]
    return [value for value in found if value is not None]


def _cgroup_folders(root: Path, controller: str) -> Iterator[Path]:
    for line in _read(root / "proc/self/cgroup").splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if hierarchy == "0":
            mount = root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            mount = root / "sys/fs/cgroup" / controller
        else:
            continue
        # A container without its own cgroup namespace sees the host's path here: folders that are absent are skipped.
        parts = [part for part in path.split("/") if part not in {"", "..", "."}]
        for depth in range(len(parts), -1, -1):
            yield mount.joinpath(*parts[:depth])


def _cpu_quota(folder: Path) -> float | None:
    """Return the CPUs that a cgroup may use (``cpu.max``, or ``cpu.cfs_*`` of version 1); None without a limit."""
    quota, _, period = _read(folder / "cpu.max").strip().partition(" ")
    if not quota:
        quota, period = _read(folder / "cpu.cfs_quota_us").strip(), _read(folder / "cpu.cfs_period_us").strip()
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else None


def _memory_limit(folder: Path) -> float | None:
    """Return the bytes that a cgroup may use (``memory.max`` or ``memory.limit_in_bytes``), or None."""
    text = (_read(folder / "memory.max") or _read(folder / "memory.limit_in_bytes")).strip()
    return float(text) if text.isdigit() else None


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def read_start(path: Path | str) -> bytes:
    """Return the first 4 KiB of a file of the kernel by one read; empty if it cannot be read.

    File objects of Python cost four times as much, which matters for files that are read each second.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, _START_BYTES)
    except OSError:
        return b""
    finally:
        os.close(fd)


@dataclass(frozen=True, slots=True)
class HostUse:
    """One measurement; ``cpu_percent`` is 100 for one core, averaged since the last measurement."""

    cpu_percent: float
    memory_used_mib: int


class HostMeter:
    """Measures CPU use of the whole machine, and memory use of the limiting cgroup if there is one."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._group = memory_limit_folder(root)
        self._before = (self._busy_s(), 0.0)

    def look(self, now: float) -> HostUse:
        """Measure at a monotonic time in seconds; the first measurement has no CPU use."""
        busy, (before, at) = self._busy_s(), self._before
        self._before = (busy, now)
        percent = 100 * (busy - before) / (now - at) if at and now > at else 0.0
        return HostUse(max(0.0, percent), self._memory_mib())

    def _busy_s(self) -> float:
        """Return the busy seconds of all CPUs: ``cpu`` of /proc/stat without idle and iowait."""
        fields = read_start(self._root / "proc/stat").partition(b"\n")[0].split()[1:9]
        if len(fields) < 5:
            return 0.0
        ticks = [int(field) for field in fields]
        return (sum(ticks) - ticks[3] - ticks[4]) / _TICKS_PER_S

    def _memory_mib(self) -> int:
        """Return used memory that cannot be reclaimed at once."""
        if self._group is not None and (taken := _of_group(self._group)) is not None:
            return taken
        text = read_start(self._root / "proc/meminfo").decode()
        total, available = _TOTAL.search(text), _AVAILABLE.search(text)
        return 0 if total is None or available is None else (int(total[1]) - int(available[1])) // 1024


def _of_group(group: Path) -> int | None:
    used = next((text for name in _USAGE if (text := _read(group / name).strip()).isdigit()), None)
    cached = _CACHE.findall(_read(group / "memory.stat"))
    return None if used is None else max(0, int(used) - int(cached[-1] if cached else 0)) // _MIB
