"""Control groups for one program: they find and kill all of its processes and limit its resources.

Each program is started in its own group of the unified hierarchy where that is possible. Limits of CPUs, memory and
processes are set in this group if the hierarchy has the controllers. Otherwise they are set in the separate ``cpu``,
``memory`` and ``pids`` hierarchies (root only). If nothing is writable, a note says which limit is not enforced.

All programs together are one group next to the pool's own processes and the rest of the machine, and share CPUs as one
group (``prepare``). So the pool responds however much they run.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path

from gpupool.node.host.pool_group import POOL_GROUP, join_pool_group, may_leave
from gpupool.node.host.process_tree import start_time

ROOT = Path("/sys/fs/cgroup")
BASE = "gpupool"
POOL_WEIGHT = 1000  # ten times that of an ordinary group
POOL_MEMORY_MIN, POOL_MEMORY_LOW = 128 << 20, 512 << 20  # bytes that are never reclaimed; that are reclaimed last
_PERIOD_US = 100_000
_MIB = 1 << 20
_MIN_QUOTA_US = 1000
_JOB_SHARES, _POOL_SHARES = 8 << 10, 10 << 10  # for each CPU, in a separate hierarchy; one ordinary process has 1024
_MAX_SHARES = 1 << 18
PROCESSES_VARIABLE = "GPUPOOL_JOB_PROCESSES"  # how many processes and threads a job may have
MAX_PROCESSES = 32768
_PROGRAM_SHARE, _ALL_SHARE = 4, 4 / 3  # one program: a quarter of the machine; all: three quarters
_USAGE_FILES = ("memory.max_usage_in_bytes", "memory.limit_in_bytes")


@dataclass(slots=True)
class Groups:
    """The folders made for one program, and the limits that are not enforced.

    ``own`` is in the unified hierarchy. The program enters the ``separate`` folders and ``common`` (shared by all
    programs) before the exec. ``user_processes`` limits its user where no group limits its processes.
    """

    own: Path | None = None
    separate: list[Path] = field(default_factory=list)
    common: Path | None = None
    user_processes: int | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def entries(self) -> tuple[str, ...]:
        """Return the files to which the program writes ``0`` to enter its groups."""
        common = () if self.common is None else (self.common,)
        return tuple(f"{folder}/cgroup.procs" for folder in (*self.separate, *common))

    @property
    def paths(self) -> tuple[str, ...]:
        """Return all folders as strings, for the record."""
        own = () if self.own is None else (self.own,)
        return tuple(str(folder) for folder in (*own, *self.separate))


def make(
    key: str, cpus: float | None, memory_mib: int | None, root: Path = ROOT, own: Path = Path("/proc/self/cgroup")
) -> Groups:
    """Create the groups for one program. Never raises."""
    groups = Groups()
    with contextlib.suppress(OSError):
        groups.own = _make_own(key, root)
    if cpus is not None:
        _limit(groups, key, "cpu", root, cpus)
    if memory_mib is not None:
        _limit(groups, key, "memory", root, memory_mib)
    _limit_processes(groups, key, root)
    common = root / "cpu" / BASE
    with contextlib.suppress(OSError):
        if cpus is None and (common / "cpu.shares").exists() and may_leave(str(own), "cpu"):
            groups.common = common
    return groups


def prepare(root: Path = ROOT) -> None:
    """Set up the group of all programs: its share of CPUs and its number of processes.

    Never raises; ``gpupool doctor`` reports what is missing.
    """
    most = int(_processes_of_machine() / _ALL_SHARE)
    with contextlib.suppress(OSError):
        base = _unified_parent(root) / BASE
        (base.parent / "cgroup.procs").stat()
        base.mkdir(exist_ok=True)
        if _enable(base, "pids"):
            (base / "pids.max").write_text(str(most), encoding="ascii")
        _enable(base, "cpu")  # all programs then share CPUs as one group
    for controller, name, value in (("pids", "pids.max", most), ("cpu", "cpu.shares", _shares(_JOB_SHARES))):
        with contextlib.suppress(OSError):
            (_separate("", controller, root) / name).write_text(str(value), encoding="ascii")


def _shares(for_each_cpu: int) -> int:
    return min(_MAX_SHARES, for_each_cpu * (os.cpu_count() or 1))


def enter_pool_group(root: Path = ROOT, own: Path = Path("/proc/self/cgroup")) -> None:
    """Move the calling process, the first of a pool, to a group with more CPU weight and reserved memory.

    Only for root. Jobs are in a different group. A process that systemd, a container engine or an administrator has put
    into a group stays there; a systemd unit can set the same values. Never raises.
    """
    if os.geteuid() != 0:
        return
    with contextlib.suppress(OSError):
        (root / "cpu" / "cgroup.procs").stat()
        if may_leave(str(own), "cpu"):
            group = root / "cpu" / POOL_GROUP
            for folder in (root / "cpu" / BASE, group):
                folder.mkdir(exist_ok=True)
            (group / "cpu.shares").write_text(str(_shares(_POOL_SHARES)), encoding="ascii")
    with contextlib.suppress(OSError):
        if (root / "cgroup.controllers").exists() and may_leave(str(own), ""):
            _make_pool_group(root)
    join_pool_group(str(root), str(own))


def _make_pool_group(root: Path) -> None:
    """Make the group of the unified hierarchy. Raises OSError."""
    group = root / POOL_GROUP
    for folder in (root / BASE, group):
        folder.mkdir(exist_ok=True)
    for name, value in (
        ("cpu.weight", POOL_WEIGHT),
        ("memory.min", POOL_MEMORY_MIN),
        ("memory.low", POOL_MEMORY_LOW),
    ):
        with contextlib.suppress(OSError):
            if _enable_at(root, name.partition(".")[0]):
                (group / name).write_text(str(value), encoding="ascii")


def process_limit() -> int:
    """Return how many processes and threads one program may have: the configured number, or a safe share."""
    with contextlib.suppress(ValueError):
        return max(1, int(os.environ.get(PROCESSES_VARIABLE, "")))
    return min(MAX_PROCESSES, _processes_of_machine() // _PROGRAM_SHARE)


def _processes_of_machine() -> int:
    """Return how many processes and threads the kernel allows in total."""
    found = [MAX_PROCESSES]
    with contextlib.suppress(OSError, ValueError):
        found = [
            int((Path("/proc/sys/kernel") / name).read_text(encoding="ascii")) for name in ("pid_max", "threads-max")
        ]
    return min(found)


def _limit_processes(groups: Groups, key: str, root: Path) -> None:
    """Limit the program's group, or else its user; root has no user limit."""
    limit, before = process_limit(), len(groups.notes)
    _limit(groups, key, "pids", root, limit)
    if len(groups.notes) > before:
        groups.notes.pop()
        groups.user_processes = limit


