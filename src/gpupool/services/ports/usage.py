"""The Protocols of the store for usage: GPU time, samples, capacity, and past states of the pool."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from gpupool.domain.ids import WorkloadId
from gpupool.domain.nodes.capacity import CapacityChange, CapacitySeconds, GpuCapacity
from gpupool.domain.nodes.telemetry import GpuRollup, NodeRollup, ReplicaRollup, Rollups, RollupStep
from gpupool.domain.usage import ALL_USAGE, UsageFilter
from gpupool.domain.work.efficiency import MeasuredUse

OTHERS = "others:"  # no name has a colon


class Dim(StrEnum):
    """A column by which GPU time can be grouped."""

    PROJECT = "project"
    USER = "user"
    NODE = "node"
    MODEL = "model"
    WORKLOAD = "workload"


@dataclass(frozen=True, slots=True)
class TimeQuery:
    """A query for GPU time between ``edges`` (seconds since the epoch, ascending, at least two), grouped by ``dims``.

    Current leases count until ``now``. Without ``requests`` it leaves out requested time, which is faster. With
    ``keep``, a column and names, all other names of this column are one: ``OTHERS``.
    """

    edges: tuple[float, ...]
    dims: tuple[Dim, ...]
    scope: UsageFilter = ALL_USAGE
    now: float = math.inf
    requests: bool = True
    keep: tuple[Dim, frozenset[str]] | None = None

    def folded(self, key: tuple[str, ...]) -> tuple[str, ...]:
        """Return keys with ``OTHERS`` in place of a name that is not kept."""
        if self.keep is None:
            return key
        column, names = self.keep
        return tuple(
            OTHERS if dim is column and name not in names else name for dim, name in zip(self.dims, key, strict=True)
        )

    @property
    def asks_for_requests(self) -> bool:
        """Return True if requested time is wanted and defined; it is not defined by node or model."""
        return self.requests and Dim.NODE not in self.dims and self.scope.node is None and self.scope.model is None


@dataclass(frozen=True, slots=True)
class TimeRow:
    """GPU seconds of one combination of ``keys`` (in the order of the dims) between two edges (``step`` counts from 0).

    All values can be added over steps, keys and neighbouring periods. ``leases`` counts grants in the period.
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
    """The times when a workload was submitted, first started and ended; None: not yet, or never."""

    project: str
    user: str
    created_at: float
    started_at: float | None
    finished_at: float | None

    @property
    def known(self) -> bool:
        """Return True if it waits no more."""
        return self.started_at is not None or self.finished_at is not None

    @property
    def wait_s(self) -> float:
        """Return the seconds until its first start: infinite while it waits, NaN if it ended without one."""
        if self.started_at is not None:
            return max(0.0, self.started_at - self.created_at)
        return math.inf if self.finished_at is None else math.nan


@dataclass(frozen=True, slots=True, eq=False)
class Waits:
    """Waits of many workloads in columns, by their submission: objects would be slow for a year.

    ``wait_s`` as in ``Wait``; ``member`` is the place of project and user in ``members``.
    """

    created_at: npt.NDArray[np.float64]
    wait_s: npt.NDArray[np.float64]
    member: npt.NDArray[np.int32]
    members: tuple[tuple[str, str], ...]

    def __len__(self) -> int:
        return len(self.created_at)

    def with_more(self, waits: Sequence[Wait]) -> Waits:
        """Return these and other waits."""
        if not waits:
            return self
        members = {key: place for place, key in enumerate(self.members)}
        places = [members.setdefault((wait.project, wait.user), len(members)) for wait in waits]
        created_at = np.concatenate((self.created_at, [wait.created_at for wait in waits]))
        wait_s = np.concatenate((self.wait_s, [wait.wait_s for wait in waits]))
        member = np.concatenate((self.member, np.array(places, np.int32)))
        order = np.argsort(created_at, kind="stable")
        return Waits(created_at[order], wait_s[order], member[order], tuple(members))

    def of(self, project: str | None, user: str | None) -> Waits:
        """Return those of a project and a user; None: of all."""
        if project is None and user is None:
            return self
        wanted = [project in {None, its} and user in {None, whose} for its, whose in self.members]
        mask = np.array(wanted, bool)[self.member]
        return Waits(self.created_at[mask], self.wait_s[mask], self.member[mask], self.members)


NO_WAITS = Waits(np.empty(0), np.empty(0), np.empty(0, np.int32), ())


class Loss(NamedTuple):
    """The end of an attempt that lost work after its last checkpoint."""

    project: str
    user: str
    gpu_s: float


