"""Control groups for one program: a sure way to find and kill all of it, and limits of processors and memory.

Every program gets a group of the unified hierarchy where one may be made; it is born there. Limits are set in the same
group where the hierarchy has the controllers, otherwise in the separate ``memory`` and ``cpu`` hierarchies (root
only). Where nothing is writable a note says which limit is not kept.
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
_MOST_AND_LIMIT = ("memory.max_usage_in_bytes", "memory.limit_in_bytes")


@dataclass(slots=True)
class Groups:
    """The folders made for one program, and what could not be had.

    ``own`` is of the unified hierarchy; ``separate`` ones are entered by the program before it is executed.
    """

    own: Path | None = None
    separate: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def entries(self) -> tuple[str, ...]:
        """Where the program writes ``0`` to enter."""
        return tuple(f"{folder}/cgroup.procs" for folder in self.separate)

    @property
    def paths(self) -> tuple[str, ...]:
        """All folders, as texts for the record."""
        own = () if self.own is None else (self.own,)
        return tuple(str(folder) for folder in (*own, *self.separate))


def make(key: str, cpus: float | None, memory_mib: int | None, root: Path = ROOT) -> Groups:
    """Groups for one program. Never raises."""
    groups = Groups()
    with contextlib.suppress(OSError):
        groups.own = _make_own(key, root)
    if cpus is not None:
        _limit(groups, key, "cpu", root, cpus)
    if memory_mib is not None:
        _limit(groups, key, "memory", root, memory_mib)
    return groups


def _make_own(key: str, root: Path) -> Path:
    """A folder of the unified hierarchy. Raises OSError where none may be made."""
    parent = _unified_parent(root)
    own = parent / BASE / key
    try:
        own.mkdir()
    except FileNotFoundError:
        (parent / "cgroup.procs").stat()  # no folder of our own beside things that are no groups
        own.parent.mkdir(exist_ok=True)
        own.mkdir(exist_ok=True)
    except FileExistsError:
        pass
    return own


def _unified_parent(root: Path) -> Path:
    """Where we may make folders: the top for root, beside our own group for a user with delegated control."""
    top = root if (root / "cgroup.controllers").exists() else root / "unified"
    if os.geteuid() == 0:
        return top
    own = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    path = next((line[3:] for line in own if line.startswith("0::")), "/")
    return (top / path.lstrip("/")).parent


def _limit(groups: Groups, key: str, controller: str, root: Path, amount: float) -> None:
    with contextlib.suppress(OSError):
        if groups.own is not None and _enable(groups.own.parent, controller):
            _write_limit(groups.own, controller, amount, unified=True)
            return
    with contextlib.suppress(OSError):
        folder = _separate(key, controller, root)
        _write_limit(folder, controller, amount, unified=False)
        groups.separate.append(folder)
        return
    groups.notes.append(f"{controller} limit not enforced: no writable cgroup")


def _enable(base: Path, controller: str) -> bool:
    """Have the controller in the folders below ``base``; False where the hierarchy lacks it. Raises OSError."""
    if controller not in (base.parent / "cgroup.controllers").read_text(encoding="ascii").split():
        return False
    for level in (base.parent, base):
        (level / "cgroup.subtree_control").write_text(f"+{controller}", encoding="ascii")
    return True


def _separate(key: str, controller: str, root: Path) -> Path:
    """A folder of a separate hierarchy. Raises OSError."""
    hierarchy = root / controller
    (hierarchy / "cgroup.procs").stat()
    folder = hierarchy / BASE / key
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _write_limit(folder: Path, controller: str, amount: float, *, unified: bool) -> None:
    def write(name: str, value: object) -> None:
        (folder / name).write_text(str(value), encoding="ascii")

    quota = max(_MIN_QUOTA_US, int(amount * _PERIOD_US))
    size = int(amount) * _MIB
    if controller == "cpu" and unified:
        write("cpu.max", f"{quota} {_PERIOD_US}")
    elif controller == "cpu":
        write("cpu.cfs_period_us", _PERIOD_US)
        write("cpu.cfs_quota_us", quota)
    elif unified:
        write("memory.max", size)
        for name, value in (("memory.oom.group", 1), ("memory.swap.max", 0)):
            with contextlib.suppress(OSError):
                write(name, value)
    else:
        write("memory.limit_in_bytes", size)
        with contextlib.suppress(OSError):
            write("memory.memsw.limit_in_bytes", size)


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


def limit_reached(paths: tuple[str, ...]) -> bool:
    """Whether one of these groups had all the memory it may have at some time, in a separate hierarchy.

    There a kill is counted in the group that it struck, and a container's group goes with the container.
    """
    for path in paths:
        with contextlib.suppress(OSError, ValueError):
            most, limit = (int((Path(path) / name).read_text(encoding="ascii")) for name in _MOST_AND_LIMIT)
            if most >= limit - _MIB:
                return True
    return False


def members(paths: tuple[str, ...]) -> frozenset[int]:
    """The living pids in these groups and in groups that the program made below them."""
    found: set[int] = set()
    for path in paths:
        for procs in Path(path).glob("**/cgroup.procs"):
            with contextlib.suppress(OSError, ValueError):
                found.update(int(line) for line in procs.read_text(encoding="ascii").split())
    return frozenset(pid for pid in found if start_time(pid) is not None)


def kill(paths: tuple[str, ...]) -> None:
    """Kill all members at once where the kernel can; the caller looks for what is left."""
    for path in paths:
        with contextlib.suppress(OSError):
            fd = os.open(f"{path}/cgroup.kill", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(fd, b"1")
            finally:
                os.close(fd)


def remove(paths: tuple[str, ...]) -> None:
    """Remove the folders, once they are empty; what cannot be removed stays."""
    for path in paths:
        with contextlib.suppress(OSError):
            _remove_tree(path)


def _remove_tree(path: str) -> None:
    """Groups have no files that could be removed, only folders; the plain case is one call."""
    try:
        os.rmdir(path)  # noqa: PTH106 - texts come from a record
    except OSError:
        for folder, _folders, _files in os.walk(path, topdown=False):
            os.rmdir(folder)  # noqa: PTH106 - likewise
