"""Processes on a GPU as listed by NVML, divided into the pool's own and foreign ones."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import Any

from gpupool.domain.nodes.gpu import ForeignProcess
from gpupool.node.inventory.queries import Queries

_MIB = 1024 * 1024
_MAX_ANCESTORS = 64
_NAME_LIMIT = 60
_HOST_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO of linux/proc_ns.h
_INTERPRETERS = ("python", "bash", "sh", "perl", "ruby", "node", "julia", "Rscript", "java")


def foreign_processes(
    queries: Queries, handle: Any, pool_pids: frozenset[int], proc: Path = Path("/proc")
) -> tuple[ForeignProcess, ...]:
    """Return computing processes on a GPU that neither are in ``pool_pids`` nor descend from one of them.

    Graphics alone (a desktop on the same GPU) does not count. A process that has just ended is omitted.
    """
    found: dict[int, ForeignProcess] = {}
    hidden = 0
    entries: list[Any] = queries.ask([], "nvmlDeviceGetComputeRunningProcesses", handle)
    for entry in entries:
        pid = int(entry.pid)
        if not _exists(pid, proc):
            hidden += 1
        elif not belongs(pid, pool_pids, proc):
            used = int(getattr(entry, "usedGpuMemory", None) or 0) // _MIB
            found[pid] = ForeignProcess(pid, owner(pid, proc), command(pid, proc), used)
    if hidden and not _in_host_namespace(proc):
        queries.warn("its processes cannot be identified from inside this container; share the host's PID namespace")
    return tuple(found.values())


def belongs(pid: int, pool_pids: frozenset[int], proc: Path = Path("/proc")) -> bool:
    """Return True if a process or one of its ancestors is in ``pool_pids``."""
    for _ in range(_MAX_ANCESTORS):
        if pid in pool_pids:
            return True
        pid = _parent(pid, proc)
        if pid <= 1:
            return pid in pool_pids
    return False


def owner(pid: int, proc: Path = Path("/proc")) -> str:
    """Return the user name of a process's owner, the number if it has no name, ``?`` if it is not visible."""
    try:
        uid = (proc / str(pid)).stat().st_uid
    except OSError:
        return "?"
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def command(pid: int, proc: Path = Path("/proc")) -> str:
    """Return the program of a process, with its script for an interpreter; never its other arguments."""
    try:
        argv = (proc / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
        name = Path(argv[0]).name or (proc / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:
        return "?"
    script = argv[1] if len(argv) > 1 and name.startswith(_INTERPRETERS) and not argv[1].startswith("-") else ""
    text = f"{name} {Path(script).name}".strip()
    return "".join(c if c.isprintable() else "?" for c in text)[:_NAME_LIMIT]


def _parent(pid: int, proc: Path) -> int:
    try:
        stat = (proc / str(pid) / "stat").read_text(errors="replace")
        return int(stat.rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def _exists(pid: int, proc: Path) -> bool:
    if (proc / str(pid)).exists():
        return True
    try:
        os.kill(pid, 0)  # /proc mounted with hidepid hides the processes of others, signals do not
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def _in_host_namespace(proc: Path) -> bool:
    try:
        return str((proc / "self/ns/pid").readlink()) == _HOST_PID_NAMESPACE
    except OSError:
        return False