def prepare_moves(root: Path = ROOT, own: Path = Path("/proc/self/cgroup")) -> None:
    """Prepare the kernel for moves between groups of separate hierarchies. Takes up to 20 ms; never raises.

    The first move waits until all processors have noticed it (an RCU grace period), moves soon after it do not. This
    moves the calling process to the group in which it already is.
    """
    with contextlib.suppress(OSError):
        for line in own.read_text(encoding="utf-8").splitlines():
            _number, controllers, path = line.split(":", 2)
            if "pids" in controllers.split(","):
                (root / "pids" / path.lstrip("/") / "cgroup.procs").write_text("0", encoding="ascii")


def _make_own(key: str, root: Path) -> Path:
    """Create a folder in the unified hierarchy. Raises OSError where that is not possible."""
    parent = _unified_parent(root)
    own = parent / BASE / key
    try:
        own.mkdir()
    except FileNotFoundError:
        (parent / "cgroup.procs").stat()  # raises if the parent is not a control group
        own.parent.mkdir(exist_ok=True)
        own.mkdir(exist_ok=True)
    except FileExistsError:
        pass
    return own


def _unified_parent(root: Path) -> Path:
    """Return where we may create folders: the top for root, else the parent of our own group (delegation)."""
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
    """Enable the controller for the folders below ``base``; False if the hierarchy lacks it. Raises OSError."""
    return _enable_at(base.parent, controller) and _enable_at(base, controller, of=base.parent)


