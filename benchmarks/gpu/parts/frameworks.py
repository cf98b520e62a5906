"""Frameworks under a slice: the bytes of their results must be those of a run without it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from bench import WHOLE, Bench, FailedError, Work, part

from gpupool.bench.figures import Figure, measured
from parts.trying import tried

TITLE = "Frameworks under a slice"
KINDS = ("torch-eager", "torch-compile", "torch-graphs", "torch-expandable", "jax", "cupy", "numba")


def measure(bench: Bench) -> Iterator[Figure]:
    """Return 1 for bitwise equality; a difference is a failure that names both digests."""
    for kind in KINDS:
        yield tried(TITLE, kind, partial(_compared, bench, kind))


def _compared(bench: Bench, kind: str) -> Figure:
    alone = bench.one(Work(WHOLE, "frameworks.py", ("--kind", kind)))
    again = bench.one(Work(WHOLE, "frameworks.py", ("--kind", kind)))
    slice_ = bench.one(Work(part(0.5), "frameworks.py", ("--kind", kind)))
    if alone["digest"] != again["digest"]:
        raise FailedError(f"two runs without a slice differ: {alone['digest']} and {again['digest']}")
    if alone["digest"] != slice_["digest"]:
        raise FailedError(f"{alone['digest']} without a slice, {slice_['digest']} under one")
    values = int(alone["values"])
    return measured(TITLE, kind, 1.0, "equal", samples=values, goal="equal", digest=alone["digest"])
