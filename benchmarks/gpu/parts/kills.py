"""Kill -9 during allocations and launches: time until the slice has its memory back, and memory that stays charged."""

from __future__ import annotations

from bench import Bench, Work, part

from gpupool.bench.figures import Figure, measured
from parts.tasks import Task

TITLE = "Kill -9 of a process of a slice"
PART = "kills"
TIMES = 50


def tasks() -> list[Task]:
    """Return milliseconds from a kill until the slice shows as much free memory as before; and what it never got."""
    return [Task(PART, "kills", 90, _killed)]


def _killed(bench: Bench) -> list[Figure]:
    found = bench.one(Work(part(0.25), "kills.py", ("--times", str(5 if bench.quick else TIMES))))
    back = sorted(found["back_ms"])
    times = {"memory is back after, median": back[len(back) // 2], "memory is back after, at worst": back[-1]}
    return [
        *(measured(PART, name, ms, "ms", samples=len(back), goal="at most 1000 ms") for name, ms in times.items()),
        measured(PART, "never given back", found["lost_mib"], "MiB", samples=len(back), goal="0 MiB"),
    ]
