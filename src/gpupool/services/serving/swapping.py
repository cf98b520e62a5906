"""Services that do not fit together take turns: which of them give their GPUs to one with waiting requests. Pure.

Only services of the same project are stopped: those that may have no replica (``0..N``) and were loaded for the
minimum time. The least recently used ones are first. None is stopped in vain: their GPUs must suffice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Loaded:
    """A service with replicas that hold ``permille`` thousandths of GPUs.

    ``loaded_s`` is the time since its youngest replica became ready, None while one is not ready; ``unused_s`` the time
    since its last request.
    """

    id: str
    project: str
    permille: int
    loaded_s: float | None
    unused_s: float
    min_loaded_s: float
    may_stop: bool


@dataclass(frozen=True, slots=True)
class WaitingService:
    """A service with held requests whose replica waits for ``permille`` thousandths of GPUs."""

    id: str
    project: str
    permille: int


def choose(waiting: WaitingService, loaded: Sequence[Loaded]) -> tuple[str, ...]:
    """Return the services to stop, the least recently used first; none if they would not suffice."""
    usable = [
        each
        for each in loaded
        if each.id != waiting.id
        and each.project == waiting.project
        and each.may_stop
        and each.permille > 0
        and each.loaded_s is not None
        and each.loaded_s >= each.min_loaded_s
    ]
    chosen: list[Loaded] = []
    for each in sorted(usable, key=lambda row: -row.unused_s):
        chosen.append(each)
        if sum(row.permille for row in chosen) >= waiting.permille:
            enough = [row for row in chosen if row.permille >= waiting.permille]
            return (enough[0].id,) if enough else tuple(row.id for row in chosen)
    return ()
