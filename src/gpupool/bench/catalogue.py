"""The benchmarks by name."""

from __future__ import annotations

from collections.abc import Callable

from gpupool.bench import overhead, queueing, scaling, slices, tenancy, train
from gpupool.bench.run import BenchCase
from gpupool.bench.session import BenchSession

BENCHMARKS: dict[str, Callable[[BenchSession], list[BenchCase]]] = {
    "train": train.cases,
    "scaling": scaling.cases,
    "slices": slices.cases,
    "overhead": overhead.cases,
    "tenancy": tenancy.cases,
    "queue": queueing.cases,
}
