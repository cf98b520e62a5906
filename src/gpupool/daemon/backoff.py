"""When to start a program again that has died. Pure."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_DELAY_S = 0.05
LONGEST_DELAY_S = 5.0
HEALTHY_LIFE_S = 30.0
LOOPING_AFTER = 5


@dataclass(frozen=True, slots=True)
class Backoff:
    """How often a program has died in a row without having lived for ``HEALTHY_LIFE_S``."""

    quick_deaths: int = 0

    def after_death(self, lived_s: float) -> Backoff:
        """What holds after one more death; a long life wipes the slate clean before it."""
        return Backoff(1 if lived_s >= HEALTHY_LIFE_S else self.quick_deaths + 1)

    @property
    def delay_s(self) -> float:
        """How long to wait before the next start: 50 ms, doubling, at most 5 s; 0 before the first death."""
        if not self.quick_deaths:
            return 0.0
        return min(LONGEST_DELAY_S, FIRST_DELAY_S * 2.0 ** min(self.quick_deaths - 1, 10))

    @property
    def looping(self) -> bool:
        """Whether starting it again has not helped so far."""
        return self.quick_deaths >= LOOPING_AFTER
