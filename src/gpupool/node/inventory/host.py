"""The machine around the GPUs: its name, processors, memory and boot, as far as this process may use them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gpupool.domain.ids import NAME_LIMIT, is_workload_id

_MIB = 1024 * 1024
_NO_LIMIT_BYTES = 1 << 60  # cgroup v1 writes "no limit" as a number close to 2**63


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What a node report says of the machine besides its GPUs. ``cpus`` may be a fraction under a cgroup quota."""

    name: str
    cpus: float
    memory_mib: int
    boot_id: str


def read_host(node_name: str | None = None, root: Path = Path("/")) -> HostFacts:
    """The facts of this machine; ``node_name`` overrides the host name, ``root`` is where /proc and /sys are."""
    return HostFacts(
        name=clean_node_name(node_name or os.uname().nodename),
        cpus=usable_cpus(root),
        memory_mib=usable_memory_mib(root),
        boot_id=boot_id(root),
    )


def clean_node_name(text: str) -> str:
    """A host name as a name the pool accepts: other characters become dashes, at most 63, never empty."""
    plain = re.sub(r"[^a-z0-9._-]+", "-", text.lower())[:NAME_LIMIT].strip("._-")
    if not plain:
        return "node"
    return f"node-{plain}" if is_workload_id(plain) else plain


def usable_cpus(root: Path = Path("/")) -> float:
    """Processors this process may use: the fewest of its affinity and of the quotas of its cgroups."""
    allowed = float(len(os.sched_getaffinity(0)))
    quotas = _limits(root, "cpu", _cpu_quota)
    return round(min([allowed, *(q for q in quotas if q > 0)]), 3)


def usable_memory_mib(root: Path = Path("/")) -> int:
    """MiB of memory this process may use: the least of the machine's and of the limits of its cgroups."""
    match = re.search(r"^MemTotal:\s+(\d+) kB", _read(root / "proc/meminfo"), re.MULTILINE)
    total = int(match.group(1)) * 1024 if match else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [limit for limit in _limits(root, "memory", _memory_limit) if limit < _NO_LIMIT_BYTES]
    return int(min([total, *limits])) // _MIB


def memory_limit_folder(root: Path = Path("/")) -> Path | None:
    """The control group whose limit is less than the machine's memory, the tightest; None where there is none."""
    match = re.search(r"^MemTotal:\s+(\d+) kB", _read(root / "proc/meminfo"), re.MULTILINE)
    total = int(match.group(1)) * 1024 if match else 0
    limits = [(limit, folder) for folder in _cgroup_folders(root, "memory") if (limit := _memory_limit(folder))]
    tightest = min(limits, default=None)
    return tightest[1] if tightest is not None and tightest[0] < total else None


def boot_id(root: Path = Path("/")) -> str:
    """A text that changes when the machine restarts: the kernel's boot id, or its boot time."""
    text = _read(root / "proc/sys/kernel/random/boot_id").strip()
    if text:
        return text
    match = re.search(r"^btime (\d+)", _read(root / "proc/stat"), re.MULTILINE)
    return f"btime-{match.group(1)}" if match else "unknown"


def _limits(root: Path, controller: str, read: Callable[[Path], float | None]) -> list[float]:
    """What ``read`` finds in each cgroup from this process's own up to the root, of both cgroup versions."""
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
    """Processors a cgroup may use (``cpu.max``, or ``cpu.cfs_*`` of version 1), None without a limit."""
    quota, _, period = _read(folder / "cpu.max").strip().partition(" ")
    if not quota:
        quota, period = _read(folder / "cpu.cfs_quota_us").strip(), _read(folder / "cpu.cfs_period_us").strip()
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else None


def _memory_limit(folder: Path) -> float | None:
    """Bytes a cgroup may use (``memory.max``, or ``memory.limit_in_bytes`` of version 1), None without a limit."""
    text = (_read(folder / "memory.max") or _read(folder / "memory.limit_in_bytes")).strip()
    return float(text) if text.isdigit() else None


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
