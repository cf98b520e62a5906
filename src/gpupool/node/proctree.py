"""Processes as /proc shows them: who descends from whom, what they used, which belong to a program by its mark."""

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
    """One process: ``start`` (ticks since boot) with ``pid`` names it for good; ``cpu_s`` includes reaped children."""

    pid: int
    ppid: int
    session: int
    start: int
    state: str
    own_cpu_s: float
    reaped_cpu_s: float

    @property
    def cpu_s(self) -> float:
        """Seconds of processor time, those of its reaped children included."""
        return self.own_cpu_s + self.reaped_cpu_s


def read_proc(pid: int | str) -> Proc | None:
    """One process; None when there is none by that number."""
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
    """When a process started, in ticks since boot; None for none and for one that is dead but not yet reaped."""
    proc = read_proc(pid)
    return None if proc is None or proc.state in "ZX" else proc.start


def scan() -> dict[int, Proc]:
    """All processes by pid."""
    found = (read_proc(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208 - names only, often
    return {proc.pid: proc for proc in found if proc is not None}


def children_of(table: dict[int, Proc]) -> dict[int, list[int]]:
    """The pids of the children of each pid that has any."""
    children: dict[int, list[int]] = {}
    for proc in table.values():
        children.setdefault(proc.ppid, []).append(proc.pid)
    return children


def descendants(roots: Iterable[int], children: dict[int, list[int]]) -> set[int]:
    """The pids below the roots, without the roots."""
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        fresh = [pid for pid in children.get(waiting.pop(), ()) if pid not in found]
        found.update(fresh)
        waiting.extend(fresh)
    return found


def marked(key: str, table: dict[int, Proc]) -> set[int]:
    """The pids that were started with the mark of a program in their environment, as far as we may look."""
    mark = f"{KEY_VARIABLE}={key}".encode()
    return {pid for pid in table if mark in _environ(pid)}


def _environ(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123 - called for every process
            return file.read().split(b"\0")
    except OSError:
        return []


def alive(pids: Iterable[int], table: dict[int, Proc]) -> set[int]:
    """Those that still run: neither gone nor merely unreaped."""
    return {pid for pid in pids if pid in table and table[pid].state not in "ZX"}


def catches(pid: int, signum: int) -> bool:
    """Whether a process has a handler of its own for a signal."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:  # noqa: PTH123 - called for every process of a tree
            lines = file.read().split(b"\n")
    except OSError:
        return False
    caught = next((line.split()[1] for line in lines if line.startswith(b"SigCgt:")), b"0")
    return bool(int(caught, 16) >> (signum - 1) & 1)


def send_below(root: int, signals: Iterable[int], *, catching: bool) -> None:
    """Signal all descendants of a process; ``catching``: only those with a handler of their own for it."""
    table = scan()
    tree = descendants([root], children_of(table))
    for signum in signals:
        for pid in tree:
            if not catching or catches(pid, signum):
                send(table[pid], signum)


def send(proc: Proc, signum: int) -> None:
    """Signal exactly this process, never another that got its number; gone or forbidden is silently nothing."""
    with contextlib.suppress(OSError):
        fd = os.pidfd_open(proc.pid)
        try:
            now = read_proc(proc.pid)
            if now is not None and now.start == proc.start:
                signal.pidfd_send_signal(fd, signum)
        finally:
            os.close(fd)


def have_children() -> bool:
    """Whether any descendant is left: as their subreaper it would be a child of this process, or its ancestor."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
