"""The benchmarks by name."""

from __future__ import annotations

from collections.abc import Callable

from gpupool.bench import overhead, queueing, scaling, slices, tenancy, train
from gpupool.bench.run import Case
from gpupool.bench.session import Session

BENCHMARKS: dict[str, Callable[[Session], list[Case]]] = {
    "train": train.cases,
    "scaling": scaling.cases,
    "slices": slices.cases,
    "overhead": overhead.cases,
    "tenancy": tenancy.cases,
    "queue": queueing.cases,
}
