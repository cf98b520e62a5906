"""Memory of a process before its first allocation, and the values of NVML in a slice."""

from __future__ import annotations

from functools import partial

from bench import WHOLE, Bench, Work, part

from gpupool.bench.figures import Figure, measured
from parts.tasks import Task

TITLE = "Memory of a context, and values of NVML"
PART = "context"
FRACTION = 0.25


def tasks() -> list[Task]:
    """Return the context's MiB by NVML, bare and after a product of PyTorch; and NVML's memory of a slice."""
    kinds = {"bare context": (), "with PyTorch and cuBLAS": ("--torch",)}
    return [
        *(Task(PART, name, 15, partial(_context, name=name, arguments=words)) for name, words in kinds.items()),
        Task(PART, "NVML in a 0.25 slice", 15, _nvml),
    ]


def _context(bench: Bench, name: str, arguments: tuple[str, ...]) -> Figure:
    if arguments:
        bench.need_real_gpu()
    found = bench.one(Work(WHOLE, "context.py", arguments))
    return measured(PART, name, found["mib"], "MiB", samples=found["samples"])


def _nvml(bench: Bench) -> list[Figure]:
    found = bench.one(Work(part(FRACTION), "nvml.py"))
    limit = bench.gpu["memory_mib"] * FRACTION
    error = found["nvml_total_mib"] - limit
    apart = found["nvml_free_mib"] - found["cuda_free_mib"]
    return [
        measured(PART, "NVML's total minus the slice", error, "MiB", samples=1, goal="within 1 MiB", **found),
        measured(PART, "NVML's free minus CUDA's", apart, "MiB", samples=1, goal="0 MiB", **found),
    ]
