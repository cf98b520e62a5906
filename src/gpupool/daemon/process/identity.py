"""Process identities (pid and start time), and locks that end with the process that holds them."""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from gpupool.node.host.locks import take as take_lock
from gpupool.node.host.process_tree import start_time

_PR_SET_PDEATHSIG = 1
_LOCK_POLL_S = 0.03


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process, distinct from a later one with its pid; ``start_ticks`` are clock ticks since boot."""

    pid: int
    start_ticks: int

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """Return the identity of a process that exists and is not a zombie, else None."""
        start_ticks = start_time(pid)
        return None if start_ticks is None else cls(pid, start_ticks)

    @classmethod
    def from_dict(cls, data: Any) -> Self | None:
        """Rebuild from ``{"pid", "start_ticks"}``; None for anything else."""
        try:
            return cls(int(data["pid"]), int(data["start_ticks"]))
        except (TypeError, KeyError, ValueError):
            return None

    @property
    def alive(self) -> bool:
        """Return whether this process still runs."""
        return ProcessIdentity.of(self.pid) == self

    def send(self, signum: signal.Signals) -> bool:
        """Signal this process; return False if it has ended. Raises ``PermissionError`` for another user's process."""
        try:
            fd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            if not self.alive:
                return False
            signal.pidfd_send_signal(fd, signum)
        except ProcessLookupError:
            return False
        finally:
            os.close(fd)
        return True

    def wait_gone(self, timeout_s: float) -> bool:
        """Wait until it has ended; return whether it has."""
        try:
            fd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        try:
            if not self.alive:
                return True
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            return bool(poll.poll(timeout_s * 1000))
        finally:
            os.close(fd)


def die_with_parent(signum: signal.Signals, parent_pid: int) -> None:
    """Have the kernel signal this process when its parent dies; at once if it already has."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0)
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signum)


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock; a missing or unreadable file is not locked."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


@contextmanager
def waiting_for_lock(path: Path, timeout_s: float) -> Iterator[bool]:
    """Hold a lock for the block; yield whether it was acquired in time. Raises ``OSError``."""
    deadline = time.monotonic() + timeout_s
    fd = take_lock(path)
    while fd is None and time.monotonic() < deadline:
        time.sleep(_LOCK_POLL_S)
        fd = take_lock(path)
    try:
        yield fd is not None
    finally:
        if fd is not None:
            os.close(fd)
