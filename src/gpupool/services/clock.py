"""The clock of the pool."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The source of time; tests have their own."""

    def now(self) -> float:
        """Return seconds since the epoch; may jump."""

    def monotonic(self) -> float:
        """Return seconds that never jump back."""


class SteadyClock:
    """A clock that reads wall-clock time once and then follows the monotonic clock.

    Otherwise a change of the system clock (by hand, or by NTP after boot) could end leases early or make waits endless.
    The price: after such a change, the pool's times differ from the system clock until the control plane is restarted.
    """

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def now(self) -> float:
        """Return the time in seconds since the epoch."""
        return self._offset + time.monotonic()

    def monotonic(self) -> float:
        """Return the monotonic time in seconds."""
        return time.monotonic()
