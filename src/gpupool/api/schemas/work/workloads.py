"""Workloads, their replicas, output and history."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from gpupool.api.schemas.base import View
from gpupool.domain.nodes.gpu import Placement
from gpupool.domain.nodes.sharing import ComputePolicy, Sharing
from gpupool.domain.work.ending import DecidedBy
from gpupool.domain.work.gpu_use import GpuUse
from gpupool.domain.work.workload import (
    Framework,
    OnMemberEnd,
    OnPreempt,
    ReplicaState,
    RestartPolicy,
    SuccessPolicy,
    WorkloadKind,
    WorkloadState,
)


class ReasonView(View):
    """The reason for a state: a code and a sentence."""

    code: str
    message: str


class EndingView(View):
    """The end of a workload or a replica: the rule, a sentence with numbers, the side that decided, and what to do.

    ``user`` is the user who stopped it (empty: no user did), ``index`` the replica that decided. ``remedy`` may be
    empty.
    """

    code: str
    sentence: str
    decided_by: DecidedBy
    user: str = ""
    remedy: str = ""
    exit_status: int | None = None
    index: int = 0


class RetryingView(View):
    """The next attempt after a failure: number ``attempt`` of at most ``attempts``, not before ``next_at``."""

    attempt: int
    attempts: int
    next_at: float


class GpuRequestView(View):
    """Request of each replica: ``count`` GPUs, and the same part of each (thousandths, or MiB if that is set).

    ``sharing`` is null if the GPU decides, ``placement`` is null if the pool decides.
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


class WorkloadSummary(View):
    """The fields of a workload that a list of workloads shows; they mean the same as in ``WorkloadView``."""

    id: str
    name: str
    kind: WorkloadKind
    project: str
    user: str
    state: WorkloadState
    gpus: GpuRequestView
    created_at: float
    expires_at: float | None
    completions: int
    counts: ReplicaCounts
    command: list[str] | None
    on: str | None
    reason: ReasonView | None
    node: str | None
    ending: EndingView | None = None
    retrying: RetryingView | None = None
    lazy: GpuUse | None = None
    waiting: ReasonView | None = None


class WorkloadView(WorkloadSummary):
    """One workload. ``command``, ``workdir``, ``image`` and ``volumes`` are null for callers who may not see them.

    ``node`` is that of a workload with one replica; ``exit_status`` too, and of a gang that of the member that decided.
    ``gpu_uuids`` are the GPUs held now.
    ``sharing`` is the mode that it has (``whole``, ``share``, ``mps``, ``mig``, ``advisory``); ``slice`` while that of
    a part of a GPU is not decided, ``held`` on another workload's GPUs, ``none`` without any. ``workspace`` is the id
    of the workspace in whose home it runs, ``git`` the repository that is cloned before the start,
    ``mail`` the moments about which its user wants mail. ``ending`` is null
    until it has ended; ``retrying`` is set while a replica waits for its next attempt. ``lazy`` is the state of a
    running lazy or suspendable program: it has not used CUDA (``unused``), waits for its GPUs (``waiting``), has them
    (``held``), or has what was in their memory in the memory of its node (``suspended``).
    ``waiting`` is set in lists with ``reasons=true`` only: why it waits in the queue.
    """

    priority: int
    preemptible: bool
    started_at: float | None
    finished_at: float | None
    parallelism: int
    workdir: str | None
    labels: dict[str, str]
    exit_status: int | None
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
    git: str | None = None
    mail: str | None = None


class RoleView(View):
    """Equal members of a gang; ``first`` is the index of the first one."""

    name: str
    first: int
    replicas: int
    gpus: GpuRequestView
    cpus: float | None
    memory_mib: int | None


class GangView(View):
    """Gang settings: at least ``min`` of ``workers`` start together; ``within`` is the node label that they share.

    ``mixed_models``: their GPUs may be of different models. ``round`` counts the joint starts of a gang with a
    framework. ``roles`` is empty if all members are equal.
    """

    workers: int
    min: int
    within: str
    strict: bool
    mixed_models: bool = False
    on_member_end: OnMemberEnd = OnMemberEnd.CONTINUE
    success_policy: SuccessPolicy = SuccessPolicy.ALL_WORKERS
    round: int = 0
    roles: list[RoleView] = Field(default_factory=list)


class WorkloadList(View):
    """One page of workloads; ``next_cursor`` asks for the next page, null at the end.

    ``total`` is the number of workloads on all pages, null unless it was requested.
    """

    workloads: list[WorkloadView]
    next_cursor: str | None
    total: int | None = None


class WorkloadSummaries(View):
    """One page of workloads with the fields of a list, for ``summary=true``."""

    workloads: list[WorkloadSummary]
    next_cursor: str | None
    total: int | None = None


class ShareView(View):
    """Return the view of a part of a GPU."""

    uuid: str
    index: int
    permille: int
    memory_mib: int


