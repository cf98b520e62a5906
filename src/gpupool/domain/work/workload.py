"""Workloads, replicas and leases: requests, running programs, and the holders of GPUs."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from gpupool.domain.events import Reason
from gpupool.domain.ids import AttemptKey, Epoch, WorkloadId, attempt_key
from gpupool.domain.nodes.gpu import GpuRequest, GpuShare
from gpupool.domain.nodes.sharing import ComputePolicy
from gpupool.domain.work.gang import Gang, Rendezvous
from gpupool.domain.work.program.container import ContainerSpec
from gpupool.domain.work.program.supervision import Stdio
from gpupool.domain.work.states import ReplicaState as ReplicaState  # noqa: PLC0414 - re-exported
from gpupool.domain.work.states import WorkloadKind as WorkloadKind  # noqa: PLC0414 - re-exported
from gpupool.domain.work.states import WorkloadState as WorkloadState  # noqa: PLC0414 - re-exported


class RestartPolicy(StrEnum):
    """The policy for restarts of a replica that ended by itself."""

    NEVER = "never"
    ON_FAILURE = "on-failure"
    ALWAYS = "always"


class Framework(StrEnum):
    """Framework of a gang: sets the variables by which members find each other. ``docs/distributed.md`` lists them."""

    TORCH = "torch"  # RANK, WORLD_SIZE, MASTER_ADDR, ... as torchrun sets and reads them
    MPI = "mpi"  # a launcher with a host file, and members that wait for the processes it starts
    TF = "tf"  # TF_CONFIG


class SuccessPolicy(StrEnum):
    """The workers of a TensorFlow job without a chief that must succeed for the job to succeed."""

    ALL_WORKERS = "all-workers"
    FIRST_WORKER = "first-worker"  # the default of a TFJob


class OnMemberEnd(StrEnum):
    """The effect of a member's failure, loss or eviction on the other members of its gang."""

    RESTART = "restart"  # all end and start again together
    FAIL = "fail"  # the whole workload fails
    CONTINUE = "continue"  # they continue; only the member is restarted, by its restart policy


class OnPreempt(StrEnum):
    """The effect of a preemption on a program."""

    SIGNAL = "signal"  # it gets a notice and a signal, and is killed after its grace period
    KILL = "kill"  # it is killed at once: it has nothing to save
    SUSPEND = "suspend"  # its GPU memory moves to the memory of its node, and it continues when it gets its GPU back


class EnvSource(StrEnum):
    """A value for a variable that is known only when the program starts."""

    MEMBER = "member"  # the workload's name, with role and number if there are several replicas
    INDEX = "index"
    ID = "id"  # of the workload
    PROJECT = "project"
    USER = "user"
    NODE = "node"
    ADDRESS = "address"  # of the node


@dataclass(frozen=True, slots=True)
class Dependency:
    """Another workload that must end first.

    ``success_only`` requires that it succeeded, ``failure_only`` that it failed or was stopped.
    """

    workload: WorkloadId
    success_only: bool = True
    failure_only: bool = False

    @property
    def condition(self) -> str:
        """Return the condition on its end: success, failure or any."""
        return "failure" if self.failure_only else "success" if self.success_only else "any"


@dataclass(frozen=True, slots=True)
class Serving:
    """The service whose replica a workload is (by id), and its revision.

    ``port`` is the port to listen on (0: a free one); ``{port}`` and ``{host}`` in the command and in the environment
    are replaced, and the variable ``port_env`` has the port.
    """

    service: str
    revision: int
    port: int = 0
    port_env: str = "PORT"


@dataclass(frozen=True, slots=True)
class Program:
    """The program to execute, its folder and its environment. ``{name}`` in ``argv`` is a parameter of a sweep.

    ``tree`` and ``lock`` are the files sent with it (``domain.work.program.file_tree``); ``cwd`` is then a folder in
    them. ``env_from``: variables with values known only at the start, by the names of ``EnvSource``. ``literal``:
    ``{index}`` in ``argv`` is not replaced. ``container``: it runs in one, ``argv`` may then be empty; None: a plain
    process. ``linger_s``: see ``supervision.ProcessSpec``. ``workspace`` is the id of the workspace in whose home it
    runs (empty: none); ``cwd`` may be relative to the home. ``serving``: it is a replica of a service. ``git`` is the
    repository that is cloned before the start (``domain.work.program.git_source``; empty: none).
    """

    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    cwd: str = ""
    stdio: Stdio = Stdio.BATCH
    rows: int = 24
    columns: int = 80
    umask: int = 0o022
    client_bound: bool = False
    linger_s: float | None = None
    tree: str = ""
    lock: str = ""
    env_from: dict[str, str] = field(default_factory=dict)
    literal: bool = False
    container: ContainerSpec | None = None
    workspace: str = ""
    serving: Serving | None = None
    git: str = ""


