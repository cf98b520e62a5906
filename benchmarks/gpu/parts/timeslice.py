"""The baseline: the division of time between two programs by the hardware alone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from bench import NATIVE, WHOLE, Bench, Place, Work, part

from gpupool.bench.figures import Figure, measured
from parts.trying import tried

TITLE = "The hardware's own time slicing"
SECONDS = 10.0


def measure(bench: Bench) -> Iterator[Figure]:
    """Measure the first tenant's part of the work: equal tenants, and short kernels next to long ones."""
    rounds = bench.one(Work(WHOLE, "burn.py", ("--calibrate",)))["rounds_per_us"]
    for place, label in ((NATIVE, "without gpupool"), (part(0.5, "none"), "0.5 slices under `none`")):
        for us in (50, 5000):
            name = f"{label}: kernels of 50 µs beside {us} µs"
            yield tried(TITLE, name, partial(_pair, bench, name, place, us, rounds))


def _pair(bench: Bench, name: str, place: Place, us: int, rounds: float) -> Figure:
    window = ("--rounds-per-us", repr(rounds), "--seconds", str(bench.seconds(SECONDS)))
    works = [Work(place, "burn.py", ("--us", str(one), *window)) for one in (50, us)]
    found = bench.together(works)
    done = [one["work"] for one in found]
    percent = 100 * done[0] / max(sum(done), 1e-9)
    samples = min(int(one["launches"]) for one in found)
    return measured(TITLE, name, percent, "% of the work", samples=samples, runs=found)
