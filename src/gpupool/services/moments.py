"""How the pool stood at moments of its past: who waited, what was held, what was left over in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Moments:
    """``count`` moments, ``step_s`` seconds apart, from ``first`` on (seconds since the epoch)."""

    first: float
    step_s: float
    count: int

    @property
    def last(self) -> float:
        """The latest of them."""
        return self.first + (self.count - 1) * self.step_s

    def times(self) -> tuple[float, ...]:
        """All of them."""
        return tuple(self.first + number * self.step_s for number in range(self.count))


@dataclass(frozen=True, slots=True)
class Held:
    """Thousandths of GPUs at each moment.

    ``held`` under leases; ``pieces``: free on GPUs that were partly held; ``partly``: how many GPUs those were.
    """

    held: tuple[int, ...]
    pieces: tuple[int, ...]
    partly: tuple[int, ...]


class PastMoments(Protocol):
    """The part of the store that knows how things stood. Each method is one transaction."""

    async def waiting(self, moments: Moments) -> Sequence[int]:
        """How many workloads with GPUs of their own had been submitted and not started (nor ended) at each moment."""

    async def held(self, moments: Moments) -> Held:
        """What was held, and what lay in pieces, at each moment."""
