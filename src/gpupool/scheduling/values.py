"""The inputs and outputs of the scheduler: plain frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gpupool.domain.ids import WorkloadId
from gpupool.domain.nodes.gpu import GpuRequest, GpuShare
from gpupool.domain.work.gang import Gang
from gpupool.domain.work.workload import GpuLease

ReplicaKey = tuple[WorkloadId, int]


class BlockReason(StrEnum):
    """The reason why a pending replica must not start yet, even with free GPUs."""

    DEPENDENCY = "dependency"
    SUSPENDED = "suspended"
    WINDOW = "window"
    PARALLELISM = "parallelism"
    FOLDER = "folder"
    BUDGET = "budget"


@dataclass(frozen=True, slots=True)
class PendingReplica:
    """A waiting replica. Times are seconds since the epoch.

    Work that is not ``preemptible`` is protected: it never exceeds its project's quota and is never evicted.
    ``not_before`` is the end of a back-off. ``held`` keeps the replica out of the queue; ``held_note`` explains it.
    ``max_time_s`` is its time limit, if any. ``gang``: it starts with other replicas of its workload. ``node_pools``:
    the allowed values of the node label ``pool``; empty: any. ``served_s``: the run time of earlier attempts.
    ``grace_s``: the time that it needs to end. ``evictions``: how often it was evicted. ``checkpoint_s``: the interval
    of its checkpoints (0: only when asked to end); None: it saves nothing and starts from the beginning.
    """

    workload: WorkloadId
    index: int
    project: str
    user: str
    request: GpuRequest
    queued_at: float
    priority: int = 0
    preemptible: bool = False
    cpus: float = 0.0
    memory_mib: int = 0
    not_before: float = 0.0
    max_time_s: float | None = None
    held: BlockReason | None = None
    held_note: str = ""
    gang: Gang | None = None
    node_pools: tuple[str, ...] = ()
    served_s: float = 0.0
    grace_s: float = 0.0
    evictions: int = 0
    checkpoint_s: float | None = None

    @property
    def key(self) -> ReplicaKey:
        """Return its key in the scheduler."""
        return (self.workload, self.index)

    @property
    def protected(self) -> bool:
        """Return True if it is never evicted, and therefore never exceeds its project's quota."""
        return not self.preemptible


@dataclass(frozen=True, slots=True)
class RunningReplica:
    """A replica with a lease. Times are seconds since the epoch.

    ``releasing``: it was asked to end, so its GPUs will be free soon. ``expected_end`` comes from its time limit.
    ``min_runtime_s``: it is not evicted earlier after its start; None: the scheduler's setting. ``request`` and
    ``node_pools`` say where else it could run; None: it is never moved. ``served_s``: the run time of earlier attempts.
    ``grace_s``: the time that it needs to end. ``evictions``: how often it was evicted. ``checkpoint_s``: as in
    ``PendingReplica``. ``saved_at``: when its program reported its last checkpoint.
    """

    lease: GpuLease
    started_at: float
    priority: int = 0
    preemptible: bool = False
    expected_end: float | None = None
    releasing: bool = False
    gang: Gang | None = None
    min_runtime_s: float | None = None
    request: GpuRequest | None = None
    node_pools: tuple[str, ...] = ()
    served_s: float = 0.0
    grace_s: float = 0.0
    evictions: int = 0
    checkpoint_s: float | None = None
    saved_at: float | None = None

    @property
    def key(self) -> ReplicaKey:
        """Return its key in the scheduler."""
        return (self.lease.workload, self.lease.index)


class HoldKind(StrEnum):
    """The reason why GPUs are held for a waiting replica."""

    NOMINATED = "nominated"  # victims are ending for it
    RESERVED = "reserved"  # it is starving: the GPUs that become free first are held for it
    MOVED = "moved"  # it is ending on another node, and will start again here


@dataclass(frozen=True, slots=True)
class Hold:
    """GPUs held for a pending replica; they count as used for all others.

    ``starts_at`` is when they are expected to be free (infinite: unknown). On a RESERVED hold, others may use the GPUs
    if they are sure, or likely, to end before. ``sharing`` is the sharing mode. ``since`` is when the GPUs were first
    held.
    """

    workload: WorkloadId
    index: int
    node: str
    shares: tuple[GpuShare, ...]
    cpus: float
    memory_mib: int
    kind: HoldKind
    starts_at: float = float("inf")
    sharing: str = ""
    since: float = 0.0

    @property
    def key(self) -> ReplicaKey:
        """Return the replica that it is for."""
        return (self.workload, self.index)


@dataclass(frozen=True, slots=True)
class Grant:
    """A pending replica may start now, on these shares of this node, kept apart in the mode ``sharing``."""

    workload: WorkloadId
    index: int
    node: str
    shares: tuple[GpuShare, ...]
    sharing: str = ""

    @property
    def key(self) -> ReplicaKey:
        """Return the key of the replica."""
        return (self.workload, self.index)


class EvictionKind(StrEnum):
    """The rule behind an eviction."""

    RECLAIM = "reclaim"  # its project is above its quota or fair share, another one below
    PREEMPT = "preempt"  # work of higher priority in its own project
    CONSOLIDATE = "consolidate"  # it is moved: it starts again on another place at once
    STALE_GANG = "stale gang"  # too few members of its gang are left
    BOOKING = "booking"  # its node is reserved for others
    TURN = "turn"  # it has had its turn, others have not
    BACKFILL = "backfill"  # it was backfilled and runs longer than expected


@dataclass(frozen=True, slots=True)
class Eviction:
    """A running replica that must end so that another can start; ``reason`` is a sentence for its owner."""

    workload: WorkloadId
    index: int
    for_workload: WorkloadId
    for_index: int
    kind: EvictionKind
    reason: str

    @property
    def key(self) -> ReplicaKey:
        """Return the key of the victim."""
        return (self.workload, self.index)


@dataclass(frozen=True, slots=True)
class Decisions:
    """The decisions of one cycle.

    ``holds`` replaces the given holds. ``more``: call again at once; the cycle left grants or evictions to the next
    one. ``exhausted``: the bound on victim searches was reached, and not all work has been searched since the last
    change; the next cycle continues. ``wake_at``: when time alone may change the decisions.
    """

    grants: tuple[Grant, ...] = ()
    evictions: tuple[Eviction, ...] = ()
    holds: tuple[Hold, ...] = ()
    more: bool = False
    exhausted: bool = False
    wake_at: float | None = None