TTL_LABEL = "gpupool/ttl"  # the label of work that is deleted some time after its end


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits in time and host resources; None: no limit. Times are seconds, ``memory_mib`` is host memory.

    ``ttl_s``: this long after its end it is deleted with its output. ``notice_signal``: see
    ``supervision.ProcessSpec``. ``on_preempt``: what happens instead of notice and signal. ``checkpoint_s``: how often
    the program saves its state (0: on preemption); None: not declared. ``lazy``: it starts without GPUs, and gets them
    on its node when its program first uses CUDA. It returns them when no process has used CUDA for ``return_after_s``
    (None: ``supervision.DEFAULT_RETURN_AFTER_S``).
    """

    wait_s: float | None = None  # longest time in the queue; 0: start now or fail
    max_time_s: float | None = None
    idle_timeout_s: float | None = None
    grace_s: float = 10.0
    notice_signal: str = "TERM"
    cpus: float | None = None
    memory_mib: int | None = None
    log_limit_mib: int = 64
    ttl_s: float | None = None
    checkpoint_s: float | None = None
    begin_s: float | None = None  # earliest start after the submission
    on_preempt: OnPreempt = OnPreempt.SIGNAL
    lazy: bool = False
    return_after_s: float | None = None

    @property
    def preemption_grace_s(self) -> float:
        """Return the time between a preemption and the kill."""
        return 0.0 if self.on_preempt is OnPreempt.KILL else self.grace_s

    @property
    def saved_every_s(self) -> float | None:
        """Return how often its state is saved; a program with its own notice signal saves it on preemption."""
        saves = self.notice_signal != "TERM" or self.suspendable
        return 0.0 if self.checkpoint_s is None and saves else self.checkpoint_s

    @property
    def suspendable(self) -> bool:
        """Return whether its processes may be suspended: their GPU memory moves to the memory of the node."""
        return self.on_preempt is OnPreempt.SUSPEND

    @property
    def separate_gpus(self) -> bool:
        """Return whether its GPUs have a lease of their own, because it gets and returns them while it runs."""
        return self.lazy or self.suspendable


@dataclass(frozen=True, slots=True)
class Retry:
    """The conditions and the number of restarts of a replica. Losses caused by the pool are not counted.

    ``same_limit``: it is not restarted after this many immediate failures in a row with the same exit status (0: no
    such limit).
    """

    policy: RestartPolicy = RestartPolicy.NEVER
    backoff_limit: int = 0
    same_limit: int = 0


@dataclass(frozen=True, slots=True)
class GangRole:
    """Members of a gang that are alike; None values are the workload's own.

    ``env`` is added to the workload's. ``restart``: when a member that ended by itself is restarted. ``container``: its
    own container instead of the program's.
    """

    name: str
    replicas: int
    argv: tuple[str, ...] | None = None
    env: dict[str, str] = field(default_factory=dict)
    gpus: GpuRequest | None = None
    cpus: float | None = None
    memory_mib: int | None = None
    restart: RestartPolicy | None = None
    container: ContainerSpec | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """A user's request and its present state.

    ``completions`` replicas (index 0 to completions - 1) run, at most ``parallelism`` at a time; ``parameters[i]`` are
    the parameters of replica ``i`` of a sweep. ``on`` is the workload whose GPUs an EXEC uses. ``compute`` is the
    compute policy of its shares. ``gang``: its replicas start together (``parallelism`` is then the largest gang).
    ``roles``: the differences between members; roles have consecutive indices, and are empty if all members are alike.
    ``framework``: how members find each other; ``on_member_end``: the effect of a member's loss on the others;
    ``success_policy``: the workers that must succeed; ``processes``: the ranks of each member (0: one for each of its
    GPUs). ``wiring``: the members' addresses, once they have started together. ``windows``: it starts only then
    (``domain.work.time_windows``). ``request_id`` makes a repeated submission of the same request (``request_digest``)
    harmless. Times are seconds since the epoch. ``version`` counts writes: the store refuses a write with an old one.
    """

    id: WorkloadId
    name: str
    kind: WorkloadKind
    project: str
    user: str
    program: Program
    gpus: GpuRequest
    created_at: float
    uid: int | None = None
    compute: ComputePolicy = ComputePolicy.GUARANTEE
    gang: Gang | None = None
    roles: tuple[GangRole, ...] = ()
    framework: Framework | None = None
    on_member_end: OnMemberEnd = OnMemberEnd.CONTINUE
    success_policy: SuccessPolicy = SuccessPolicy.ALL_WORKERS
    wiring: Rendezvous | None = None
    processes: int = 0
    priority: int = 0
    preemptible: bool = False
    limits: Limits = field(default_factory=Limits)
    retry: Retry = field(default_factory=Retry)
    completions: int = 1
    parallelism: int = 1
    parameters: tuple[dict[str, Any], ...] = ()
    after: tuple[Dependency, ...] = ()
    windows: tuple[str, ...] = ()
    on: WorkloadId | None = None
    on_index: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    mail: str = ""  # when its user wants mail (domain.work.mail_types)
    request_id: str | None = None
    request_digest: str = ""  # of the request with that id; empty: unknown
    state: WorkloadState = WorkloadState.QUEUED
    suspended: bool = False
    stop_reason: Reason | None = None  # set once the whole workload is to stop
    expires_at: float | None = None  # LEASE only
    started_at: float | None = None
    finished_at: float | None = None
    deleted_at: float | None = None
    version: int = 0

    def key(self, index: int, attempt: int) -> AttemptKey:
        """Return the key of one attempt of one replica."""
        return attempt_key(self.id, index, attempt)

    def member_name(self, index: int) -> str:
        """Return the workload's name with the part that identifies the replica: ``mnist-worker-0``, ``sweep-3``."""
        place = self.place_in_roles(index)
        if place is not None:
            return f"{self.name}-{place[0].name.lower()}-{place[1]}"
        return f"{self.name}-{index}" if self.completions > 1 else self.name

    def place_in_roles(self, index: int) -> tuple[GangRole, int] | None:
        """Return the role of a member and its number within it; None if all members are alike."""
        for role in self.roles:
            if index < role.replicas:
                return role, index
            index -= role.replicas
        return None

    def role_of(self, index: int) -> GangRole | None:
        """Return the role of a member; None if all members are alike."""
        place = self.place_in_roles(index)
        return None if place is None else place[0]

    def indices_of(self, role: str) -> range:
        """Return the members of a role; empty if there is no such role."""
        first = 0
        for each in self.roles:
            if each.name == role:
                return range(first, first + each.replicas)
            first += each.replicas
        return range(0)

    def gpus_of(self, index: int) -> GpuRequest:
        """Return the GPUs that a member requests."""
        role = self.role_of(index)
        return self.gpus if role is None or role.gpus is None else role.gpus

    def cpus_of(self, index: int) -> float | None:
        """Return the processors that a member requests."""
        role = self.role_of(index)
        return self.limits.cpus if role is None or role.cpus is None else role.cpus

    def counted_cpus(self, index: int) -> float:
        """Return the processors that count for a member: one if it requests no GPU and no processors."""
        cpus = self.cpus_of(index)
        if cpus is None:
            return 0.0 if self.gpus_of(index).count else 1.0
        return cpus

    def memory_of(self, index: int) -> int | None:
        """Return the host memory that a member requests, in MiB."""
        role = self.role_of(index)
        return self.limits.memory_mib if role is None or role.memory_mib is None else role.memory_mib

    def different_members(self) -> tuple[tuple[GpuRequest, float, int], ...]:
        """Return each distinct request of its members: GPUs, processors, MiB of host memory."""
        firsts = [self.indices_of(role.name).start for role in self.roles] or [0]
        asked = ((self.gpus_of(i), self.counted_cpus(i), self.memory_of(i) or 0) for i in firsts)
        return tuple(dict.fromkeys(asked))

    def processes_of(self, index: int) -> int:
        """Return the number of ranks of a member."""
        return self.processes or max(1, self.gpus_of(index).count)

    def container_of(self, index: int) -> ContainerSpec | None:
        """Return the container of a member; None: it is a plain process."""
        role = self.role_of(index)
        return self.program.container if role is None or role.container is None else role.container

    def restart_of(self, index: int) -> RestartPolicy:
        """Return when a member that ended by itself is restarted."""
        role = self.role_of(index)
        return self.retry.policy if role is None or role.restart is None else role.restart


