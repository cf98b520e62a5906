"""The checks of the machine: clock, port, control groups, descriptors, /proc, Python."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import resource
import socket
import sqlite3
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from gpupool.client.discovery import SYSTEM, USER, Location
from gpupool.daemon.doctor.check import (
    DoctorContext,
    Finding,
    NamedCheck,
    entries,
    fine,
    problem,
    read_text,
    some,
    warning,
)
from gpupool.daemon.process.record import read_state
from gpupool.node.host.priority import JOB_OOM_SCORE, oom_score

_FIRST_YEAR, _LAST_YEAR = 2025, 2100
_FUTURE_S = 120.0
_STA_UNSYNC = 0x0040  # linux/timex.h
_TIMEX_BYTES, _TIMEX_STATUS_OFFSET = 256, 40  # struct timex where a long has 64 bits
_DESCRIPTORS_WANTED = 4096
_DESCRIPTORS_NEEDED = 512
_SOCKET_PATH_LIMIT = 107
_ATTACH_NAME_BYTES = len("/attach/w0000000000.00000.0000.sock")
_OLDEST_PYTHON = (3, 11)
_OLDEST_SQLITE = (3, 35, 0)


def clock(context: DoctorContext) -> Iterator[Finding]:
    """Check that the wall clock is plausible, not behind the pool's own files, and synchronised."""
    year = time.gmtime(time.time()).tm_year
    if not _FIRST_YEAR <= year <= _LAST_YEAR:
        yield problem("clock", f"The clock shows the year {year}.", "Set it: 'timedatectl set-ntp true'.")
        return
    future = [p.name for p in entries(context.state_dir) if _mtime(p) > time.time() + _FUTURE_S]
    if future:
        yield warning(
            "clock",
            f"The clock was set back: files of the pool have future times ({some(future)}).",
            "Correct the clock; until then ages and times of existing workloads are wrong.",
        )
        return
    synchronised = clock_synchronised()
    if synchronised is False:
        yield warning(
            "clock",
            "The kernel reports that the clock is not synchronised with a time server.",
            "Run 'timedatectl set-ntp true' or start chrony; in a virtual machine the host may do it.",
        )
    else:
        yield fine("clock", "The clock is sane" + (" and synchronised." if synchronised else "."))


