"""Processes in /proc: their descendants, their CPU time, and which program they belong to."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass

KEY_VARIABLE = "GPUPOOL_REPLICA_KEY"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Proc:
    """One process. ``pid`` and ``start`` (ticks since boot) identify it; ``cpu_s`` includes reaped children."""

    pid: int
    ppid: int
    session: int
    start: int
    state: str
    own_cpu_s: float
    reaped_cpu_s: float

    @property
    def cpu_s(self) -> float:
        """Return seconds of CPU time, including reaped children."""
        return self.own_cpu_s + self.reaped_cpu_s


def read_proc(pid: int | str) -> Proc | None:
    """Return one process; None if the pid does not exist."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(fd, 1024)
        finally:
            os.close(fd)
    except OSError:
        return None
    rest = text[text.rindex(b")") + 2 :].split()
    own = (int(rest[11]) + int(rest[12])) / _TICKS_PER_S
    reaped = (int(rest[13]) + int(rest[14])) / _TICKS_PER_S
    return Proc(int(pid), int(rest[1]), int(rest[3]), int(rest[19]), rest[0].decode(), own, reaped)


def start_time(pid: int) -> int | None:
    """Return when a process started, in ticks since boot; None if it is gone or a zombie."""
    proc = read_proc(pid)
    return None if proc is None or proc.state in "ZX" else proc.start


def scan() -> dict[int, Proc]:
    """Return all processes by pid."""
    found = (read_proc(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208 - names only, often
    return {proc.pid: proc for proc in found if proc is not None}


def children_of(table: dict[int, Proc]) -> dict[int, list[int]]:
    """Return the pids of the children of each pid that has any."""
    children: dict[int, list[int]] = {}
    for proc in table.values():
        children.setdefault(proc.ppid, []).append(proc.pid)
    return children


def descendants(roots: Iterable[int], children: dict[int, list[int]]) -> list[int]:
    """Return the pids below the roots, without the roots; a parent comes before its children."""
    found: dict[int, None] = {}
    waiting = list(roots)
    while waiting:
        fresh = [pid for pid in children.get(waiting.pop(), ()) if pid not in found]
        found.update(dict.fromkeys(fresh))
        waiting.extend(fresh)
    return list(found)


def marked(key: str, table: dict[int, Proc]) -> set[int]:
    """Return the pids whose environment has the mark of a program, as far as it is readable."""
    return with_variable(KEY_VARIABLE, key, table)


def with_variable(name: str, value: str, table: dict[int, Proc]) -> set[int]:
    """Return the pids whose environment has a variable with this value, as far as it is readable."""
    mark = f"{name}={value}".encode()
    return {pid for pid in table if mark in _environ(pid)}


def _environ(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123 - called for every process
            return file.read().split(b"\0")
    except OSError:
        return []


def alive(pids: Iterable[int], table: dict[int, Proc]) -> set[int]:
    """Return those pids that exist and are not zombies."""
    return {pid for pid in pids if pid in table and table[pid].state not in "ZX"}


def catches(pid: int, signum: int) -> bool:
    """Return True if a process has a handler of its own for a signal."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:  # noqa: PTH123 - called for every process of a tree
            lines = file.read().split(b"\n")
    except OSError:
        return False
    caught = next((line.split()[1] for line in lines if line.startswith(b"SigCgt:")), b"0")
    return bool(int(caught, 16) >> (signum - 1) & 1)


def send_below(root: int, signals: Iterable[int], *, catching: bool) -> None:
    """Signal all descendants of a process; ``catching``: only those with a handler for the signal.

    Parents are signalled first. A shell whose child is signalled first can exit with the status of that child.
    """
    table = scan()
    tree = descendants([root], children_of(table))
    for signum in signals:
        for pid in tree:
            if not catching or catches(pid, signum):
                send(table[pid], signum)


def send_to_session(root: int, session: int, signals: Iterable[int]) -> None:
    """Signal the descendants of a process that are in a session."""
    table = scan()
    for signum in signals:
        for pid in descendants([root], children_of(table)):
            if table[pid].session == session:
                send(table[pid], signum)


def send(proc: Proc, signum: int) -> None:
    """Signal exactly this process, never another that reuses its pid; errors are ignored."""
    with contextlib.suppress(OSError):
        fd = os.pidfd_open(proc.pid)
        try:
            now = read_proc(proc.pid)
            if now is not None and now.start == proc.start:
                signal.pidfd_send_signal(fd, signum)
        finally:
            os.close(fd)


def have_children() -> bool:
    """Return True if any descendant is left. We are their subreaper, so orphans are our children."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
