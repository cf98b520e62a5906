"""Numbers that grow: histograms, and counts by label."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

from gpupool.domain.workload import WorkloadKind

CYCLE_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
WAIT_BOUNDS_S = (0.1, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 12 * 3600.0, 86400.0, 7 * 86400.0)


class Histogram:
    """How many of the values were at most each of ``bounds``, and their sum."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.total = 0.0
        self._counts = [0] * (len(bounds) + 1)

    def add(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[float, int]]:
        """Each bound, the last infinite, with how many values were not above it."""
        below, found = 0, []
        for bound, count in zip((*self.bounds, float("inf")), self._counts, strict=True):
            below += count
            found.append((bound, below))
        return found


@dataclass(slots=True)
class Counts:
    """What this control plane has counted since it was started."""

    events: Counter[str] = field(default_factory=Counter)
    warnings: Counter[tuple[str, str]] = field(default_factory=Counter)
    cycles: Histogram = field(default_factory=lambda: Histogram(CYCLE_BOUNDS_S))
    waits: dict[str, Histogram] = field(
        default_factory=lambda: {kind.value: Histogram(WAIT_BOUNDS_S) for kind in WorkloadKind}
    )

    def waited(self, kind: str, seconds: float) -> None:
        """A replica of a workload of this kind got its GPUs after so long."""
        self.waits[kind].add(max(0.0, seconds))
