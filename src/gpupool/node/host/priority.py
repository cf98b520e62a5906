"""Priority of the pool's own processes over its jobs, for CPU time and when memory runs out.

A process that may do so raises its own priority, and its children inherit it. Between fork and exec, a user's program
returns to ordinary priority. Control groups (``cgroups``) do the same for all jobs together against the rest of the
machine.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

POOL_NICE = -10
POOL_OOM_SCORE = -900  # usual for important daemons; -1000 would exempt even a process that leaks memory
JOB_OOM_SCORE = 200  # kill jobs before other processes, even where the pool cannot be protected


def protect(proc: Path = Path("/proc/self")) -> None:
    """Raise the calling process and its future children, as far as permitted.

    A niceness that was set when the pool was started is kept.
    """
    if os.getpriority(os.PRIO_PROCESS, 0) == 0:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, POOL_NICE)
    with contextlib.suppress(OSError, ValueError):
        if oom_score(proc) >= 0:
            _write(proc / "oom_score_adj", POOL_OOM_SCORE)
    protect_session(proc)


def protect_session(proc: Path = Path("/proc/self")) -> None:
    """Raise the session of the calling process, where the kernel shares CPU time between sessions.

    With ``sched_autogroup_enabled`` the niceness of a process counts only within its session; see sched(7). A new
    session begins with niceness 0.
    """
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    if nice < 0:
        with contextlib.suppress(OSError):
            _write(proc / "autogroup", nice)


def make_ordinary(pid: int | None = None) -> None:
    """Remove the pool's priority from a process (None: the calling one) that works for a user's program."""
    with contextlib.suppress(OSError):
        if os.getpriority(os.PRIO_PROCESS, pid or 0) < 0:
            os.setpriority(os.PRIO_PROCESS, pid or 0, 0)
    proc = Path("/proc/self" if pid is None else f"/proc/{pid}")
    with contextlib.suppress(OSError, ValueError):
        if oom_score(proc) < JOB_OOM_SCORE:
            _write(proc / "oom_score_adj", JOB_OOM_SCORE)


def oom_score(proc: Path) -> int:
    """Return the ``oom_score_adj`` of a process, given its folder in /proc. Raises ``OSError``, ``ValueError``."""
    return int((proc / "oom_score_adj").read_text(encoding="ascii"))


def _write(path: Path, value: int) -> None:
    """Write a number to a kernel file with one call. Raises ``OSError``."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, str(value).encode())
    finally:
        os.close(fd)
