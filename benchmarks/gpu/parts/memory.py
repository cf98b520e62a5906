"""The memory limit, found by bisection for each way to allocate."""

from __future__ import annotations

from functools import partial

from bench import Bench, FailedError, Work, part

from gpupool.bench.figures import Figure, measured
from parts.tasks import Task

TITLE = "Memory limit of a 0.25 slice: largest allocation plus earlier use, minus the limit"
PART = "memory"
WAYS = ("alloc", "async", "vmm", "managed", "pitch", "pool", "array")
FIRST = 3  # in tier 1
FRACTION = 0.25


def tasks() -> list[Task]:
    """Return MiB for each way; negative: less than the limit."""
    return [
        Task(PART, way, 15, partial(_one, way=way), tier=1 if number < FIRST else 2) for number, way in enumerate(WAYS)
    ]


def _one(bench: Bench, way: str) -> Figure:
    found = bench.one(Work(part(FRACTION), "memory.py", ("--way", way)))
    limit = bench.gpu["memory_mib"] * FRACTION
    if abs(found["total_mib"] - limit) > 1:
        raise FailedError(f"the program sees {found['total_mib']} MiB, its slice has {limit}")
    error = found["most_mib"] + found["before_mib"] - limit
    goal = f"within {max(limit / 100, 64):.0f} MiB"
    return measured(PART, way, error, "MiB", samples=found["tries"], goal=goal, **found)