class UsageStore(Protocol):
    """Stored usage. Each method is one transaction; errors are ``GpupoolError``."""

    async def gpu_time(self, query: TimeQuery) -> Sequence[TimeRow]:
        """Return exact GPU time, without rows for keys that had none."""

    async def leases_held_at(self, moment: float) -> Sequence[tuple[str, str, int]]:
        """Return project, user and number of leases that were current at a time."""

    async def names_of(self, workloads: Sequence[str]) -> dict[str, tuple[str, str, str]]:
        """Return name, project and user of workloads by id; the name is empty if its history was deleted."""

    async def waits(self, since: float, until: float, scope: UsageFilter) -> Waits:
        """Return the waits of workloads submitted between two times that request their own GPUs."""

    async def losses(self, since: float, until: float, scope: UsageFilter) -> Sequence[Loss]:
        """Return the ends between two times that lost work; ``scope`` filters by project, user and node."""

    async def sum_next(self, until: float) -> bool:
        """Sum the next hours that are over, at most a day; return False if none are left before ``until``.

        Waits are stored by days.
        """

    async def summed_until(self) -> float:
        """Return the time up to which hours are summed; 0 if none are."""

    async def reopen(self, now: float) -> bool:
        """Delete sums of future hours, after the clock was set back; return True if there were any."""


class SampleStore(Protocol):
    """Each method is one transaction; errors are ``GpupoolError`` (DATABASE_*)."""

    async def save(self, uses: Rollups, numbers: Mapping[str, int]) -> None:
        """Add rows of minutes to the stored rows of the same minutes and hours.

        ``numbers`` is by node the number of the last sample in the rows; it is stored in the same transaction.
        """

    async def written(self) -> Mapping[str, int]:
        """Return by node the number of the last sample in the stored rows."""

    async def of_gpu(self, uuid: str, step: RollupStep, since: float, until: float) -> Sequence[GpuRollup]:
        """Return the rows of a GPU that begin between two times, ordered by time."""

    async def of_replica(
        self, workload: WorkloadId, index: int, step: RollupStep, since: float, until: float
    ) -> Sequence[ReplicaRollup]:
        """Return the rows of all attempts of a replica that begin between two times, ordered by time."""

    async def total_of(self, workloads: Sequence[WorkloadId]) -> Mapping[WorkloadId, MeasuredUse]:
        """Return the measured use of all replicas and attempts of each workload with stored samples."""

    async def of_node(self, node: str, step: RollupStep, since: float, until: float) -> Sequence[NodeRollup]:
        """Return the rows of a node that begin between two times, ordered by time."""

    async def forget(self, step: RollupStep, before: float, limit: int) -> int:
        """Delete rows that begin before a time, at most ``limit`` of each kind; return how many were deleted."""


@dataclass(frozen=True, slots=True)
class Moments:
    """``count`` moments, ``step_s`` seconds apart, from ``first`` on (seconds since the epoch)."""

    first: float
    step_s: float
    count: int

    @property
    def last(self) -> float:
        """Return the last moment."""
        return self.first + (self.count - 1) * self.step_s

    def times(self) -> tuple[float, ...]:
        """Return all moments."""
        return tuple(self.first + number * self.step_s for number in range(self.count))


@dataclass(frozen=True, slots=True)
class AllocationSeries:
    """Thousandths of GPUs at each moment.

    ``held``: leased; ``pieces``: free on GPUs that were partly leased; ``partly``: the number of these GPUs.
    """

    held: tuple[int, ...]
    pieces: tuple[int, ...]
    partly: tuple[int, ...]


class PastMoments(Protocol):
    """Past states of the pool. Each method is one transaction."""

    async def waiting(self, moments: Moments) -> Sequence[int]:
        """Return the number of workloads with their own GPUs that waited for their first start at each moment."""

    async def held(self, moments: Moments) -> AllocationSeries:
        """Return leased and fragmented capacity at each moment."""


class CapacityStore(Protocol):
    """The recorded capacity. Each method is one transaction."""

    async def present(self) -> Sequence[GpuCapacity]:
        """Return the GPUs as they were last recorded."""

    async def record(self, changes: Sequence[CapacityChange]) -> None:
        """Write changes; a GPU's former status ends where its new one begins."""

    async def between(self, edges: Sequence[float]) -> Sequence[CapacitySeconds]:
        """Return the capacity between neighbouring ``edges``, which ascend."""

    async def available_at(self, times: Sequence[float]) -> Sequence[int]:
        """Return the number of available GPUs at each time."""

    async def forget_before(self, time: float) -> None:
        """Delete rows that ended before a time."""
