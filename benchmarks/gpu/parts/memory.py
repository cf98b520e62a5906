"""The memory limit, found by bisection for each way to allocate."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from bench import Bench, FailedError, Work, part

from gpupool.bench.figures import Figure, measured
from parts.trying import tried

TITLE = "Memory limit of a 0.25 slice"
WAYS = ("alloc", "pitch", "managed", "async", "pool", "vmm", "array")
FRACTION = 0.25


def measure(bench: Bench) -> Iterator[Figure]:
    """Measure the largest allocation plus earlier use, minus the limit, MiB; negative: less than the limit."""
    for way in WAYS:
        yield tried(TITLE, way, partial(_one, bench, way))


def _one(bench: Bench, way: str) -> Figure:
    found = bench.one(Work(part(FRACTION), "memory.py", ("--way", way)))
    limit = bench.gpu["memory_mib"] * FRACTION
    if abs(found["total_mib"] - limit) > 1:
        raise FailedError(f"the program sees {found['total_mib']} MiB, its slice has {limit}")
    error = found["most_mib"] + found["before_mib"] - limit
    goal = f"within {max(limit / 100, 64):.0f} MiB"
    return measured(TITLE, way, error, "MiB", samples=found["tries"], goal=goal, **found)