def _mtime(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0


def clock_synchronised() -> bool | None:
    """Return the kernel's answer to ``adjtimex(2)``; None if it cannot be asked."""
    if ctypes.sizeof(ctypes.c_long) != 8:
        return None
    timex = ctypes.create_string_buffer(_TIMEX_BYTES)  # all zero: modes = 0 only reads
    if ctypes.CDLL(None, use_errno=True).adjtimex(timex) < 0:
        return None
    status = int.from_bytes(timex.raw[_TIMEX_STATUS_OFFSET : _TIMEX_STATUS_OFFSET + 4], sys.byteorder)
    return not status & _STA_UNSYNC


def port(context: DoctorContext) -> Iterator[Finding]:
    """Check that the listen address is available."""
    if context.listen is None:
        return
    host, _, number = context.listen.rpartition(":")
    if not number.isdecimal() or not 0 < int(number) < 65536:
        yield problem("port", f"'{context.listen[:60]}' is not an address to listen on.", "Write it like 0.0.0.0:8443.")
        return
    error = _bind_error(host.strip("[]"), int(number))
    if error is None:
        yield fine("port", f"{context.listen} is free.")
    elif error.errno == errno.EADDRINUSE and context.pool_runs:
        yield fine("port", f"{context.listen} is in use, probably by this pool, which is running.")
    elif error.errno == errno.EADDRINUSE:
        yield problem(
            "port", f"{context.listen} is in use by another program.", f"Find it with 'ss -ltnp sport = {number}'."
        )
    else:
        yield problem("port", f"{context.listen} cannot be used: {error.strerror or error}.", _port_remedy(error))


def _bind_error(host: str, number: int) -> OSError | None:
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host or "0.0.0.0",  # noqa: S104 - what `--listen :8443` asks for
            number,
            type=socket.SOCK_STREAM,
        )[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        return error
    return None


def _port_remedy(error: OSError) -> str:
    if error.errno == errno.EACCES:
        return "Ports below 1024 are for root: choose a higher one."
    return "Give an address of this machine ('ip addr' lists them) or 0.0.0.0."


def socket_path(context: DoctorContext) -> Iterator[Finding]:
    """Check that the socket paths fit, or can be shortened through /proc."""
    length = len(os.fsencode(context.run_dir)) + _ATTACH_NAME_BYTES
    if length <= _SOCKET_PATH_LIMIT:
        yield fine("socket-path", f"The names of the sockets in {context.run_dir} fit.")
    elif (context.root / "proc/self/fd").is_dir():
        yield fine("socket-path", f"The names of the sockets in {context.run_dir} are long; reached through /proc.")
    else:
        yield problem(
            "socket-path",
            f"The names of the sockets in {context.run_dir} are too long ({length} bytes of {_SOCKET_PATH_LIMIT}).",
            "Choose a shorter folder with GPUPOOL_RUN_DIR, or mount /proc.",
        )


def control_groups(context: DoctorContext) -> Iterator[Finding]:
    """Check the version of control groups, and the controllers for limits of jobs."""
    mount = context.root / "sys/fs/cgroup"
    if (mount / "cgroup.controllers").exists():
        version, usable = 2, _unified_controllers(context, mount)
    elif (mount / "memory").is_dir() or (mount / "cpu").is_dir():
        version, usable = 1, [name for name in ("cpu", "memory", "pids") if os.access(mount / name, os.W_OK)]
    else:
        yield warning("cgroups", "There are no control groups.", "Limits of processors and memory are not enforced.")
        return
    missing = [name for name in ("cpu", "memory", "pids") if name not in usable]
    if missing:
        yield warning(
            "cgroups",
            f"Control groups of version {version} do not let this pool limit {' and '.join(missing)} of jobs"
            f"{'' if 'cpu' not in missing else ' and prioritise the pool'}.",
            "Run the pool as root, or in a delegated group: systemd-run --user --scope -p Delegate=yes gpupool up.",
        )
    else:
        yield fine(
            "cgroups", f"Control groups of version {version} can limit processors, memory and processes of jobs."
        )


def _unified_controllers(context: DoctorContext, mount: Path) -> list[str]:
    """Return controllers that this user may delegate to groups of jobs: root at the top, others next to their group."""
    own = re.search(r"^0::/(.*)$", read_text(context.root / "proc/self/cgroup"), re.MULTILINE)
    parent = mount if os.geteuid() == 0 else (mount / (own.group(1) if own else "")).parent
    return read_text(parent / "cgroup.controllers").split() if os.access(parent, os.W_OK) else []


def priority(context: DoctorContext) -> Iterator[Finding]:
    """Check that the pool's processes have priority over jobs for processors and memory."""
    root = os.geteuid() == 0
    state = read_state(Location(str(context.state_dir), str(context.run_dir), SYSTEM if root else USER))
    pids = [child["pid"] for child in state.get("children", []) if child.get("pid")]
    try:
        nice = max(os.getpriority(os.PRIO_PROCESS, pid) for pid in pids)
        score = max(oom_score(context.root / f"proc/{pid}") for pid in pids)
    except (OSError, ValueError):  # no such process
        yield fine("priority", "No pool runs here, so its priority cannot be checked.")
        return
    sentence = (
        f"The pool's processes have niceness {nice} and oom_score_adj {score}; jobs have {JOB_OOM_SCORE} or more."
    )
    if not root or (nice < 0 and score < 0):
        yield fine("priority", sentence if root else f"{sentence} A pool that root starts has a higher priority.")
    else:
        missing = " and ".join((["processors"] if nice >= 0 else []) + (["memory"] if score >= 0 else []))
        yield warning(
            "priority",
            f"{sentence} For {missing} they have no more priority than other programs of the machine.",
            "Run the pool as root, with CAP_SYS_NICE and CAP_SYS_RESOURCE; docs/systemd has a unit.",
        )


def descriptors(context: DoctorContext) -> Iterator[Finding]:  # noqa: ARG001 - every check has the same shape
    """Check how many files a process of the pool may open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = sys.maxsize if hard == resource.RLIM_INFINITY else hard
    sentence = f"A process may open {soft} files ({'any number' if most == sys.maxsize else most} at most)."
    if most < _DESCRIPTORS_NEEDED:
        yield problem("descriptors", sentence, f"Raise it: 'ulimit -Hn {_DESCRIPTORS_WANTED}' as root before starting.")
    elif most < _DESCRIPTORS_WANTED:
        yield warning("descriptors", sentence, "Hundreds of jobs need more: raise LimitNOFILE or 'ulimit -n'.")
    else:
        yield fine("descriptors", sentence)


def hidden_processes(context: DoctorContext) -> Iterator[Finding]:
    """Check that /proc shows this user the processes of others (``hidepid``)."""
    options = [
        line.rpartition(" ")[2]
        for line in read_text(context.root / "proc/self/mountinfo").splitlines()
        if " /proc " in line and " - proc " in line
    ]
    hidden = re.search(r"hidepid=(\w+)", options[-1]) if options else None
    if hidden is None or hidden.group(1) in {"0", "off"} or os.geteuid() == 0:
        yield fine("hidepid", "/proc shows all processes.")
    else:
        yield warning(
            "hidepid",
            f"/proc hides other users' processes (hidepid={hidden.group(1)}): users of GPUs cannot be identified.",
            "Run a pool for several users as root, or join the group given as gid= in /proc's mount options.",
        )


def python(context: DoctorContext) -> Iterator[Finding]:  # noqa: ARG001 - every check has the same shape
    """Check the versions of Python and SQLite."""
    versions = f"Python {sys.version.split()[0]}, SQLite {sqlite3.sqlite_version}."
    if sys.version_info[:2] < _OLDEST_PYTHON or sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        yield problem("python", f"Too old: {versions}", "Install Python 3.11 or later with SQLite 3.35 or later.")
    else:
        yield fine("python", versions)


CHECKS: list[NamedCheck] = [
    ("clock", clock),
    ("port", port),
    ("socket-path", socket_path),
    ("cgroups", control_groups),
    ("priority", priority),
    ("descriptors", descriptors),
    ("hidepid", hidden_processes),
    ("python", python),
]
