"""What the API answers: one model per thing, as JSON. Free of any web framework, so that the client can use them.

Times are seconds since the epoch (UTC) or null; durations are seconds; shares of a GPU are whole thousandths
(``permille``); memory is MiB.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from gpupool.domain.access import Role
from gpupool.domain.gpu import GpuHealth, NodeState
from gpupool.domain.units import MAX_DURATION_S
from gpupool.domain.workload import ReplicaState, RestartPolicy, WorkloadKind, WorkloadState

MAX_PAGE = 1000
MAX_REPLICAS_SHOWN = 1000
MAX_TOKEN_LIFE_S = 366 * 86400
DEFAULT_TOKEN_LIFE_S = 30 * 86400
MAX_PERMILLE = 1_000_000_000

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$", max_length=63)]
Note = Annotated[str, StringConstraints(max_length=500)]
Permille = Annotated[int, Field(ge=0, le=MAX_PERMILLE)]
Seconds = Annotated[float, Field(gt=0, le=MAX_DURATION_S, allow_inf_nan=False)]
ReplicaIndex = Annotated[int, Field(ge=0, le=10_000_000)]


class View(BaseModel):
    """Base of everything the API answers; unknown fields of a newer server are ignored by an older client."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Body(BaseModel):
    """Base of everything the API accepts; an unknown field is an error, since it is most often a misspelt one."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ErrorDetail(View):
    """What went wrong: a stable code, one sentence, and what to do next (may be empty)."""

    code: str
    message: str
    hint: str = ""


class ErrorBody(View):
    """The body of every answer that is not a success."""

    error: ErrorDetail


class HealthView(View):
    """Whether the control plane answers."""

    status: Literal["ok"] = "ok"
    version: str
    pool_id: str
    pid: int


class PoolView(View):
    """The pool as a whole."""

    version: str
    pool_id: str
    kind: Literal["user", "system"]
    started_at: float
    state_dir: str
    emulated: bool
    warnings: list[str]
    nodes: int
    nodes_up: int
    gpus: int
    gpu_permille_total: int
    gpu_permille_allocated: int
    queued: int
    running: int
    listen: str | None


class WhoamiView(View):
    """Who the pool takes the caller for; ``projects`` are those the caller may use."""

    user: str
    role: Role
    via: str
    uid: int | None
    projects: list[str]


class MigView(View):
    """A MIG instance on a card."""

    uuid: str
    profile: str
    memory_mib: int


class ForeignView(View):
    """A process on a GPU that the pool did not start."""

    pid: int
    user: str
    name: str
    memory_mib: int


class HolderView(View):
    """Who holds a part of a GPU."""

    workload: str
    name: str
    index: int
    user: str
    project: str
    permille: int
    memory_mib: int
    since: float


class GpuView(View):
    """One GPU, what it does now, and who holds it. ``available`` is about the card itself, not about free shares."""

    uuid: str
    node: str
    index: int
    model: str
    memory_mib: int
    emulated: bool
    pci_bus_id: str
    health: GpuHealth
    health_note: str
    links: dict[int, str]
    mig: list[MigView]
    foreign: list[ForeignView]
    memory_used_mib: int
    utilisation_percent: int
    allocated_permille: int
    allocated_memory_mib: int
    available: bool
    holders: list[HolderView]


class NodeView(View):
    """One machine."""

    name: str
    state: NodeState
    cordon_reason: str
    cpus: float
    memory_mib: int
    emulated: bool
    agent_version: str
    driver_version: str
    cuda_version: str
    labels: dict[str, str]
    warnings: list[str]
    gpus: list[GpuView]
    cpus_allocated: float
    memory_allocated_mib: int


class NodeList(View):
    """All machines of the pool."""

    nodes: list[NodeView]


class GpuList(View):
    """All GPUs of the pool."""

    gpus: list[GpuView]


class ReasonView(View):
    """Why something is as it is: a code and a sentence."""

    code: str
    message: str


class GpuRequestView(View):
    """What each replica asks for: ``count`` GPUs, the same part of each (thousandths, or MiB when that is set)."""

    count: int
    permille: int
    memory_mib: int | None
    models: list[str]
    labels: dict[str, str]


class ReplicaCounts(View):
    """How many replicas stand where."""

    pending: int = 0
    starting: int = 0
    running: int = 0
    stopping: int = 0
    succeeded: int = 0
    failed: int = 0
    stopped: int = 0


class WorkloadView(View):
    """One workload. ``command`` and ``workdir`` are null for those who may not see them.

    ``exit_status`` and ``node`` are those of a workload with one replica; ``gpu_uuids`` are the GPUs held now.
    """

    id: str
    name: str
    kind: WorkloadKind
    project: str
    user: str
    state: WorkloadState
    priority: int
    preemptible: bool
    gpus: GpuRequestView
    created_at: float
    started_at: float | None
    finished_at: float | None
    expires_at: float | None
    completions: int
    parallelism: int
    counts: ReplicaCounts
    command: list[str] | None
    workdir: str | None
    labels: dict[str, str]
    on: str | None
    reason: ReasonView | None
    exit_status: int | None
    node: str | None
    gpu_uuids: list[str]
    suspended: bool
    stop_reason: str | None
    cpus: float | None
    memory_mib: int | None
    max_time_s: float | None
    idle_timeout_s: float | None
    wait_s: float | None


class WorkloadList(View):
    """One page of workloads, newest first; ``next_cursor`` asks for the next page, null at the end."""

    workloads: list[WorkloadView]
    next_cursor: str | None


class ShareView(View):
    """A part of one GPU."""

    uuid: str
    index: int
    permille: int
    memory_mib: int


class ReplicaView(View):
    """One replica. ``parameters`` are null for those who may not see them.

    ``attach_path`` is the unix socket that speaks for the program (empty: none now, or not for this caller).
    """

    index: int
    state: ReplicaState
    attempt: int
    key: str
    node: str | None
    exit_status: int | None
    reason: str
    message: str
    failures: int
    interruptions: int
    queued_at: float
    not_before: float
    started_at: float | None
    finished_at: float | None
    parameters: dict[str, Any] | None
    gpus: list[ShareView]
    attach_path: str
    pid: int | None
    notes: list[str]
    last_active_at: float | None


class LeaseView(View):
    """Shares of GPUs granted to one attempt of one replica."""

    epoch: int
    index: int
    attempt: int
    node: str
    shares: list[ShareView]
    cpus: float
    memory_mib: int
    granted_at: float
    released_at: float | None


class RetryView(View):
    """When and how often a replica is run again."""

    policy: RestartPolicy
    backoff_limit: int


class LimitsView(View):
    """Bounds in time and host resources; null means none."""

    wait_s: float | None
    max_time_s: float | None
    idle_timeout_s: float | None
    grace_s: float
    cpus: float | None
    memory_mib: int | None
    log_limit_mib: int


class DependencyView(View):
    """Another workload that must end first."""

    workload: str
    success_only: bool


class WorkloadDetail(WorkloadView):
    """A workload with its replicas (at most 1000, from ``replicas_from``), leases and everything asked for.

    ``sharing`` says how GPUs are shared (``whole``, ``slice`` or ``none``); ``guarantees`` says in a sentence what is
    kept apart and what is not.
    """

    replicas: list[ReplicaView]
    leases: list[LeaseView]
    env: dict[str, str] | None
    uid: int | None
    retry: RetryView
    limits: LimitsView
    after: list[DependencyView]
    sharing: str
    guarantees: str


class WhyView(View):
    """Why a workload stands where it stands, with numbers, what would help, and an estimate with its basis."""

    state: WorkloadState
    code: str
    sentence: str
    position: int | None
    ahead_in_project: int
    ahead_total: int
    numbers: dict[str, Any]
    would_help: list[str]
    estimate_s: float | None
    estimate_basis: str


class LogChunkView(View):
    """A piece of output: ``data`` is base64, ``cursor`` is where the next piece begins."""

    at: float
    stream: Literal["out", "err"]
    data: str
    cursor: str


class LogPage(View):
    """Pieces of output from a cursor; ``end`` says that the attempt has ended and nothing more will come."""

    chunks: list[LogChunkView]
    cursor: str
    end: bool


class EventView(View):
    """One thing that happened."""

    id: int
    at: float
    actor: str
    reason: str
    message: str
    workload: str | None
    index: int | None
    target: str


class EventList(View):
    """Events, oldest first."""

    events: list[EventView]


class ProjectView(View):
    """A project, its bounds, and what it holds and waits for now."""

    name: str
    quota_permille: int | None
    over_quota: bool
    limit_permille: int | None
    user_limit_permille: int | None
    members: list[str]
    max_time_s: float | None
    idle_timeout_s: float | None
    note: str
    allocated_permille: int
    queued: int


class ProjectList(View):
    """All projects."""

    projects: list[ProjectView]


class UserView(View):
    """A user of the pool."""

    name: str
    role: Role
    uid: int | None
    gpu_limit_permille: int | None
    disabled: bool


class UserList(View):
    """Users: all for an administrator, oneself for others."""

    users: list[UserView]


class TokenView(View):
    """A network token, without its secret."""

    id: str
    user: str
    role: Role
    created_at: float
    expires_at: float
    revoked_at: float | None
    last_used_at: float | None
    note: str


class NewTokenView(TokenView):
    """A token just made: the only time its secret is shown."""

    secret: str


class TokenList(View):
    """Tokens, newest first: all for an administrator, one's own for others."""

    tokens: list[TokenView]


