"""Shares of time: the part of the work that each of two tenants did, compared with its share."""

from __future__ import annotations

from collections.abc import Iterator

from bench import WHOLE, Bench, Work, part

from gpupool.bench.figures import Figure, measured
from parts.trying import tried

TITLE = "Shares of time over 10 s"
SPLITS = ((0.1, 0.9), (0.25, 0.75), (0.5, 0.5))
KERNELS_US = ((50, 50), (50, 5000), (5000, 5000), (30000, 50))
SECONDS = 10.0


def measure(bench: Bench) -> Iterator[Figure]:
    """Measure the error in points (2 points if a share of 0.10 got 0.12), for kernels, graphs and matrix products."""
    rounds = bench.one(Work(WHOLE, "burn.py", ("--calibrate",)))["rounds_per_us"]
    for low, high in SPLITS:
        for short, long in KERNELS_US:
            works = [_burn(bench, rounds, low, short), _burn(bench, rounds, high, long)]
            yield _split(bench, f"{low:g}:{high:g}, kernels of {short} and {long} µs", works, low)
        works = [_burn(bench, rounds, low, 50, "--graph"), _burn(bench, rounds, high, 50, "--graph")]
        yield _split(bench, f"{low:g}:{high:g}, graphs of 20 kernels of 50 µs", works, low)
        window = ("--seconds", str(bench.seconds(SECONDS)))
        works = [Work(part(low), "matmul.py", window), Work(part(high), "matmul.py", window)]
        yield _split(bench, f"{low:g}:{high:g}, matrix products", works, low)
    window = ("--seconds", str(bench.seconds(SECONDS)))
    yield tried(TITLE, "0.3 under cap, alone", lambda: _cap(bench, rounds, window))


def _burn(bench: Bench, rounds: float, fraction: float, us: int, *more: str, compute: str = "guarantee") -> Work:
    window = ("--seconds", str(bench.seconds(SECONDS)))
    return Work(part(fraction, compute), "burn.py", ("--us", str(us), "--rounds-per-us", repr(rounds), *window, *more))


def _split(bench: Bench, name: str, works: list[Work], wanted: float) -> Figure:
    return tried(TITLE, name, lambda: _error(bench, name, works, wanted))


def _error(bench: Bench, name: str, works: list[Work], wanted: float) -> Figure:
    found = bench.together(works)
    done = [one["work"] for one in found]
    points = abs(done[0] / max(sum(done), 1e-9) - wanted) * 100
    samples = min(int(one["launches"]) for one in found)
    return measured(TITLE, name, points, "points", samples=samples, goal="at most 2 points", runs=found)


def _cap(bench: Bench, rounds: float, window: tuple[str, ...]) -> Figure:
    """Compare a capped tenant alone with an uncapped one: the rest of the GPU must stay idle."""
    us = ("--us", "500", "--rounds-per-us", repr(rounds), *window)
    free = bench.together([Work(part(0.3), "burn.py", us)])[0]
    capped = bench.together([Work(part(0.3, "cap"), "burn.py", us)])[0]
    points = abs(capped["work"] / max(free["work"], 1e-9) - 0.3) * 100
    runs = {"free": free, "capped": capped}
    name = "0.3 under cap, alone"
    return measured(TITLE, name, points, "points", samples=int(capped["launches"]), goal="at most 2 points", **runs)
