"""A task of the benchmark: one or a few figures that are measured together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench import Bench

from gpupool.bench.figures import Figure


@dataclass(frozen=True, slots=True)
class Task:
    """The measurements and their order. Tasks of tier 1 are measured before all of tier 2, and these before tier 3.

    ``seconds`` is the expected time on a real GPU: a task is begun only if it can end within the budget.
    """

    part: str
    name: str
    seconds: float
    measure: Callable[[Bench], Figure | Sequence[Figure]]
    tier: int = 1
