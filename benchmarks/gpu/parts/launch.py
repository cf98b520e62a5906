"""Time that the library adds to a launch, measured by a program in C."""

from __future__ import annotations

from statistics import median

from bench import WHOLE, Bench, Place, Work, part

from gpupool.bench.figures import Figure, measured
from parts.tasks import Task

TITLE = "Launch of an empty kernel"
PART = "launch"
PAIRS = 5


def tasks() -> list[Task]:
    """Return CPU nanoseconds per launch, a whole GPU and a 1.0 slice alternating."""
    return [Task(PART, "cost", 30, _added)]


def _added(bench: Bench) -> list[Figure]:
    pairs = [(_ns(bench, WHOLE), _ns(bench, part(1.0))) for _ in range(2 if bench.quick else PAIRS)]
    added = median(held - bare for bare, held in pairs)
    bare = median(bare for bare, _ in pairs)
    return [
        measured(PART, "without the library", bare, "ns", samples=len(pairs)),
        measured(PART, "the library adds", added, "ns", samples=len(pairs), goal="at most 100 ns", pairs=pairs),
    ]


def _ns(bench: Bench, place: Place) -> float:
    return float(bench.one(Work(place, "launch"))["ns"])