@dataclass(frozen=True, slots=True)
class Replica:
    """One member of a workload: the unit that is queued, placed, started and ended.

    ``attempt`` counts starts (0: never started). ``failures`` counts ends caused by the program, ``interruptions``
    those caused by the pool (preempted, lost); only failures count against the back-off limit. ``next_reason`` is set
    while STOPPING: a suspended or preempted replica returns to PENDING. ``sharing`` is the mode that its node reports,
    ``guarantee`` what that mode guarantees; both are empty until the report. ``saved_at`` is the time of its last
    checkpoint and ``step`` the number that it has reached, as reported by the program in this or an earlier attempt.
    ``lost_gpu_s`` are the GPU seconds of work that its attempts lost because the pool or a failed node ended them.
    ``ended_by`` is the user who stopped it (empty: no user did). ``same_failures`` counts the immediate failures in a
    row with the exit status ``failed_status``. ``metrics`` are values that the program reported last, by name. A lazy
    or suspendable replica holds two leases: ``lease`` has its place on the node, and ``gpu_lease`` its GPUs, while it
    has them. ``gpu_wanted_at`` is since when its program uses CUDA, or waits to use it (None: it does not).
    ``suspend_asked_at`` is set while its node is asked to suspend it, and ``suspended_gpu`` is the UUID of the GPU
    whose memory it has in the memory of its node (empty: none).
    """

    workload: WorkloadId
    index: int
    state: ReplicaState = ReplicaState.PENDING
    attempt: int = 0
    node: str | None = None
    lease: Epoch | None = None
    pid: int | None = None
    exit_status: int | None = None
    reason: Reason = Reason.SUBMITTED
    message: str = ""
    next_reason: Reason | None = None
    failures: int = 0
    interruptions: int = 0
    queued_at: float = 0.0
    not_before: float = 0.0
    started_at: float | None = None
    finished_at: float | None = None
    last_active_at: float | None = None
    idle_warned: bool = False
    notes: tuple[str, ...] = ()
    sharing: str = ""
    guarantee: str = ""
    saved_at: float | None = None
    step: int | None = None
    lost_gpu_s: float = 0.0
    ended_by: str = ""
    same_failures: int = 0
    failed_status: int | None = None
    metrics: tuple[tuple[str, float], ...] = ()
    gpu_wanted_at: float | None = None
    gpu_lease: Epoch | None = None
    suspend_asked_at: float | None = None
    suspended_gpu: str = ""
    version: int = 0

    @property
    def key(self) -> AttemptKey:
        """Return the key of its present attempt on the node."""
        return attempt_key(self.workload, self.index, self.attempt)

    @property
    def leases(self) -> frozenset[Epoch]:
        """Return the epochs of the leases that it uses."""
        return frozenset(epoch for epoch in (self.lease, self.gpu_lease) if epoch is not None)

    @property
    def waits_for_gpus(self) -> bool:
        """Return whether its program runs and waits for GPUs to use CUDA."""
        running = self.state is ReplicaState.RUNNING
        return running and self.gpu_wanted_at is not None and self.gpu_lease is None


