"""The alternatives: two programs that share a GPU by its own time slicing, and by NVIDIA MPS."""

from __future__ import annotations

from functools import partial

from bench import MPS, NATIVE, Bench, Place, Work, part

from gpupool.bench.figures import Figure, measured
from parts.tasks import Task

TITLE = "Hardware time slicing and MPS: the first program's part of the work"
PART = "sharing"
SECONDS = 10.0
PLACES = {"without gpupool": NATIVE, "MPS": MPS, "0.5 slices under `none`": part(0.5, "none")}


def tasks() -> list[Task]:
    """Return the first program's part, for equal programs and for short kernels next to long ones."""
    return [
        Task(PART, name, 20, partial(_pair, name=name, place=place, us=us), tier=2)
        for us in (50, 5000)
        for label, place in PLACES.items()
        for name in [f"{label}: kernels of 50 µs next to {us} µs"]
    ]


def _pair(bench: Bench, name: str, place: Place, us: int) -> Figure:
    window = ("--rounds-per-us", repr(bench.rounds_per_us()), "--seconds", str(bench.seconds(SECONDS)))
    found = bench.together([Work(place, "burn.py", ("--us", str(one), *window)) for one in (50, us)])
    done = [one["work"] for one in found]
    percent = 100 * done[0] / max(sum(done), 1e-9)
    samples = min(int(one["launches"]) for one in found)
    return measured(PART, name, percent, "% of the work", samples=samples, runs=found, work=sum(done))
