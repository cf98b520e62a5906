"""How often a peer may show a wrong token."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable

from gpupool.domain.errors import ErrorCode, GpupoolError

_MOST_PEERS = 4096


class FailedAttempts:
    """Wrong tokens by peer address over the last ``window_s`` seconds; remembers a bounded number of peers."""

    def __init__(self, limit: int = 10, window_s: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._window_s = window_s
        self._clock = clock
        self._times: OrderedDict[str, deque[float]] = OrderedDict()

    def check(self, peer: str) -> None:
        """Raise ``GpupoolError(TOO_MANY_ATTEMPTS)`` when the peer has failed too often just now."""
        times = self._times.get(peer)
        if times is None:
            return
        while times and times[0] <= self._clock() - self._window_s:
            times.popleft()
        if len(times) >= self._limit:
            raise GpupoolError(
                ErrorCode.TOO_MANY_ATTEMPTS,
                "Too many wrong tokens came from this address.",
                f"Wait {self._window_s:.0f} seconds and use a valid token.",
            )

    def failed(self, peer: str) -> None:
        """Count a wrong token."""
        times = self._times.setdefault(peer, deque(maxlen=self._limit))
        times.append(self._clock())
        self._times.move_to_end(peer)
        while len(self._times) > _MOST_PEERS:
            self._times.popitem(last=False)

    def forget(self, peer: str) -> None:
        """Start anew for a peer."""
        self._times.pop(peer, None)