LAZY_GPUS = -1  # in place of a replica's index: GPUs with a lease of their own; the workload has the only index 0


def holder_index(index: int) -> int:
    """Return the index of the replica for that of a lease or a request of GPUs, which may be ``LAZY_GPUS``."""
    return 0 if index == LAZY_GPUS else index


@dataclass(frozen=True, slots=True)
class GpuLease:
    """Shares of GPUs granted to one attempt of one replica.

    ``epoch`` grows with every grant of the pool and fences: a node refuses a start with an older epoch for the same
    replica. The shares count as taken from the write of the lease until ``released_at`` is written, which happens only
    after the node has confirmed that no process is left. ``sharing`` is the mode of the shares; empty: the node's own.
    ``fence_after_s``: after this time without contact the node ends everything under the lease by itself, so nothing is
    left there although the node cannot confirm it. ``lost_s``: the seconds of work after its last checkpoint that were
    lost because the pool or a failed node ended it. ``index`` is ``LAZY_GPUS`` for GPUs with a lease of their own.
    """

    epoch: Epoch
    workload: WorkloadId
    index: int
    attempt: int
    project: str
    user: str
    node: str
    shares: tuple[GpuShare, ...]
    cpus: float
    memory_mib: int
    granted_at: float
    released_at: float | None = None
    sharing: str = ""
    compute: ComputePolicy = ComputePolicy.GUARANTEE
    fence_after_s: float | None = None
    lost_s: float = 0.0

    @property
    def permille(self) -> int:
        """Return the GPU thousandths held, over all its GPUs."""
        return sum(share.permille for share in self.shares)
