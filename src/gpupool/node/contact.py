"""When this node was heard by its control plane last, kept where every shepherd can read it.

What counts is contact that both sides know of: a ping that was answered, and of which a later ping says that the
answer has come. So the time kept here is never later than what the control plane holds for its last contact, whatever
was delayed on the way, and pings that wait in a buffer while an agent is frozen count for nothing when it goes on.
Times are those of CLOCK_BOOTTIME, which also runs while the machine is suspended.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from gpupool.node.paths import boot_id

LOOK_EVERY_S = 5.0  # a poll does not wake by a clock that counts suspension: look again after a resume
_LINE = 64  # bytes: written in one call, so that nobody reads half of it
_MOST_PINGS = 64


def boottime() -> float:
    """Seconds since the machine started, those in suspension included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Contact:
    """The file that says it; one agent writes it, shepherds read it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._boot = boot_id()
        self._known: float | None = None

    def last(self) -> float | None:
        """When there was contact last; None: not since the machine started, as far as is known."""
        with contextlib.suppress(OSError, ValueError):
            boot, _, at = self._path.read_text(encoding="ascii").partition(" ")
            if boot == self._boot:
                self._known = float(at)
        return self._known

    def confirm(self, at: float) -> None:
        """There was contact at this time. Raises OSError."""
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
        """Seconds since the last contact; without any, since the machine started."""
        return boottime() - (self.last() or 0.0)


class Pings:
    """Those of one connection."""

    def __init__(self, contact: Contact) -> None:
        self._contact = contact
        self._came: dict[int, float] = {}

    def take(self, number: int, answered: int) -> None:
        """A ping has come; the control plane has had the answer to ``answered``. Raises OSError."""
        at = self._came.get(answered)
        if at is not None:
            self._contact.confirm(at)
        self._came = {n: came for n, came in self._came.items() if n >= answered}
        if len(self._came) < _MOST_PINGS:
            self._came[number] = boottime()


class Fence:
    """A program that must not run on unheard: looked at by its shepherd. ``after_s`` None: it may."""

    def __init__(self, contact: Contact, after_s: float | None) -> None:
        self._contact = contact
        self._after_s = after_s
        self._look_at: float | None = None if after_s is None else 0.0  # monotonic

    @property
    def look_at(self) -> float | None:
        """When to look again, in monotonic seconds; None: never."""
        return self._look_at

    def passed(self, now: float) -> bool:
        """Whether the time is over, if it is due to be looked at; true once. ``now`` is monotonic."""
        if self._after_s is None or self._look_at is None or now < self._look_at:
            return False
        left_s = self._after_s - self._contact.silent_for_s()
        self._look_at = now + min(LOOK_EVERY_S, left_s) if left_s > 0 else None
        return left_s <= 0
