"""What the accounting asks of the store: GPU time by what it is told apart by, and what is summed beforehand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

from gpupool.domain.events import Event
from gpupool.domain.usage import EVERYTHING, Scope


class Dim(StrEnum):
    """A column that GPU time can be told apart by."""

    PROJECT = "project"
    USER = "user"
    NODE = "node"
    MODEL = "model"
    WORKLOAD = "workload"


@dataclass(frozen=True, slots=True)
class TimeQuery:
    """GPU time between ``edges`` (seconds since the epoch, ascending, two at least), told apart by ``dims``.

    What has not ended has lasted until ``now``. Without ``requests`` it is only about what was held, which is quicker.
    """

    edges: tuple[float, ...]
    dims: tuple[Dim, ...]
    scope: Scope = EVERYTHING
    now: float = math.inf
    requests: bool = True

    @property
    def asks_for_requests(self) -> bool:
        """Whether what was asked for is wanted and can be told apart like this: nobody asks for a node or a model."""
        return self.requests and Dim.NODE not in self.dims and self.scope.node is None and self.scope.model is None


@dataclass(frozen=True, slots=True)
class TimeRow:
    """GPU seconds of one combination of ``keys`` (in the order of the dims) between two edges (``step`` counts from 0).

    Everything adds up: over steps, keys and neighbouring times. ``leases`` were granted in it.
    """

    step: int
    keys: tuple[str, ...]
    allocated_s: float
    used_s: float = 0.0
    idle_s: float = 0.0
    measured_s: float = 0.0
    requested_s: float = 0.0
    leases: int = 0


class Wait(NamedTuple):
    """A workload and when it was submitted, first started and ended; None: not yet, or never."""

    project: str
    user: str
    created_at: float
    started_at: float | None
    finished_at: float | None


class UsageBooks(Protocol):
    """The part of the store that knows what was held. Each method is one transaction; errors are ``GpupoolError``."""

    async def gpu_time(self, query: TimeQuery) -> Sequence[TimeRow]:
        """GPU time, exactly; nothing for what was not held at all."""

    async def leases_held_at(self, moment: float) -> Sequence[tuple[str, str, int]]:
        """How many leases each user held in each project at a time: granted before and not released by then."""

    async def names_of(self, workloads: Sequence[str]) -> dict[str, tuple[str, str, str]]:
        """Name, project and user of workloads by id; the name of one whose history is gone is empty."""

    async def waits(self, since: float, until: float, scope: Scope) -> Sequence[Wait]:
        """Workloads submitted between two times that want GPUs of their own, oldest first."""

    async def sum_next(self, until: float) -> bool:
        """Sum the next hours that are over, a day's at most; False when there are none left before ``until``."""

    async def summed_until(self) -> float:
        """How far hours are summed; 0 when none are."""

    async def reopen(self, now: float) -> bool:
        """Forget sums of hours that are not over after all: the clock was set back. Whether there were any."""

    async def load_rates(self) -> str | None:
        """The cost rates as they were saved."""

    async def save_rates(self, document: str, event: Event) -> None:
        """Insert or replace."""