def _enable_at(level: Path, controller: str, of: Path | None = None) -> bool:
    if controller not in ((of or level) / "cgroup.controllers").read_text(encoding="ascii").split():
        return False
    enabled = level / "cgroup.subtree_control"
    if not enabled.exists() or controller not in enabled.read_text(encoding="ascii").split():
        enabled.write_text(f"+{controller}", encoding="ascii")
    return True


def _separate(key: str, controller: str, root: Path) -> Path:
    """Create a folder in a separate hierarchy. Raises OSError."""
    hierarchy = root / controller
    (hierarchy / "cgroup.procs").stat()
    folder = hierarchy / BASE / key
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _write_limit(folder: Path, controller: str, amount: float, *, unified: bool) -> None:
    def write(name: str, value: object) -> None:
        (folder / name).write_text(str(value), encoding="ascii")

    if controller == "pids":
        write("pids.max", int(amount))
        return
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
    """Return True if the kernel killed a process in these groups because of their memory limit."""
    return any(_oom_kills(Path(path)) > 0 for path in paths)


def _oom_kills(folder: Path) -> int:
    for name in ("memory.events", "memory.oom_control"):
        with contextlib.suppress(OSError, ValueError):
            for line in (folder / name).read_text(encoding="ascii").splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return 0


def process_limit_reached(paths: tuple[str, ...]) -> bool:
    """Return True if a program in one of these groups was refused another process."""
    for path in paths:
        with contextlib.suppress(OSError, ValueError):
            events = dict(
                line.split() for line in (Path(path) / "pids.events").read_text(encoding="ascii").splitlines()
            )
            if int(events.get("max", 0)) > 0:
                return True
    return False


def limit_reached(paths: tuple[str, ...]) -> bool:
    """Return True if one of these groups reached its memory limit, in a separate hierarchy.

    There a kill is counted in the group of the killed process, and a container's group is removed with the container.
    """
    for path in paths:
        with contextlib.suppress(OSError, ValueError):
            most, limit = (int((Path(path) / name).read_text(encoding="ascii")) for name in _USAGE_FILES)
            if most >= limit - _MIB:
                return True
    return False


def members(paths: tuple[str, ...]) -> frozenset[int]:
    """Return the living pids in these groups and in groups below them."""
    found: set[int] = set()
    for path in paths:
        for procs in Path(path).glob("**/cgroup.procs"):
            with contextlib.suppress(OSError, ValueError):
                found.update(int(line) for line in procs.read_text(encoding="ascii").split())
    return frozenset(pid for pid in found if start_time(pid) is not None)


def kill(paths: tuple[str, ...]) -> None:
    """Kill all members at once where the kernel supports it; the caller checks for survivors."""
    for path in paths:
        with contextlib.suppress(OSError):
            fd = os.open(f"{path}/cgroup.kill", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(fd, b"1")
            finally:
                os.close(fd)


def remove(paths: tuple[str, ...]) -> None:
    """Remove the folders if they are empty; others remain."""
    for path in paths:
        with contextlib.suppress(OSError):
            _remove_tree(path)


def _remove_tree(path: str) -> None:
    """Remove nested groups, deepest first. Group files cannot and need not be removed."""
    try:
        os.rmdir(path)  # noqa: PTH106 - texts come from a record
    except OSError:
        for folder, _folders, _files in os.walk(path, topdown=False):
            os.rmdir(folder)  # noqa: PTH106 - same reason