class UsageRowView(View):
    """GPU seconds held by one user in one project."""

    project: str
    user: str
    gpu_seconds: float
    leases: int


class UsageView(View):
    """GPU seconds held between two times."""

    since: float
    until: float
    rows: list[UsageRowView]


class CordonBody(Body):
    """Why a node shall take nothing new."""

    reason: Note = ""


class StopBody(Body):
    """How to stop: seconds between TERM and KILL, at once, or one replica only."""

    grace_s: Annotated[float, Field(ge=0, le=86400, allow_inf_nan=False)] | None = None
    force: bool = False
    index: ReplicaIndex | None = None


class SignalBody(Body):
    """A signal by name (``INT``, ``SIGUSR1``) or number, for one replica."""

    signal: (
        Annotated[int, Field(ge=1, le=64, strict=True)]
        | Annotated[str, StringConstraints(pattern=r"^[A-Z0-9+]{1,12}$")]
    )
    index: ReplicaIndex = 0


class ExtendBody(Body):
    """How much longer a lease shall live."""

    seconds: Seconds


class _ProjectBounds(Body):
    quota_permille: Permille | None = None
    over_quota: bool = True
    limit_permille: Permille | None = None
    user_limit_permille: Permille | None = None
    members: Annotated[list[Name], Field(max_length=1000)] = []
    max_time_s: Seconds | None = None
    idle_timeout_s: Seconds | None = None
    note: Note = ""


class ProjectBody(_ProjectBounds):
    """A new project."""

    name: Name


class ProjectChange(_ProjectBounds):
    """What to change of a project; fields left out stay."""


class UserChange(Body):
    """What to change of a user; fields left out stay."""

    role: Role = Role.MEMBER
    uid: Annotated[int, Field(ge=0, le=4_294_967_294)] | None = None
    gpu_limit_permille: Permille | None = None
    disabled: bool = False


class TokenBody(Body):
    """A token to make: for whom, with at most which role, for how long."""

    user: Name | None = None
    role: Role | None = None
    expires_in_s: Annotated[float, Field(gt=0, le=MAX_TOKEN_LIFE_S, allow_inf_nan=False)] = DEFAULT_TOKEN_LIFE_S
    note: Note = ""
