"""The Protocols that the services own and the adapters (store, fabric, clock) implement."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gpupool.domain.access import Department, Project, Token, User
from gpupool.domain.booking import Booking
from gpupool.domain.events import Event, Reason
from gpupool.domain.gpu import Gpu, Node, NodeReport
from gpupool.domain.ids import Epoch, WorkloadId
from gpupool.domain.logrecords import Stretch
from gpupool.domain.supervision import ProcessSpec, ProcessStatus
from gpupool.domain.telemetry import NodeSample
from gpupool.domain.workload import Lease, Replica, Workload, WorkloadState
from gpupool.services.authority import Authority
from gpupool.services.files.ports import BlobStore, FilesLink, OtherHeads
from gpupool.services.join_store import JoinStore
from gpupool.services.moments import PastMoments
from gpupool.services.session_store import SessionStore
from gpupool.services.usage_books import UsageBooks
from gpupool.services.use_rows import UseRows
from gpupool.services.warnings.courier import Courier


class Clock(Protocol):
    """Where time comes from; tests give their own."""

    def now(self) -> float:
        """Seconds since the epoch; may jump."""

    def monotonic(self) -> float:
        """Seconds that never jump back."""


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """Everything one transition writes, applied in one transaction or not at all.

    A workload or replica with ``version`` 0 is inserted; otherwise the stored row must have ``version - 1``
    (the caller has already counted up). Leases are inserted, or updated when ``released_at`` is set.
    """

    workloads: tuple[Workload, ...] = ()
    replicas: tuple[Replica, ...] = ()
    leases: tuple[Lease, ...] = ()
    events: tuple[Event, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.workloads or self.replicas or self.leases or self.events)


@dataclass(frozen=True, slots=True)
class LiveState:
    """What a control plane needs in memory to go on: everything that has not ended."""

    workloads: tuple[Workload, ...]
    replicas: tuple[Replica, ...]
    leases: tuple[Lease, ...]
    projects: tuple[Project, ...]
    users: tuple[User, ...]
    nodes: tuple[Node, ...]
    last_epoch: Epoch
    last_event_id: int
    departments: tuple[Department, ...] = ()
    bookings: tuple[Booking, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkloadFilter:
    """Which workloads a listing wants; empty means all. ``before`` is the id-independent cursor (created_at, id)."""

    states: tuple[WorkloadState, ...] = ()
    project: str | None = None
    user: str | None = None
    name: str | None = None
    labels: tuple[tuple[str, str], ...] = ()
    include_deleted: bool = False
    before: tuple[float, WorkloadId] | None = None
    limit: int = 100


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events a listing wants: those with an id above ``after_id``, oldest first (or the newest ``limit``)."""

    after_id: int = 0
    workload: WorkloadId | None = None
    reasons: tuple[Reason, ...] = ()
    newest: bool = False
    limit: int = 100


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which events a look back wants, the newest first; None and empty mean all.

    ``since`` is in, ``until`` is not; ``before`` is the (at, id) of the last one that was seen. ``target`` is what an
    event concerns, as in ``node gpu1``.
    """

    actor: str | None = None
    reasons: tuple[Reason, ...] = ()
    target: str | None = None
    workload: WorkloadId | None = None
    since: float | None = None
    until: float | None = None
    before: tuple[float, int] | None = None
    limit: int = 100


@dataclass(frozen=True, slots=True)
class RuntimeHistory:
    """How long finished replicas of one user and project ran: the base of an estimate. Seconds."""

    samples: int
    median_s: float
    p90_s: float
    p25_s: float
    p75_s: float


@dataclass(frozen=True, slots=True)
class StartEstimate:
    """What was foretold of a workload's first start, and what came of it: seconds from ``made_at``; None: not yet."""

    workload: WorkloadId
    project: str
    made_at: float
    predicted_s: float
    actual_s: float | None = None


@dataclass(frozen=True, slots=True)
class PastLease:
    """What a lease that is over held, for whom, and when."""

    project: str
    user: str
    permille: int
    granted_at: float
    released_at: float


