"""The Protocols of the database, with the types of their arguments and results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from gpupool.domain.backup import BackupFile
from gpupool.domain.events import Event, Reason
from gpupool.domain.ids import Epoch, WorkloadId
from gpupool.domain.nodes.gpu import Node
from gpupool.domain.nodes.reservation import Reservation
from gpupool.domain.people.access import Department, Project, Token, User
from gpupool.domain.people.sessions import Session
from gpupool.domain.work.search import NEWEST_FIRST, NO_COMMANDS, CommandScope, SearchWord, SortOrder
from gpupool.domain.work.service import Service
from gpupool.domain.work.workload import GpuLease, Replica, Workload, WorkloadKind, WorkloadState
from gpupool.domain.work.workspace import Workspace
from gpupool.services.ports.cluster import JoinStore
from gpupool.services.ports.usage import CapacityStore, PastMoments, SampleStore, UsageStore


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """Everything one transition writes, applied in one transaction or not at all.

    A workload or replica with ``version`` 0 is inserted; otherwise the stored row must have ``version - 1``
    (the caller has already counted up). Leases are inserted, or updated when ``released_at`` is set. Workspaces and
    services are inserted or replaced.
    """

    workloads: tuple[Workload, ...] = ()
    replicas: tuple[Replica, ...] = ()
    leases: tuple[GpuLease, ...] = ()
    events: tuple[Event, ...] = ()
    workspaces: tuple[Workspace, ...] = ()
    services: tuple[Service, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.workloads or self.replicas or self.leases or self.events or self.workspaces or self.services)


@dataclass(frozen=True, slots=True)
class LiveState:
    """The rows that a control plane loads at its start: everything that has not ended."""

    workloads: tuple[Workload, ...]
    replicas: tuple[Replica, ...]
    leases: tuple[GpuLease, ...]
    projects: tuple[Project, ...]
    users: tuple[User, ...]
    nodes: tuple[Node, ...]
    last_epoch: Epoch
    last_event_id: int
    departments: tuple[Department, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    workspaces: tuple[Workspace, ...] = ()
    services: tuple[Service, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkloadFilter:
    """The filter of a listing of workloads; empty means all. ``before`` is the cursor (created_at, id).

    ``before`` works only in the default order; ``offset`` skips rows in any order. Running times count until ``now``.
    Commands are searched as far as ``commands_of`` allows.
    """

    states: tuple[WorkloadState, ...] = ()
    project: str | None = None
    user: str | None = None
    name: str | None = None
    labels: tuple[tuple[str, str], ...] = ()
    kinds: tuple[WorkloadKind, ...] = ()
    search: tuple[SearchWord, ...] = ()
    commands_of: CommandScope = NO_COMMANDS
    sort: SortOrder = NEWEST_FIRST
    now: float = 0.0
    include_deleted: bool = False
    before: tuple[float, WorkloadId] | None = None
    offset: int = 0
    limit: int = 100


@dataclass(frozen=True, slots=True)
class SeenBy:
    """The events that a user who is not an administrator may see.

    These are events caused by or about the user, of the user's workloads, of all workloads in ``projects``, and events
    of the pool itself about nodes.
    """

    user: str
    projects: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EventFilter:
    """The filter of a list of events: those with an id above ``after_id``, oldest first (or the newest ``limit``)."""

    after_id: int = 0
    workload: WorkloadId | None = None
    reasons: tuple[Reason, ...] = ()
    newest: bool = False
    limit: int = 100
    seen_by: SeenBy | None = None  # None: everybody's


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """The filter of audit records, newest first; None and empty mean all.

    ``since`` is inclusive, ``until`` exclusive; ``before`` is the (at, id) of the last record of the previous page.
    ``target`` is the object of an event, for example ``node gpu1``.
    """

    actor: str | None = None
    reasons: tuple[Reason, ...] = ()
    target: str | None = None
    workload: WorkloadId | None = None
    since: float | None = None
    until: float | None = None
    before: tuple[float, int] | None = None
    limit: int = 100
    seen_by: SeenBy | None = None  # None: everybody's


@dataclass(frozen=True, slots=True)
class StartEstimate:
    """The predicted and actual first start of a workload, in seconds from ``made_at``; None: not started yet."""

    workload: WorkloadId
    project: str
    made_at: float
    predicted_s: float
    actual_s: float | None = None


@dataclass(frozen=True, slots=True)
class PastLease:
    """A released lease: its GPUs in thousandths, user, project and times."""

    project: str
    user: str
    permille: int
    granted_at: float
    released_at: float


class WorkloadRecords(Protocol):
    """Plain JSON of a workload, which nodes store in case the database loses it."""

    def to_record(self, workload: Workload, index: int) -> dict[str, Any]:
        """Return the record for one replica; of a sweep's parameters it has only those of this replica."""

    def from_record(self, record: dict[str, Any], index: int) -> Workload:
        """Rebuild the workload; raises ``GpupoolError(INVALID_FILE)`` when the record is not complete."""


