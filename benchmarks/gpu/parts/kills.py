"""Kill -9 during allocations and launches: time until the slice has its memory back, and memory that stays charged."""

from __future__ import annotations

from collections.abc import Iterator

from bench import Bench, Work, part

from gpupool.bench.figures import Figure, measured

TITLE = "Kill -9 of a process of a slice"
TIMES = 100


def measure(bench: Bench) -> Iterator[Figure]:
    """Milliseconds from the kill until the slice shows as much free memory as before; and what it never got back."""
    found = bench.one(Work(part(0.25), "kills.py", ("--times", str(10 if bench.quick else TIMES))))
    back = sorted(found["back_ms"])
    for name, value in (("memory is back after, median", back[len(back) // 2]), ("at worst", back[-1])):
        yield measured(TITLE, name, value, "ms", samples=len(back), goal="at most 1000 ms")
    yield measured(TITLE, "never given back", found["lost_mib"], "MiB", samples=len(back), goal="0 MiB")