class Store(Protocol):
    """The truth. Every method is one transaction; errors are ``GpupoolError`` (STALE_WRITE, DATABASE_*)."""

    @property
    def usage_books(self) -> UsageBooks:
        """What was held of the GPUs, by whom."""

    @property
    def use_rows(self) -> UseRows:
        """What was measured, rolled up."""

    @property
    def moments(self) -> PastMoments:
        """How the pool stood at moments of its past."""

    @property
    def joins(self) -> JoinStore:
        """Machines that join."""

    @property
    def sessions(self) -> SessionStore:
        """Browsers that are signed in."""

    async def load_live(self) -> LiveState:
        """What has not ended; read once when a control plane starts."""

    async def commit(self, changes: ChangeSet) -> int:
        """Write all of it or nothing; returns the id of the last event written (0 when none was)."""

    async def get_workload(self, ref: str, user: str | None = None) -> Workload | None:
        """By id, or by name: the newest not deleted one, the user's own first."""

    async def by_request_id(self, request_id: str) -> Workload | None:
        """The workload a repeated request made the first time."""

    async def list_workloads(self, wanted: WorkloadFilter) -> Sequence[Workload]:
        """Newest first, at most ``limit``."""

    async def replicas_of(self, workload: WorkloadId) -> Sequence[Replica]:
        """All replicas of a workload by index."""

    async def leases_of(self, workload: WorkloadId) -> Sequence[Lease]:
        """All leases a workload has held, oldest first."""

    async def list_events(self, wanted: EventFilter) -> Sequence[Event]:
        """Events oldest first."""

    async def list_audit(self, wanted: AuditFilter) -> Sequence[Event]:
        """Events newest first, at most ``limit``."""

    async def runtime_history(self, project: str | None, user: str | None, limit: int = 200) -> RuntimeHistory | None:
        """Of the latest finished replicas of a user in a project (None: of all); None when there is none."""

    async def save_estimates(self, estimates: Sequence[StartEstimate]) -> None:
        """Insert or replace, by workload."""

    async def drop_estimates(self, workloads: Sequence[WorkloadId]) -> None:
        """Forget those that nothing can come of any more."""

    async def newest_estimates(self, limit: int, *, settled: bool) -> Sequence[StartEstimate]:
        """The newest first: those of which it is known what came of them, or those of which it is not."""

    async def forget_estimates(self, before: float, most: int) -> int:
        """Drop what was made before a time, and all but the newest ``most``; how many those were."""

    async def past_leases(self, since: float) -> Sequence[PastLease]:
        """Leases released since a time, in order of their release."""

    async def past_runs(self, limit: int) -> Sequence[PastLease]:
        """The latest leases under which replicas came to their own end, in order of their release."""

    async def save_department(self, department: Department, event: Event) -> None:
        """Insert or replace."""

    async def delete_department(self, name: str, event: Event) -> None:
        """Remove a department; raises UNKNOWN_DEPARTMENT."""

    async def load_policy(self) -> str | None:
        """The scheduling policy as it was saved; None when none was."""

    async def save_policy(self, document: str, event: Event) -> None:
        """Insert or replace."""

    async def load_warnings(self) -> str | None:
        """The settings of warnings as they were saved; None when none were."""

    async def save_warnings(self, document: str, event: Event) -> None:
        """Insert or replace."""

    async def save_project(self, project: Project, event: Event) -> None:
        """Insert or replace."""

    async def delete_project(self, name: str, event: Event) -> None:
        """Remove a project; its history stays."""

    async def save_user(self, user: User, event: Event) -> None:
        """Insert or replace."""

    async def save_node(self, node: Node, event: Event | None = None) -> None:
        """Insert or replace a node and its last report."""

    async def save_nodes(self, nodes: Sequence[Node], events: Sequence[Event]) -> None:
        """Insert or replace many nodes, in one transaction."""

    async def delete_node(self, name: str, event: Event) -> None:
        """Forget a node; what was done there stays in the books."""

    async def save_booking(self, booking: Booking, event: Event) -> None:
        """Insert or replace."""

    async def delete_booking(self, booking_id: str, event: Event) -> None:
        """Remove a booking; raises UNKNOWN_BOOKING."""

    async def save_token(self, token: Token, event: Event) -> None:
        """Insert or replace."""

    async def list_tokens(self, user: str | None = None) -> Sequence[Token]:
        """All tokens, newest first."""

    async def find_token(self, secret_sha256: str) -> Token | None:
        """The token with this hash, whatever its state."""

    async def touch_token(self, token_id: str, at: float) -> None:
        """Note when a token was last used."""

    async def delete_finished_before(self, finished_before: float, limit: int = 1000) -> Sequence[WorkloadId]:
        """Drop old history (workloads, replicas, their events); leases stay for accounting."""

    async def close(self) -> None:
        """Let go of the database."""