class SessionStore(Protocol):
    """Stored sessions and identities. Each method is one transaction; errors are ``GpupoolError`` (DATABASE_*)."""

    async def load(self) -> Sequence[Session]:
        """Return all sessions whose token, if any, is still valid, oldest first."""

    async def save(self, session: Session, event: Event) -> None:
        """Insert or replace a session."""

    async def touch(self, used: Mapping[str, float]) -> None:
        """Store when sessions were last used, by their hashes."""

    async def drop(self, hashes: Sequence[str], events: Sequence[Event] = ()) -> None:
        """Delete sessions."""

    async def note(self, event: Event) -> None:
        """Store an event without a session: a failed sign-in."""

    async def who_is(self, identity: str) -> str | None:
        """Return the user that an identity is bound to, or None."""

    async def is_bound(self, user: str, provider: str) -> bool:
        """Return True if an identity with this prefix (of one provider) is bound to the user."""

    async def bind(self, identity: str, user: str, event: Event) -> None:
        """Bind an identity to a user; an existing binding stays."""


class BackupStore(Protocol):
    """The copies in a folder. Every method raises ``GpupoolError`` when it cannot."""

    async def prepare(self, folder: Path) -> None:
        """Create the folder if it is missing, and check that copies can be written there."""

    async def write(self, folder: Path, name: str) -> int:
        """Write a copy and verify it before it gets its name; returns its size in bytes."""

    async def files(self, folder: Path) -> Sequence[BackupFile]:
        """Return the scheduled copies in the folder, newest first; none if there is no such folder."""

    async def delete(self, folder: Path, names: Iterable[str]) -> None:
        """Delete scheduled copies."""


Value_contra = TypeVar("Value_contra", contravariant=True)
DocumentName = Literal["policy", "warnings", "backups", "cost_rates", "gpu_checks", "saved_views"]


class Rows(Protocol[Value_contra]):
    """Values of one kind, each with a name or an id. Each change is one transaction, with its event."""

    async def save(self, value: Value_contra, event: Event) -> None:
        """Insert or replace."""

    async def delete(self, key: str, event: Event) -> None:
        """Delete the value with this name or id; raises the error of an unknown one."""


class TokenStore(Rows[Token], Protocol):
    """Network tokens."""

    async def list(self, user: str | None = None) -> Sequence[Token]:
        """Return all tokens, or those of a user, newest first."""

    async def find(self, secret_sha256: str) -> Token | None:
        """Return the token with this hash in any state, or None."""

    async def touch(self, token_id: str, at: float) -> None:
        """Store when a token was last used."""


class WorkspaceStore(Rows[Workspace], Protocol):
    """Workspaces."""

    async def update(self, workspace: Workspace) -> None:
        """Replace a workspace without an event, after a measurement."""


class DocumentStore(Protocol):
    """Settings as JSON documents."""

    async def load(self, name: DocumentName) -> str | None:
        """Return a document as it was saved, or None."""

    async def save(self, name: DocumentName, document: str, event: Event) -> None:
        """Insert or replace a document."""


class EstimateStore(Protocol):
    """Estimated starts and their outcomes, one for each workload."""

    async def save(self, estimates: Sequence[StartEstimate]) -> None:
        """Insert or replace estimates by workload."""

    async def drop(self, workloads: Sequence[WorkloadId]) -> None:
        """Delete estimates of workloads that will never start."""

    async def newest(self, limit: int, *, settled: bool) -> Sequence[StartEstimate]:
        """Return estimates, newest first: those with an actual start (``settled``), or those without."""

    async def forget(self, before: float, most: int) -> int:
        """Delete estimates made before a time, and all but the newest ``most``; return the number deleted."""


