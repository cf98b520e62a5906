"""Jobs that write ten times a second that they run, and as which attempt, to one file that all machines see."""

from __future__ import annotations

import itertools
from collections import defaultdict
from pathlib import Path

TICK = 'while :; do echo "$GPUPOOL_ATTEMPT $(date +%s.%N)" >> {}; sleep 0.1; done'


def attempts(path: Path) -> dict[int, tuple[float, float]]:
    """Return when each attempt ran first and last."""
    found: dict[int, list[float]] = defaultdict(list)
    for line in path.read_text().splitlines() if path.exists() else ():
        attempt, at = line.split()
        found[int(attempt)].append(float(at))
    return {attempt: (min(times), max(times)) for attempt, times in found.items()}


def overlap_s(path: Path) -> float:
    """Return for how many seconds an attempt ran although the next one had begun; negative: the shortest gap."""
    ran = [times for _, times in sorted(attempts(path).items())]
    return max((before[1] - after[0] for before, after in itertools.pairwise(ran)), default=float("-inf"))
