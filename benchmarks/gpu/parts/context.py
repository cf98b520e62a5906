"""Memory of a process before its first allocation: its context, as NVML reports it, and the addition by cuBLAS."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from bench import WHOLE, Bench, Work

from gpupool.bench.figures import Figure, measured
from parts.trying import tried

TITLE = "Memory of a context"


def measure(bench: Bench) -> Iterator[Figure]:
    """MiB by NVML, for a bare context and for one in which PyTorch has multiplied two matrices."""
    for name, arguments in (("bare context", ()), ("with PyTorch and cuBLAS", ("--torch",))):
        yield tried(TITLE, name, partial(_one, bench, name, arguments))


def _one(bench: Bench, name: str, arguments: tuple[str, ...]) -> Figure:
    found = bench.one(Work(WHOLE, "context.py", arguments))
    return measured(TITLE, name, found["mib"], "MiB", samples=found["samples"])
