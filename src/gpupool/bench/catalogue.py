"""The benchmarks by name."""

from __future__ import annotations

from collections.abc import Callable

from gpupool.bench import queueing, slices
from gpupool.bench.run import Case
from gpupool.bench.session import Session

BENCHMARKS: dict[str, Callable[[Session], list[Case]]] = {
    "slices": slices.cases,
    "queue": queueing.cases,
}
