"""Control groups for one program: limits of processors and memory, and a sure way to kill all of it.

Unified hierarchy where it has the controllers; otherwise the separate ``memory`` and ``cpu`` hierarchies (root only)
beside a unified one without controllers, which still can kill. Where nothing is writable a note says what is not kept.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path

from gpupool.node.proctree import start_time

ROOT = Path("/sys/fs/cgroup")
BASE = "gpupool"
_PERIOD_US = 100_000
_MIB = 1 << 20
_MIN_QUOTA_US = 1000


@dataclass(slots=True)
class Groups:
    """The folders made for one program, and what could not be had. ``limits`` folders are entered before exec."""

    limits: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def entries(self) -> tuple[Path, ...]:
        """Where the program writes ``0`` to enter."""
        return tuple(folder / "cgroup.procs" for folder in self.limits)

    @property
    def paths(self) -> tuple[str, ...]:
        """All folders, as texts for the record."""
        return tuple(str(folder) for folder in self.limits)


def make(key: str, cpus: float | None, memory_mib: int | None, root: Path = ROOT) -> Groups:
    """Groups for the limits asked for; none when nothing was asked. Never raises."""
    groups = Groups()
    if cpus is not None:
        _limit(groups, key, "cpu", root, cpus)
    if memory_mib is not None:
        _limit(groups, key, "memory", root, memory_mib)
    return groups


def _limit(groups: Groups, key: str, controller: str, root: Path, amount: float) -> None:
    for attempt in (_unified, _separate):
        try:
            folder = attempt(key, controller, root)
            _write_limit(folder, controller, amount)
        except OSError:
            continue
        if folder not in groups.limits:
            groups.limits.append(folder)
        return
    groups.notes.append(f"{controller} limit not enforced: no writable cgroup")


def _unified(key: str, controller: str, root: Path) -> Path:
    """A folder of the unified hierarchy with this controller. Raises OSError."""
    parent = _unified_parent(root)
    if controller not in (parent / "cgroup.controllers").read_text(encoding="ascii").split():
        raise OSError(f"no {controller} controller")
    base = parent / BASE
    base.mkdir(exist_ok=True)
    for level in (parent, base):
        (level / "cgroup.subtree_control").write_text(f"+{controller}", encoding="ascii")
    folder = base / key
    folder.mkdir(exist_ok=True)
    return folder


def _unified_parent(root: Path) -> Path:
    """Where we may make folders: the top for root, beside our own group for a user with delegated control."""
    if os.geteuid() == 0:
        return root
    own = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    path = next((line[3:] for line in own if line.startswith("0::")), "/")
    return (root / path.lstrip("/")).parent


def _separate(key: str, controller: str, root: Path) -> Path:
    """A folder of a separate hierarchy. Raises OSError."""
    hierarchy = root / controller
    if not (hierarchy / "cgroup.procs").exists() or (hierarchy / "cgroup.controllers").exists():
        raise OSError(f"no {controller} hierarchy")
    folder = hierarchy / BASE / key
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _write_limit(folder: Path, controller: str, amount: float) -> None:
    def write(name: str, text: str) -> None:
        (folder / name).write_text(text, encoding="ascii")

    quota = max(_MIN_QUOTA_US, int(amount * _PERIOD_US))
    unified = (folder / "cgroup.controllers").exists()
    if controller == "cpu" and unified:
        write("cpu.max", f"{quota} {_PERIOD_US}")
    elif controller == "cpu":
        write("cpu.cfs_period_us", str(_PERIOD_US))
        write("cpu.cfs_quota_us", str(quota))
    elif unified:
        write("memory.max", str(int(amount) * _MIB))
        _optional(folder / "memory.oom.group", "1")
        _optional(folder / "memory.swap.max", "0")
    else:
        write("memory.limit_in_bytes", str(int(amount) * _MIB))
        _optional(folder / "memory.memsw.limit_in_bytes", str(int(amount) * _MIB))


def _optional(path: Path, text: str) -> None:
    with contextlib.suppress(OSError):
        path.write_text(text, encoding="ascii")


def out_of_memory(paths: tuple[str, ...]) -> bool:
    """Whether the kernel killed something in these groups for want of memory."""
    return any(_oom_kills(Path(path)) > 0 for path in paths)


def _oom_kills(folder: Path) -> int:
    for name in ("memory.events", "memory.oom_control"):
        with contextlib.suppress(OSError, ValueError):
            for line in (folder / name).read_text(encoding="ascii").splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return 0


def members(paths: tuple[str, ...]) -> frozenset[int]:
    """The living pids in these groups."""
    found: set[int] = set()
    for path in paths:
        with contextlib.suppress(OSError, ValueError):
            text = Path(path, "cgroup.procs").read_text(encoding="ascii")
            found.update(int(line) for line in text.split())
    return frozenset(pid for pid in found if start_time(pid) is not None)


def kill(paths: tuple[str, ...]) -> None:
    """Kill all members at once where the kernel can; the caller looks for what is left."""
    for path in paths:
        _optional_existing(Path(path, "cgroup.kill"))


def _optional_existing(path: Path) -> None:
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, b"1")
        finally:
            os.close(fd)


def remove(paths: tuple[str, ...]) -> None:
    """Remove the folders, once they are empty; what cannot be removed stays."""
    for path in paths:
        with contextlib.suppress(OSError):
            os.rmdir(path)  # noqa: PTH106 - texts come from a record