class ReplicaView(View):
    """One replica. ``parameters`` are null for callers without the right to see them.

    ``sharing`` is the mode that its node reports, ``guarantee`` the guarantee of that mode (empty until it reports).

    ``role`` and ``rank`` are those of a gang member; ``rank`` is null before the first joint start. ``member`` is its
    full name: the workload's, with role and number if there are several replicas. ``attach_path`` is the unix socket of
    the program's streams (empty: none now, or not for this caller). ``relayed``: it runs on another node than the
    control plane, which relays its streams (``attach``); ``attachable``: its streams exist. ``saved_at``, ``step`` and
    ``metrics`` are the program's own report; ``unsaved_gpu_s`` are the GPU seconds that an eviction now would lose,
    ``lost_gpu_s`` those lost so far.
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
    metrics: dict[str, float] = Field(default_factory=dict)
    unsaved_gpu_s: float = 0.0
    lost_gpu_s: float = 0.0
    ending: EndingView | None = None
    retrying: RetryingView | None = None


class LeaseView(View):
    """Shares of GPUs granted to one attempt of one replica; ``index`` is -1 for the GPUs of a lazy workload."""

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
    """Restart policy of replicas; ``same_limit``: immediate failures in a row with one status end it (0: no limit)."""

    policy: RestartPolicy
    backoff_limit: int
    same_limit: int = 0


class LimitsView(View):
    """Limits on time and host resources; null means none."""

    wait_s: float | None
    max_time_s: float | None
    idle_timeout_s: float | None
    grace_s: float
    cpus: float | None
    memory_mib: int | None
    log_limit_mib: int
    notice_signal: str = "TERM"
    checkpoint_s: float | None = None
    begin_s: float | None = None
    on_preempt: OnPreempt = OnPreempt.SIGNAL
    lazy: bool = False
    return_after_s: float | None = None


class DependencyView(View):
    """Another workload that must end first; without ``name`` it is deleted."""

    workload: str
    success_only: bool
    failure_only: bool = False
    name: str | None = None


class WorkloadDetail(WorkloadView):
    """A workload with its replicas (at most 1000, from ``replicas_from``), leases and all fields of its request.

    ``guarantees`` is a sentence about the isolation of ``sharing``. ``manages``: the caller may stop it and attach to
    it.
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


class SuggestionView(View):
    """A smaller request that would do: a code, a sentence with numbers, and the option for the next submission."""

    code: str
    sentence: str
    option: str = ""


class EfficiencyView(View):
    """The request of a workload, and what all its replicas and attempts used of it.

    ``measured_s`` are seconds of replicas with samples. Percentages are of the request, null without a request or
    measurement; ``gpu_percent`` is the mean, those of memory are of the highest use. ``gpu_memory_mib`` and
    ``memory_mib`` are the highest use of a replica. ``gpus``, ``granted_memory_mib`` and ``permille`` are the number of
    GPUs of a replica, and the memory and part of each.
    """

    workload: str
    measured_s: float
    gpus: int
    granted_memory_mib: int
    permille: int
    gpu_memory_mib: int
    memory_mib: int
    gpu_percent: float | None
    gpu_memory_percent: float | None
    cpu_percent: float | None
    memory_percent: float | None
    suggestions: list[SuggestionView]


class ResultRow(View):
    """One replica of a sweep or array: its parameters, and the metrics that it reported last."""

    index: int
    state: ReplicaState
    attempt: int
    exit_status: int | None
    step: int | None
    ran_s: float | None
    parameters: dict[str, Any]
    metrics: dict[str, float]


class ResultTable(View):
    """Parameters and metrics of all replicas; ``parameters`` and ``metrics`` are the names of the columns."""

    workload: str
    parameters: list[str]
    metrics: list[str]
    rows: list[ResultRow]
    next_cursor: str | None = None


class WhyView(View):
    """Why a workload is in its state, with numbers, suggestions, and an estimate with its basis.

    Half of such workloads start between ``estimate_low_s`` and ``estimate_high_s`` from now, nine of ten between
    ``estimate_least_s`` and ``estimate_most_s``; each may be null.
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
    estimate_least_s: float | None = None
    estimate_most_s: float | None = None


class LogChunkView(View):
    """A chunk of output: ``data`` is base64, ``cursor`` is the start of the next chunk."""

    at: float
    stream: Literal["out", "err"]
    data: str
    cursor: str


class LogPage(View):
    """Chunks of output from a cursor; ``end``: the attempt has ended, and no more output follows.

    ``dropped``: older output after the cursor was deleted, because of the size limit of a log or its age.
    """

    chunks: list[LogChunkView]
    cursor: str
    end: bool
    dropped: bool = False


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
    """Events, newest first; ``next`` is the value of ``before`` for the next page, null at the end."""

    events: list[EventView]
    next: str | None
