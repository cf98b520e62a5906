"""Workloads, their replicas, output and history."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from gpupool.api.schemas.base import View
from gpupool.domain.nodes.gpu import Placement
from gpupool.domain.nodes.sharing import ComputePolicy, Sharing
from gpupool.domain.work.workload import (
    Framework,
    OnMemberEnd,
    ReplicaState,
    RestartPolicy,
    SuccessPolicy,
    WorkloadKind,
    WorkloadState,
)


class ReasonView(View):
    """Why something is as it is: a code and a sentence."""

    code: str
    message: str


class GpuRequestView(View):
    """Request of each replica: ``count`` GPUs, the same part of each (thousandths, or MiB when that is set).

    ``sharing`` is null where the GPU decides, ``placement`` where the pool does.
    """

    count: int
    permille: int
    memory_mib: int | None
    models: list[str]
    labels: dict[str, str]
    compute: ComputePolicy = ComputePolicy.GUARANTEE
    sharing: Sharing | None = None
    placement: Placement | None = None


class ReplicaCounts(View):
    """Number of replicas by state."""

    pending: int = 0
    starting: int = 0
    running: int = 0
    stopping: int = 0
    succeeded: int = 0
    failed: int = 0
    stopped: int = 0


class WorkloadView(View):
    """One workload. ``command``, ``workdir``, ``image`` and ``volumes`` are null for those who may not see them.

    ``node`` is that of a workload with one replica; ``exit_status`` too, and of a gang that of the member that decided.
    ``gpu_uuids`` are the GPUs held now.
    ``sharing`` is the mode that it has (``whole``, ``share``, ``mps``, ``mig``, ``advisory``); ``slice`` while that of
    a part of a GPU is not decided, ``held`` on another workload's GPUs, ``none`` without any. ``workspace`` is the id
    of the workspace in whose home it runs.
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
    sharing: str = ""
    gang: GangView | None = None
    framework: Framework | None = None
    image: str | None = None
    volumes: list[str] | None = None
    workspace: str | None = None


class RoleView(View):
    """Members of a gang that are alike; ``first`` is the index of the first of them."""

    name: str
    first: int
    replicas: int
    gpus: GpuRequestView
    cpus: float | None
    memory_mib: int | None


class GangView(View):
    """Gang settings: at least ``min`` of ``workers`` start together; ``within`` is the node label that they share.

    ``round`` counts how often they have started together, of a gang with a framework. ``roles`` is empty where all
    members are alike.
    """

    workers: int
    min: int
    within: str
    strict: bool
    on_member_end: OnMemberEnd = OnMemberEnd.CONTINUE
    success_policy: SuccessPolicy = SuccessPolicy.ALL_WORKERS
    round: int = 0
    roles: list[RoleView] = Field(default_factory=list)


class WorkloadList(View):
    """One page of workloads; ``next_cursor`` asks for the next page, null at the end.

    ``total`` is the number of workloads on all pages, null unless it was asked for.
    """

    workloads: list[WorkloadView]
    next_cursor: str | None
    total: int | None = None


class ShareView(View):
    """Return the view of a part of a GPU."""

    uuid: str
    index: int
    permille: int
    memory_mib: int


class ReplicaView(View):
    """One replica. ``parameters`` are null for those who may not see them.

    ``sharing`` is the mode that its node says it runs under, ``guarantee`` what that holds to (empty until it says so).

    ``role`` and ``rank`` are those of a member of a gang; ``rank`` is null before its first round.
    ``member`` is its whole name: the workload's, with role and number where there are several replicas.
    ``attach_path`` is the unix socket that speaks for the program (empty: none now, or not for this caller);
    ``relayed``: it runs on another machine than the control plane, which carries its stream (``attach``);
    ``attachable``: that there is such a stream by now. ``saved_at`` and ``step`` are the program's own report;
    ``unsaved_gpu_s`` are the GPU seconds that an eviction now would lose, ``lost_gpu_s`` those lost so far.
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
    relayed: bool = False
    attachable: bool = False
    pid: int | None
    notes: list[str]
    last_active_at: float | None
    member: str = ""
    role: str = ""
    rank: int | None = None
    sharing: str = ""
    guarantee: str = ""
    saved_at: float | None = None
    step: int | None = None
    unsaved_gpu_s: float = 0.0
    lost_gpu_s: float = 0.0


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
    sharing: str = ""
    compute: ComputePolicy = ComputePolicy.GUARANTEE


class RetryView(View):
    """Restart policy of replicas."""

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
    notice_signal: str = "TERM"
    checkpoint_s: float | None = None


class DependencyView(View):
    """Another workload that must end first."""

    workload: str
    success_only: bool


class WorkloadDetail(WorkloadView):
    """A workload with its replicas (at most 1000, from ``replicas_from``), leases and everything asked for.

    ``guarantees`` says in a sentence what ``sharing`` keeps apart and what it does not. ``manages``: the caller may
    stop it and attach to it.
    """

    replicas: list[ReplicaView]
    leases: list[LeaseView]
    env: dict[str, str] | None
    uid: int | None
    retry: RetryView
    limits: LimitsView
    after: list[DependencyView]
    guarantees: str
    windows: list[str] = Field(default_factory=list)
    manages: bool = False


class WhyView(View):
    """Why a workload stands where it stands, with numbers, what would help, and an estimate with its basis.

    It starts most likely between ``estimate_low_s`` and ``estimate_high_s`` from now; either may be null.
    """

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
    estimate_low_s: float | None = None
    estimate_high_s: float | None = None


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
    """One event."""

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


class AuditPage(View):
    """Events, newest first; ``next`` is what ``before`` takes for those before them, None when there are no more."""

    events: list[EventView]
    next: str | None
