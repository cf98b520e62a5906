"""The time of the last contact between this node and its control plane, in a file that every shepherd can read.

Contact counts only when both sides know of it: the node answered a ping, and a later ping confirms that the answer
arrived. So the time stored here is never later than the last contact that the control plane knows, even with delays.
Pings that wait in a buffer while the agent is frozen do not count when it continues.

Times are those of CLOCK_BOOTTIME, which also runs while the machine is suspended.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from gpupool.node.host.paths import boot_id

CHECK_INTERVAL_S = 5.0  # poll() does not count suspension: check again soon after a resume
_LINE = 64  # bytes: written in one call, so that no reader sees half of it
_MAX_PINGS = 64


def boottime() -> float:
    """Return seconds since the machine started, including suspension."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Contact:
    """The file with the time of the last contact. One agent writes it, shepherds read it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._boot = boot_id()
        self._known: float | None = None

    def last(self) -> float | None:
        """Return the time of the last contact; None if none is known since the machine started."""
        with contextlib.suppress(OSError, ValueError):
            boot, _, at = self._path.read_text(encoding="ascii").partition(" ")
            if boot == self._boot:
                self._known = float(at)
        return self._known

    def confirm(self, at: float) -> None:
        """Record that there was contact at this time. Raises OSError."""
        if self._known is not None and at <= self._known:
            return
        line = f"{self._boot} {at:.3f}".ljust(_LINE).encode()
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(fd, line, 0)
        finally:
            os.close(fd)
        self._known = at

    def silent_for_s(self) -> float:
        """Return seconds since the last contact, or since the machine started if there was none."""
        return boottime() - (self.last() or 0.0)


class Pings:
    """The pings of one connection. ``clock`` must also count while the machine is suspended."""

    def __init__(self, contact: Contact, clock: Callable[[], float]) -> None:
        self._contact = contact
        self._clock = clock
        self._came: dict[int, float] = {}

    def take(self, number: int, answered: int) -> None:
        """Record a ping. ``answered`` is the last ping whose answer the control plane received. Raises OSError."""
        at = self._came.get(answered)
        if at is not None:
            self._contact.confirm(at)
        self._came = {n: came for n, came in self._came.items() if n >= answered}
        if len(self._came) < _MAX_PINGS:
            self._came[number] = self._clock()


class Fence:
    """The check by which a shepherd ends a program after too long a silence. ``after_s`` None means no fence."""

    def __init__(self, contact: Contact, after_s: float | None) -> None:
        self._contact = contact
        self._after_s = after_s
        self._check_at: float | None = None if after_s is None else 0.0  # monotonic

    @property
    def check_at(self) -> float | None:
        """Return when to check again, in monotonic seconds; None for never."""
        return self._check_at

    def expired(self, now: float) -> bool:
        """Return True once, when the silence has reached its limit. ``now`` is in monotonic seconds."""
        if self._after_s is None or self._check_at is None or now < self._check_at:
            return False
        left_s = self._after_s - self._contact.silent_for_s()
        self._check_at = now + min(CHECK_INTERVAL_S, left_s) if left_s > 0 else None
        return left_s <= 0
