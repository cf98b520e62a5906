"""Time that does not jump while the pool runs."""

from __future__ import annotations

import time


class SteadyClock:
    """Wall-clock time read once, carried on by the monotonic clock.

    A clock that is set while the pool runs (by hand, or by NTP after boot) would otherwise end leases early or make
    waits endless. The price: after such a jump the pool's times differ from the wall's until the control plane starts
    again.
    """

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._offset + time.monotonic()

    def monotonic(self) -> float:
        """Seconds that never jump."""
        return time.monotonic()
