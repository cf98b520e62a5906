"""Waiting time of a program that needs the GPU now and then, next to one that uses it all the time."""

from __future__ import annotations

from functools import partial

from bench import MPS, NATIVE, WHOLE, Bench, Place, Work, part

from gpupool.bench.figures import Figure, measured
from parts.tasks import Task

TITLE = "From the launch of a kernel of 50 µs to its end, next to a busy neighbour"
PART = "latency"
SECONDS = 10.0
BUSY_US = (500, 5000)
PLACES = {"0.5 slices": part(0.5), "hardware time slicing": NATIVE, "MPS": MPS}


def tasks() -> list[Task]:
    """Return the time alone, and next to a neighbour with kernels of different length."""
    return [
        Task(PART, "alone", 15, _alone),
        *(
            Task(PART, f"{label}, kernels of {us} µs", 20, partial(_beside, label=label, place=place, us=us), tier=tier)
            for tier, us in enumerate(BUSY_US, 1)
            for label, place in PLACES.items()
        ),
    ]


def _alone(bench: Bench) -> list[Figure]:
    return _figures("alone", bench.together([_asking(bench, WHOLE)])[0])


def _beside(bench: Bench, label: str, place: Place, us: int) -> list[Figure]:
    burn = ("--us", str(us), "--rounds-per-us", repr(bench.rounds_per_us()), *_window(bench))
    found = bench.together([_asking(bench, place), Work(place, "burn.py", burn)])[0]
    return _figures(f"{label}, kernels of {us} µs", found)


def _asking(bench: Bench, place: Place) -> Work:
    return Work(place, "latency.py", ("--rounds-per-us", repr(bench.rounds_per_us()), *_window(bench)))


def _window(bench: Bench) -> tuple[str, str]:
    return ("--seconds", str(bench.seconds(SECONDS)))


def _figures(name: str, found: dict[str, float]) -> list[Figure]:
    samples = int(found["samples"])
    return [measured(PART, f"{name}: {key}", found[f"{key}_ms"], "ms", samples=samples) for key in ("median", "p99")]
