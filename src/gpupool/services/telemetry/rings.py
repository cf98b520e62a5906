"""Samples of the last ten minutes as arrays, one ring for each object. A thousand replicas take about 20 MB."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

KEPT_S = 600.0
_MOST = 600
_FIRST = 32

K = TypeVar("K", bound=Hashable)
Times = NDArray[np.float64]
Values = NDArray[np.float32]


class Ring:
    """Rows of numbers with their times; NaN means unknown. The ring grows until it holds ten minutes of samples."""

    __slots__ = ("_count", "_next", "_times", "_values")

    def __init__(self, width: int) -> None:
        self._times: Times = np.empty(_FIRST)
        self._values: Values = np.empty((_FIRST, width), np.float32)
        self._next = 0
        self._count = 0

    def add(self, at: float, row: Sequence[float]) -> None:
        """Add a row; it replaces the oldest one when the ring is full."""
        if self._next == len(self._times) and self._next < _MOST:
            self._grow()
        place = self._next % len(self._times)
        self._times[place] = at
        self._values[place] = row
        self._next = place + 1
        self._count = min(self._count + 1, len(self._times))

    def _grow(self) -> None:
        room = min(_MOST, 4 * len(self._times))
        self._times = np.resize(self._times, room)
        self._values = np.resize(self._values, (room, self._values.shape[1]))

    @property
    def last_at(self) -> float:
        """Return the time of the row that was added last."""
        return float(self._times[self._next - 1])

    def between(self, since: float, until: float) -> tuple[Times, Values]:
        """Return the rows with ``since <= at < until``, ordered by time."""
        times, values = self._times[: self._count], self._values[: self._count]
        wanted = (times >= since) & (times < until)
        times, values = times[wanted], values[wanted]
        order = np.argsort(times, kind="stable")
        return times[order], values[order]


class Rings(Generic[K]):
    """One ring for each key, at most ``most`` of them.

    ``prune`` drops rings without a row in the last ten minutes. When a key does not fit, the oldest tenth is dropped.
    """

    def __init__(self, width: int, most: int) -> None:
        self.width = width
        self._most = most
        self._rings: dict[K, Ring] = {}

    def add(self, key: K, at: float, row: Sequence[float]) -> None:
        """Add a row to the ring of a key."""
        ring = self._rings.get(key)
        if ring is None:
            if len(self._rings) >= self._most:
                self._thin_out()
            ring = self._rings[key] = Ring(self.width)
        ring.add(at, row)

    def get(self, key: K) -> Ring | None:
        """Return the ring of a key, if there is one."""
        return self._rings.get(key)

    def __iter__(self) -> Iterator[K]:
        return iter(self._rings)

    def __len__(self) -> int:
        return len(self._rings)

    def prune(self, now: float) -> None:
        """Drop rings without a row in the last ten minutes."""
        self._rings = {key: ring for key, ring in self._rings.items() if ring.last_at > now - KEPT_S}

    def _thin_out(self) -> None:
        """Drop a tenth of the allowed number of rings, those whose last row is oldest."""
        by_age = sorted(self._rings, key=lambda key: self._rings[key].last_at)
        for key in by_age[: max(1, self._most // 10)]:
            del self._rings[key]
