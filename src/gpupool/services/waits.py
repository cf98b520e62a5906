"""How long work waited for its first start."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from operator import attrgetter

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.usage import By, WaitLine
from gpupool.services.usage_books import Wait

_CREATED_AT = attrgetter("created_at")


def wait_lines(
    waits: Iterable[Wait], edges: Sequence[float], by: By, department_of: Callable[[str], str]
) -> list[WaitLine]:
    """Figures for each step (by submission) and key, in this order; steps in which nothing was submitted are left out.

    Raises INVALID_REQUEST for what a waiting workload does not have yet: a node or a model.
    """
    key_of = _key_of(by, department_of)
    ordered = sorted(waits, key=_CREATED_AT)
    bounds = [bisect_left(ordered, edge, key=_CREATED_AT) for edge in edges[:-1]]
    lines: list[WaitLine] = []
    for step, (first, end) in enumerate(pairwise((*bounds, len(ordered)))):
        found = {"": ordered[first:end]} if by is By.POOL and first < end else _told_apart(ordered[first:end], key_of)
        lines += [_line(key, edges[step], edges[step + 1], found[key]) for key in sorted(found)]
    return lines


def _told_apart(waits: Sequence[Wait], key_of: Callable[[Wait], str]) -> dict[str, list[Wait]]:
    found: dict[str, list[Wait]] = defaultdict(list)
    for wait in waits:
        found[key_of(wait)].append(wait)
    return found


def _key_of(by: By, department_of: Callable[[str], str]) -> Callable[[Wait], str]:
    known: dict[By, Callable[[Wait], str]] = {
        By.PROJECT: lambda wait: wait.project,
        By.USER: lambda wait: wait.user,
        By.MEMBER: lambda wait: f"{wait.project}/{wait.user}",
        By.DEPARTMENT: lambda wait: department_of(wait.project),
        By.POOL: lambda _wait: "",
    }
    if by not in known:
        words = ", ".join(by.value for by in known)
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST, f"Waiting times are not told apart by {by}.", f"They are by {words}."
        )
    return known[by]


def _line(key: str, at: float, until: float, waits: Sequence[Wait]) -> WaitLine:
    seconds = sorted([max(0.0, start - made) for _, _, made, start, _ in waits if start is not None])
    waiting = sum(start is None and end is None for _, _, _, start, end in waits)
    never = len(waits) - len(seconds) - waiting
    if not seconds:
        return WaitLine(key, at, until, 0, waiting, never)
    p50, p90, p99 = (_rank(seconds, part) for part in (0.5, 0.9, 0.99))
    mean = math.fsum(seconds) / len(seconds)
    return WaitLine(key, at, until, len(seconds), waiting, never, mean, p50, p90, p99, seconds[-1])


def _rank(ordered: Sequence[float], part: float) -> float:
    """The nearest-rank percentile: the smallest value that at least this part does not exceed."""
    return ordered[math.ceil(part * len(ordered)) - 1]