class AttachStream(Protocol):
    """A raw, bidirectional byte stream to a program's shepherd (the framing is ``domain.frames``)."""

    async def read(self, limit: int) -> bytes:
        """Up to ``limit`` bytes; empty at the end."""

    async def write(self, data: bytes) -> None:
        """All of it, waiting while the other side is slow."""

    async def close(self) -> None:
        """Hang up."""


class NodeLink(Protocol):
    """How the control plane reaches one node's agent. Raises ``GpupoolError(NODE_UNREACHABLE)`` when it cannot."""

    name: str

    async def report(self) -> NodeReport:
        """The machine and its GPUs as they are now."""

    async def gpus(self) -> Sequence[Gpu]:
        """The GPUs with fresh health, foreign processes and use."""

    async def samples(self, after: int) -> Sequence[NodeSample]:
        """The looks at the node that follow one by its number, oldest first; all that it keeps, if there is no such.

        Not too many at once: whoever is behind asks again.
        """

    async def list(self) -> Sequence[ProcessStatus]:
        """Every program the agent keeps, those that ended and are not forgotten included."""

    async def start(self, spec: ProcessSpec) -> ProcessStatus:
        """Start a program, or return its status if this key was started before."""

    async def reserve_ports(
        self, key: str, address: str, count: int, wanted: Sequence[int] = ()
    ) -> tuple[tuple[int, ...], str]:
        """Ports of the node that nobody else gets, those ``wanted`` if they are free, and the name of its interface.

        They are kept for the program with this key, which is to start with them.
        """

    async def stop(self, key: str, grace_s: float, notice: dict[str, Any] | None = None) -> None:
        """TERM, then KILL after the grace, to the whole tree; returns at once. Unknown keys are ignored.

        ``notice`` is put before the program first, and its notice signal then comes before the TERM.
        """

    async def notify(self, key: str, notice: dict[str, Any] | None) -> None:
        """Put a notice before a program that runs on, or take it away (None). Unknown keys are ignored."""

    async def signal(self, key: str, signum: int) -> None:
        """Send a signal to the program's foreground process group."""

    async def forget(self, key: str, *, delete_logs: bool = False) -> None:
        """The end has been written to the store: the agent need not report it again."""

    async def read_log(self, key: str, cursor: str, limit: int) -> Sequence[Stretch]:
        """Output from ``cursor`` (empty: the beginning), about ``limit`` bytes; empty when there is no more now."""

    async def tail_log(self, key: str, lines: int) -> str:
        """The cursor from which about ``lines`` lines follow."""

    async def attach(self, key: str) -> AttachStream:
        """A stream to the program's shepherd."""

    async def images(self, what: str, **params: Any) -> Any:
        """Container images: ``list``, ``put``, ``import``, ``pull``, ``job``, ``remove``; see ``node.containers``."""

    async def files(self) -> FilesLink:
        """A conversation about files, on a connection of its own."""

    async def connect_port(self, key: str, port: int) -> AttachStream:
        """A stream to a port on which a process of the program listens; raises WRONG_STATE, NOT_FOUND."""


@dataclass(frozen=True, slots=True)
class FabricEvent:
    """Something a node says by itself: a program changed (``status``), or the node came or went (``up``)."""

    node: str
    status: ProcessStatus | None = None
    up: bool | None = None


class Fabric(Protocol):
    """How the control plane finds and hears nodes."""

    async def start(self) -> None:
        """Begin to connect; nodes are announced by events."""

    def link(self, node: str) -> NodeLink:
        """The link of a node announced before; raises NODE_UNREACHABLE for another."""

    def events(self) -> AsyncIterator[FabricEvent]:
        """What nodes say, forever; after every (re)connection the node comes ``up`` and all is to be compared."""

    async def close(self) -> None:
        """Let go of all nodes; what runs there runs on."""


@dataclass(slots=True)
class Ports:
    """What the composition root hands to the services."""

    store: Store
    fabric: Fabric
    clock: Clock
    random_bits: Callable[[int], int]
    sleep: Callable[[float], Awaitable[None]] = field(repr=False)
    courier: Courier | None = None
    authority: Authority | None = None
    blobs: BlobStore | None = None
    other_heads: OtherHeads | None = None