class Store(Protocol):
    """The database. Each method is one transaction; errors are ``GpupoolError`` (STALE_WRITE, DATABASE_*)."""

    @property
    def usage_books(self) -> UsageStore:
        """Return the usage of GPUs."""

    @property
    def backups(self) -> BackupStore:
        """Return scheduled backups."""

    @property
    def capacity(self) -> CapacityStore:
        """Return the GPU capacity over time."""

    @property
    def use_rows(self) -> SampleStore:
        """Return rolled-up samples."""

    @property
    def moments(self) -> PastMoments:
        """Return past states of the pool."""

    @property
    def joins(self) -> JoinStore:
        """Return join tokens, members and heads."""

    @property
    def sessions(self) -> SessionStore:
        """Return browser sessions."""

    @property
    def tokens(self) -> TokenStore:
        """Return network tokens."""

    @property
    def projects(self) -> Rows[Project]:
        """Return projects; the history of a deleted one stays."""

    @property
    def departments(self) -> Rows[Department]:
        """Return departments."""

    @property
    def users(self) -> Rows[User]:
        """Return users."""

    @property
    def reservations(self) -> Rows[Reservation]:
        """Return reservations."""

    @property
    def workspaces(self) -> WorkspaceStore:
        """Return workspaces."""

    @property
    def services(self) -> Rows[Service]:
        """Return services."""

    @property
    def documents(self) -> DocumentStore:
        """Return documents of settings."""

    @property
    def estimates(self) -> EstimateStore:
        """Return estimated starts."""

    @property
    def records(self) -> WorkloadRecords:
        """Return the converter of workloads to records on nodes."""

    async def known(self, workloads: Sequence[WorkloadId]) -> frozenset[WorkloadId]:
        """Return the workloads that have a row or a lease, also if they or their history were deleted."""

    async def lease_holder(self, epoch: Epoch) -> tuple[WorkloadId, int, int] | None:
        """Return the workload, index and attempt that an epoch was granted to."""

    async def raise_epochs(self, above: int) -> Epoch:
        """Raise the last epoch to at least ``above``, so that the next lease is above it; return the last epoch."""

    async def load_live(self) -> LiveState:
        """Load everything that has not ended, once when a control plane starts."""

    async def commit(self, changes: ChangeSet) -> int:
        """Write all changes or none; return the id of the last event written (0: no event)."""

    async def get_workload(self, ref: str, user: str | None = None) -> Workload | None:
        """Return a workload by id, or by name: the newest that is not deleted, the user's own first."""

    async def by_request_id(self, request_id: str) -> Workload | None:
        """Return the workload that a repeated request created the first time."""

    async def count_workloads(self, wanted: WorkloadFilter) -> int:
        """Return the number of workloads on all pages of a listing."""

    async def list_workloads(self, wanted: WorkloadFilter) -> Sequence[Workload]:
        """Return one page of workloads, newest first, at most ``limit``."""

    async def replicas_of(self, workload: WorkloadId) -> Sequence[Replica]:
        """Return all replicas of a workload, sorted by index."""

    async def leases_of(self, workload: WorkloadId) -> Sequence[GpuLease]:
        """Return all leases of a workload, oldest first."""

    async def list_events(self, wanted: EventFilter) -> Sequence[Event]:
        """Return events, oldest first."""

    async def list_audit(self, wanted: AuditFilter) -> Sequence[Event]:
        """Return audit records, newest first, at most ``limit``."""

    async def runtime_history(self, project: str | None, user: str | None, limit: int = 200) -> Sequence[float]:
        """Return run times of the latest finished replicas of a user in a project (None: of all)."""

    async def past_leases(self, since: float) -> Sequence[PastLease]:
        """Return leases released since a time, in order of their release."""

    async def past_runs(self, limit: int) -> Sequence[PastLease]:
        """Return the latest leases whose replicas ended by themselves, in order of their release."""

    async def save_nodes(self, nodes: Sequence[Node], events: Sequence[Event] = ()) -> None:
        """Insert or replace nodes with their last reports, in one transaction."""

    async def delete_node(self, name: str, event: Event) -> None:
        """Delete a node; its history stays."""

    async def delete_finished_before(self, finished_before: float, limit: int = 1000) -> Sequence[WorkloadId]:
        """Delete old history (workloads, replicas, their events); leases stay for accounting."""

    async def close(self) -> None:
        """Close the database."""
