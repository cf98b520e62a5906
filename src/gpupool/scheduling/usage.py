"""Use over time: what was held lately, with a half-life, exact and without looking back.

The decayed use of a holder at ``t`` is the integral of what it held, each moment counting half as much for every
half-life ``h`` since: ``sum over leases of permille * integral from start to min(end, t) of 2^((s - t) / h) ds``,
and for every start ``entry_s`` seconds of its size on top, so that a burst of starts counts before it has used
anything. Divided by ``c = h / ln 2``, the weight of all the past, it is an average in thousandths of a GPU. With
``w(s) = 2^((s - T) / h)`` for a fixed ``T`` that average has a closed form::

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
_MOST_HALF_LIVES = 256.0  # before the reference moves: far from where a double overflows


@dataclass(frozen=True, slots=True)
class Decay:
    """How use is forgotten. Times in seconds.

    A day by default: who filled the pool at night gives way in the morning, and a week ago no longer counts.
    """

    half_life_s: float = 86_400.0
    entry_s: float = 60.0

    @property
    def weight_s(self) -> float:
        """The weight of all the past: what holding one thousandth for ever comes to."""
        return self.half_life_s / log(2)

    def lease_use(self, permille: int, start: float, end: float, at: float) -> float:
        """Thousandth-seconds at ``at`` of a lease that was held from ``start`` to ``end``, not after ``at``."""
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
        """A lease began; negative: it never did."""
        self._add(holder, permille * (self.decay.entry_s / self.decay.weight_s - 1.0), at)

    def ended(self, holder: int, permille: int, at: float) -> None:
        """A lease that began is over."""
        self._add(holder, float(permille), at)

    def remember(self, holder: int, permille_s: float, at: float) -> None:
        """Decayed use, as of ``at``, of leases that are over."""
        self._add(holder, permille_s / self.decay.weight_s, at)

    def average(self, held: npt.NDArray[np.int64], now: float) -> Floats:
        """What each of the first holders held lately on average, in thousandths, holding ``held`` now."""
        return np.maximum(held + self._padded(len(held)) * self._weight(now), 0.0)

    def average_of(self, holder: int, held: int, now: float) -> float:
        """``average`` of one."""
        balance = self._balance[holder] if holder < len(self._balance) else 0.0
        return max(held + float(balance) * self._weight(now), 0.0)

    def _weight(self, now: float) -> float:
        if self._reference is None:
            return 1.0
        return float(2.0 ** min((self._reference - now) / self.decay.half_life_s, 0.0))  # 0: nobody has looked yet

    def _padded(self, count: int) -> Floats:
        if count > len(self._balance):
            self._balance = np.concatenate([self._balance, np.zeros(2 * count - len(self._balance))])
        return self._balance[:count]

    def _add(self, holder: int, amount: float, at: float) -> None:
        self._padded(holder + 1)
        if self._reference is None:
            self._reference = at
        lives = (at - self._reference) / self.decay.half_life_s
        if lives > _MOST_HALF_LIVES:
            self._balance *= 2.0**-lives
            self._reference, lives = at, 0.0
        self._balance[holder] += amount * 2.0**lives
