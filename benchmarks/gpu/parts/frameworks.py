"""Frameworks under a slice: the bytes of their results must be those of a run without it."""

from __future__ import annotations

from functools import partial

from bench import WHOLE, Bench, FailedError, Work, part

from gpupool.bench.figures import Figure, measured
from parts.tasks import Task

TITLE = "Frameworks under a slice"
PART = "frameworks"
KINDS = {
    "torch-eager": 30,
    "cupy": 20,
    "jax": 40,
    "torch-graphs": 30,
    "torch-compile": 90,
    "torch-expandable": 30,
    "numba": 20,
}


def tasks() -> list[Task]:
    """Return 1 for bitwise equality; a difference is a failure that names both digests."""
    return [
        Task(PART, kind, seconds, partial(_compared, kind=kind), tier=1 if kind == "torch-eager" else 2)
        for kind, seconds in KINDS.items()
    ]


def _compared(bench: Bench, kind: str) -> Figure:
    bench.need_real_gpu()
    alone = bench.one(Work(WHOLE, "frameworks.py", ("--kind", kind)))
    again = bench.one(Work(WHOLE, "frameworks.py", ("--kind", kind)))
    slice_ = bench.one(Work(part(0.5), "frameworks.py", ("--kind", kind)))
    if alone["digest"] != again["digest"]:
        raise FailedError(f"two runs without a slice differ: {alone['digest']} and {again['digest']}")
    if alone["digest"] != slice_["digest"]:
        raise FailedError(f"{alone['digest']} without a slice, {slice_['digest']} under one")
    values = int(alone["values"])
    return measured(PART, kind, 1.0, "equal", samples=values, goal="equal", digest=alone["digest"])
