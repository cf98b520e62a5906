"""Past usage with a half-life, computed exactly and without a scan of the history.

The decayed usage of a holder at ``t`` is the integral of its allocation, where each moment counts half as much for
every half-life ``h`` since: ``sum over leases of permille * integral from start to min(end, t) of 2^((s - t) / h) ds``.
Each start also adds ``entry_s`` seconds of its size, so that a burst of starts counts before it has used anything.
Divided by ``c = h / ln 2``, the weight of the whole past, it is an average in thousandths of a GPU. With ``w(s) = 2^((s
- T) / h)`` for a fixed ``T`` that average has a closed form::

    average(t) = held now + balance * 2^(-(t - T) / h)
    balance    = sum over ended of permille * w(end) + sum over all of permille * (entry_s / c - 1) * w(start)

so a start or an end changes one number.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
_MAX_HALF_LIVES = 256.0  # half-lives after which the reference time moves, long before a double overflows


@dataclass(frozen=True, slots=True)
class Decay:
    """The rate at which past usage loses weight. Times in seconds.

    One day by default: a project that filled the pool at night has lower priority in the morning, and usage of a week
    ago no longer counts.
    """

    half_life_s: float = 86_400.0
    entry_s: float = 60.0

    @property
    def weight_s(self) -> float:
        """Return the weight of the whole past: the decayed usage of one thousandth that is held for ever."""
        return self.half_life_s / log(2)

    def lease_use(self, permille: int, start: float, end: float, at: float) -> float:
        """Return thousandth-seconds at ``at`` of a lease from ``start`` to ``end``; ``end`` is not after ``at``."""
        w_start, w_end = 2.0 ** ((start - at) / self.half_life_s), 2.0 ** ((end - at) / self.half_life_s)
        return float(permille * (self.weight_s * (w_end - w_start) + self.entry_s * w_start))


class Usage:
    """The balances of numbered holders; see the module."""

    __slots__ = ("_balance", "_reference", "decay")

    def __init__(self, decay: Decay) -> None:
        self.decay = decay
        self._balance: Floats = np.zeros(8)
        self._reference: float | None = None

    def started(self, holder: int, permille: int, at: float) -> None:
        """Add a lease that began; a negative size reverts it."""
        self._add(holder, permille * (self.decay.entry_s / self.decay.weight_s - 1.0), at)

    def ended(self, holder: int, permille: int, at: float) -> None:
        """End a lease that was started."""
        self._add(holder, float(permille), at)

    def remember(self, holder: int, permille_s: float, at: float) -> None:
        """Add decayed usage, as of ``at``, of leases that have ended."""
        self._add(holder, permille_s / self.decay.weight_s, at)

    def average(self, held: npt.NDArray[np.int64], now: float) -> Floats:
        """Return the recent average of the first holders in thousandths, given their current ``held``."""
        return np.maximum(held + self._padded(len(held)) * self._weight(now), 0.0)

    def average_of(self, holder: int, held: int, now: float) -> float:
        """Return ``average`` of one holder."""
        balance = self._balance[holder] if holder < len(self._balance) else 0.0
        return max(held + float(balance) * self._weight(now), 0.0)

    def _weight(self, now: float) -> float:
        if self._reference is None:
            return 1.0
        return float(2.0 ** min((self._reference - now) / self.decay.half_life_s, 0.0))  # 0: no reference yet

    def _padded(self, count: int) -> Floats:
        if count > len(self._balance):
            self._balance = np.concatenate([self._balance, np.zeros(2 * count - len(self._balance))])
        return self._balance[:count]

    def _add(self, holder: int, amount: float, at: float) -> None:
        self._padded(holder + 1)
        if self._reference is None:
            self._reference = at
        lives = (at - self._reference) / self.decay.half_life_s
        if lives > _MAX_HALF_LIVES:
            self._balance *= 2.0**-lives
            self._reference, lives = at, 0.0
        self._balance[holder] += amount * 2.0**lives
