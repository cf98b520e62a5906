"""What goes into the scheduler and what comes out: plain frozen values."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from gpupool.domain.gang import Gang
from gpupool.domain.gpu import GpuRequest, GpuShare, Placement
from gpupool.domain.ids import WorkloadId
from gpupool.domain.workload import Lease
from gpupool.scheduling.order import Order
from gpupool.scheduling.usage import Decay

ReplicaKey = tuple[WorkloadId, int]


class Held(StrEnum):
    """Why a pending replica must not start yet, whatever is free."""

    DEPENDENCY = "dependency"
    SUSPENDED = "suspended"
    WINDOW = "window"
    PARALLELISM = "parallelism"
    FOLDER = "folder"


@dataclass(frozen=True, slots=True)
class PendingReplica:
    """One replica that waits. Times are seconds since the epoch.

    Work that is not ``preemptible`` is protected: it never leaves its project's quota and is never evicted.
    ``not_before`` is the end of a back-off, ``held`` keeps it out of the queue altogether with ``held_note`` saying
    what for. ``max_time_s`` bounds its run time when known. ``gang``: it starts with other replicas of its workload.
    ``node_pools``: it may run only on nodes whose label ``pool`` is one of these; empty: on any. ``served_s``: how
    long it has run already, all its starts together. ``grace_s``: how long it takes to end when it is told to.
    ``evictions``: how often the pool has taken its GPUs away before.
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
    held: Held | None = None
    held_note: str = ""
    gang: Gang | None = None
    node_pools: tuple[str, ...] = ()
    served_s: float = 0.0
    grace_s: float = 0.0
    evictions: int = 0

    @property
    def key(self) -> ReplicaKey:
        """What names it in the scheduler."""
        return (self.workload, self.index)

    @property
    def protected(self) -> bool:
        """Whether it may never be evicted, and therefore never exceed its project's quota."""
        return not self.preemptible


@dataclass(frozen=True, slots=True)
class RunningReplica:
    """One replica that holds a lease. Times are seconds since the epoch.

    ``releasing``: it has been told to end, so its GPUs will be free soon. ``expected_end`` is from its time limit.
    ``min_runtime_s``: not evicted sooner after its start; None: the setting of the scheduler. ``request`` is what it
    asked for, and with ``node_pools`` says where else it could run; None: it is never moved. ``served_s``: how long it
    had run before this start. ``grace_s`` is the time it has to end once it is told to. ``evictions``: how often the
    pool has taken its GPUs away before.
    """

    lease: Lease
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

    @property
    def key(self) -> ReplicaKey:
        """What names it in the scheduler."""
        return (self.lease.workload, self.lease.index)


class HoldKind(StrEnum):
    """Why space is kept for somebody who waits."""

    NOMINATED = "nominated"  # somebody is on the way out for it
    RESERVED = "reserved"  # it has waited too long: the space that frees first is kept for it
    MOVED = "moved"  # it is on the way out elsewhere, to start again here


@dataclass(frozen=True, slots=True)
class Hold:
    """Space kept for a pending replica; it counts as taken for all others.

    ``starts_at`` is when it is expected to be free (infinite: unknown); of a RESERVED hold, others may use the space
    if they are sure, or likely, to end before. ``sharing`` is the mode that its shares will have. ``since`` is when the
    space was first kept.
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
        """Whom it is for."""
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
        """Who may start."""
        return (self.workload, self.index)


class EvictionKind(StrEnum):
    """On which ground a replica has to go."""

    RECLAIM = "reclaim"  # its project is over quota and another one is owed
    PREEMPT = "preempt"  # more important work of its own project
    CONSOLIDATE = "consolidate"  # it is moved: it starts again elsewhere at once
    STALE_GANG = "stale gang"  # too few of its gang are left
    BOOKING = "booking"  # its node is booked for others
    TURN = "turn"  # it has had its turn, others have not
    BACKFILL = "backfill"  # it was let into reserved space, and runs longer than such work did


@dataclass(frozen=True, slots=True)
class Eviction:
    """A running replica has to end so that another can start; ``reason`` is a sentence for its owner."""

    workload: WorkloadId
    index: int
    for_workload: WorkloadId
    for_index: int
    kind: EvictionKind
    reason: str

    @property
    def key(self) -> ReplicaKey:
        """Who has to go."""
        return (self.workload, self.index)


@dataclass(frozen=True, slots=True)
class Decisions:
    """What one cycle decided.

    ``holds`` replaces the holds given to it: space that later cycles must keep. ``more``: the cycle has granted
    something and left the rest (more grants, room for others) to the next one: call again at once. ``exhausted``: it
    stopped looking for victims at its bound on that, and the next goes on with those it did not come to. ``wake_at``:
    when time alone may change the answer.
    """

    grants: tuple[Grant, ...] = ()
    evictions: tuple[Eviction, ...] = ()
    holds: tuple[Hold, ...] = ()
    more: bool = False
    exhausted: bool = False
    wake_at: float | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """Bounds and delays of a cycle; times in seconds.

    ``order``: who is first among equals of one priority in a project. ``turn_s``: training that has run for so long
    makes way for work that has not had a turn; None: it does not.
    """

    min_runtime_s: float = 60.0  # nobody is evicted sooner after its start
    reserve_after_s: float = 300.0  # a replica that needs whole GPUs and waits longer gets a reservation
    max_reservations: int = 4
    reserved_part: float = 1 / 16  # of the pool that reservations beside the first may keep
    max_grants: int = 2_000  # per cycle; then ``Decisions.more``
    max_looks: int = 400  # looks for victims per cycle, each at a thousand pieces of work at most
    max_nodes_searched: int = 32  # nodes looked at closely in one such search
    max_backfills: int = 64  # tries per cycle to slip a short replica under a reservation
    placement: Placement = Placement.PACK  # of work that does not say how it wants to be placed
    stale_gang_s: float = 60.0  # a gang with too few members left for longer goes back to the queue
    consolidate_after_s: float = 60.0  # who waits longer for space that is free in pieces has others moved together
    max_consolidations: int = 4  # replicas per cycle for which others are moved; 0: nobody is ever moved
    max_moves: int = 16  # others moved for one
    decay: Decay = field(default_factory=Decay)  # how use is forgotten
    usage_weight: float = 1.0  # how much use lately weighs in fair shares; 0: not at all
    order: Order = Order.FAIR
    turn_s: float | None = None
