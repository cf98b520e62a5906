"""Shares of time: the part of the work that each of 2 to 10 tenants did, compared with its share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from bench import Bench, Work, part

from gpupool.bench.figures import Figure, measured
from parts.tasks import Task

TITLE = "Shares of time over 10 s: largest error of a tenant"
PART = "shares"
SPLITS = ((0.1, 0.9), (0.25, 0.75), (0.5, 0.5))
KERNELS_US = ((50, 50), (50, 5000), (5000, 5000), (30000, 50))
TENANTS = range(3, 11)
SECONDS = 10.0
TASK_SECONDS = 20
CAP = "0.3 under cap, alone"


def tasks() -> list[Task]:
    """Return the error in points (2 points if a share of 0.10 got 0.12), for kernels, graphs and matrix products."""
    return [
        *(_pair(split, lengths) for split in SPLITS for lengths in KERNELS_US),
        *(_tenants(count) for count in TENANTS),
        *(_same(f"{_text(split)}, graphs of 20 kernels of 50 µs", split, _graph) for split in SPLITS),
        *(_same(f"{_text(split)}, matrix products", split, _product) for split in SPLITS),
        Task(PART, CAP, 2 * TASK_SECONDS, _cap, tier=2),
    ]


def _text(split: tuple[float, float]) -> str:
    return f"{split[0]:g}:{split[1]:g}"


def _pair(split: tuple[float, float], lengths: tuple[int, int]) -> Task:
    def works(bench: Bench) -> list[Work]:
        return [_burn(bench, share, us) for share, us in zip(split, lengths, strict=True)]

    first = lengths in KERNELS_US[:2]
    name = f"{_text(split)}, kernels of {lengths[0]} and {lengths[1]} µs"
    return Task(PART, name, TASK_SECONDS, partial(_error, name=name, shares=split, works=works), tier=1 if first else 2)


def _tenants(count: int) -> Task:
    share = (1000 // count) / 1000

    def works(bench: Bench) -> list[Work]:
        return [_burn(bench, share, 500) for _ in range(count)]

    name = f"{count} equal tenants, kernels of 500 µs"
    measure = partial(_error, name=name, shares=[share] * count, works=works)
    return Task(PART, name, TASK_SECONDS + count, measure, tier=1 if count in {3, 10} else 2)


def _same(name: str, split: tuple[float, float], work: Callable[[Bench, float], Work]) -> Task:
    def works(bench: Bench) -> list[Work]:
        return [work(bench, share) for share in split]

    return Task(PART, name, TASK_SECONDS, partial(_error, name=name, shares=split, works=works), tier=2)


def _window(bench: Bench) -> tuple[str, str]:
    return ("--seconds", str(bench.seconds(SECONDS)))


def _burn(bench: Bench, share: float, us: int, *more: str, compute: str = "guarantee") -> Work:
    rounds = ("--rounds-per-us", repr(bench.rounds_per_us()))
    return Work(part(share, compute), "burn.py", ("--us", str(us), *rounds, *_window(bench), *more))


def _graph(bench: Bench, share: float) -> Work:
    return _burn(bench, share, 50, "--graph")


def _product(bench: Bench, share: float) -> Work:
    bench.need_real_gpu()
    return Work(part(share), "matmul.py", _window(bench))


def _error(bench: Bench, name: str, shares: Sequence[float], works: Callable[[Bench], list[Work]]) -> Figure:
    found = bench.together(works(bench))
    work, wanted = sum(one["work"] for one in found), sum(shares)
    errors = [abs(one["work"] / max(work, 1e-9) - share / wanted) for one, share in zip(found, shares, strict=True)]
    samples = min(int(one["launches"]) for one in found)
    return measured(PART, name, max(errors) * 100, "points", samples=samples, goal="at most 2 points", runs=found)


def _cap(bench: Bench) -> Figure:
    """Compare a capped tenant alone with an uncapped one: the rest of the GPU must stay idle."""
    free = bench.together([_burn(bench, 0.3, 500)])[0]
    capped = bench.together([_burn(bench, 0.3, 500, compute="cap")])[0]
    points = abs(capped["work"] / max(free["work"], 1e-9) - 0.3) * 100
    runs = {"free": free, "capped": capped}
    return measured(PART, CAP, points, "points", samples=int(capped["launches"]), goal="at most 2 points", **runs)
