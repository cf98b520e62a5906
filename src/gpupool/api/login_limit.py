"""Limits on wrong credentials, for each credential and each address. Valid credentials are never refused by them."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager

from gpupool.domain.errors import ErrorCode, GpupoolError

MAX_KEYS = 4096
PREFIX_LENGTH = 12  # of a credential: its prefix contains the token's id, but nothing of the secret
_COUNTED = frozenset({ErrorCode.UNAUTHENTICATED})


class FailedAttempts:
    """Counts wrong credentials over the last ``window_s`` seconds, for a bounded number of addresses.

    ``limit`` applies to credentials of one address with the same prefix (a script with an old token), ``peer_limit`` to
    all credentials of the address.
    """

    def __init__(
        self,
        limit: int = 10,
        peer_limit: int = 100,
        window_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._window_s = window_s
        self._clock = clock
        self._limits = (limit, peer_limit)
        self._times: OrderedDict[tuple[str, str | None], deque[float]] = OrderedDict()

    @contextmanager
    def counted(self, peer: str, credential: str, codes: AbstractSet[ErrorCode] = _COUNTED) -> Iterator[None]:
        """Check a credential in the block; if that raises one of ``codes``, count the failure.

        Raises TOO_MANY_ATTEMPTS instead if a limit was already reached. The credential is always checked first.
        """
        try:
            yield
        except GpupoolError as error:
            if error.code in codes and self._too_many(peer, credential[:PREFIX_LENGTH]):
                raise GpupoolError(
                    ErrorCode.TOO_MANY_ATTEMPTS,
                    f"{error.message.rstrip('.')}, and too many wrong credentials came from this address.",
                    f"Wait {self._window_s:.0f} seconds, or use a valid token.",
                ) from error
            raise

    def _too_many(self, peer: str, prefix: str) -> bool:
        """Count a failure; return whether a limit was reached before it."""
        now = self._clock()
        alike = self._add((peer, prefix), self._limits[0], now)
        of_peer = self._add((peer, None), self._limits[1], now)
        return alike or of_peer

    def _add(self, key: tuple[str, str | None], limit: int, now: float) -> bool:
        times = self._times.setdefault(key, deque(maxlen=limit))
        while times and times[0] <= now - self._window_s:
            times.popleft()
        full = len(times) >= limit
        if not full:
            times.append(now)
        self._times.move_to_end(key)
        while len(self._times) > MAX_KEYS:
            self._times.popitem(last=False)
        return full

    def forget(self, peer: str) -> None:
        """Reset the counters of an address."""
        for key in [key for key in self._times if key[0] == peer]:
            del self._times[key]
