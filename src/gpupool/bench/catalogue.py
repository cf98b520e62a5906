"""The benchmarks by name."""

from __future__ import annotations

from collections.abc import Callable

from gpupool.bench import overhead, queueing, slices, train
from gpupool.bench.run import Case
from gpupool.bench.session import Session

BENCHMARKS: dict[str, Callable[[Session], list[Case]]] = {
    "train": train.cases,
    "slices": slices.cases,
    "overhead": overhead.cases,
    "queue": queueing.cases,
}
