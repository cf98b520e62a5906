"""Time that the library adds to a launch."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from bench import WHOLE, Bench, Place, Work, part

from gpupool.bench.figures import Figure, measured
from parts.trying import tried

TITLE = "Launch of an empty kernel"
PAIRS = 5


def measure(bench: Bench) -> Iterator[Figure]:
    """Measure CPU nanoseconds per launch, a whole GPU and a 1.0 slice alternating."""
    yield tried(TITLE, "the library adds", lambda: _added(bench))


def _added(bench: Bench) -> Figure:
    pairs = [(_ns(bench, WHOLE), _ns(bench, part(1.0))) for _ in range(2 if bench.quick else PAIRS)]
    differences = [held - bare for bare, held in pairs]
    return measured(
        TITLE, "the library adds", median(differences), "ns", samples=len(pairs), goal="at most 100 ns", pairs=pairs
    )


def _ns(bench: Bench, place: Place) -> float:
    return float(bench.one(Work(place, "hook.py"))["ns"])
