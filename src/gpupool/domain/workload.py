"""Workloads, replicas and leases: what was asked, what runs, and who holds which GPU."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from gpupool.domain.container import ContainerSpec
from gpupool.domain.events import Reason
from gpupool.domain.gang import Gang
from gpupool.domain.gpu import ComputePolicy, GpuRequest, GpuShare
from gpupool.domain.ids import AttemptKey, Epoch, WorkloadId, attempt_key
from gpupool.domain.supervision import Stdio
from gpupool.domain.wiring import Wiring


class WorkloadKind(StrEnum):
    """What a workload is for; it decides protection and what an ending client means."""

    RUN = "run"  # `run`: one program, usually bound to the terminal that started it
    TRAINING = "training"  # `submit`: batch, may exceed quota, may be preempted and run again
    INTERACTIVE = "interactive"  # `submit --interactive`: protected within quota
    LEASE = "lease"  # `request_gpus`: GPUs held with no program of its own
    EXEC = "exec"  # `client`, `exec`, `shell`: a program on GPUs that another workload holds


class WorkloadState(StrEnum):
    """Where a workload stands as a whole."""

    QUEUED = "queued"
    RUNNING = "running"
    SUSPENDED = "suspended"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def final(self) -> bool:
        """Whether nothing will happen to it any more."""
        return self in {WorkloadState.SUCCEEDED, WorkloadState.FAILED, WorkloadState.STOPPED}


class ReplicaState(StrEnum):
    """Where one replica stands."""

    PENDING = "pending"  # waits: for its turn, a dependency, a back-off or its parallelism
    STARTING = "starting"  # holds a lease; the node has been told
    RUNNING = "running"
    STOPPING = "stopping"  # told to end; still holds its lease
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def final(self) -> bool:
        """Whether it has ended for good."""
        return self in {ReplicaState.SUCCEEDED, ReplicaState.FAILED, ReplicaState.STOPPED}

    @property
    def placed(self) -> bool:
        """Whether it holds (or uses) GPUs now."""
        return self in {ReplicaState.STARTING, ReplicaState.RUNNING, ReplicaState.STOPPING}


class RestartPolicy(StrEnum):
    """When a replica that ended by itself is run again."""

    NEVER = "never"
    ON_FAILURE = "on-failure"
    ALWAYS = "always"


class Framework(StrEnum):
    """How the members of a gang find each other; ``docs/distributed.md`` says what each is told."""

    TORCH = "torch"  # RANK, WORLD_SIZE, MASTER_ADDR, ... as torchrun sets and reads them
    MPI = "mpi"  # a launcher with a host file, and members that wait for what it starts
    TF = "tf"  # TF_CONFIG


class OnMemberEnd(StrEnum):
    """What the end of one member of a gang by a failure, a loss or an eviction means for the others."""

    RESTART = "restart"  # all end and start again together
    FAIL = "fail"  # the whole workload fails
    CONTINUE = "continue"  # they go on; the member alone is run again, as its restart policy says


class EnvSource(StrEnum):
    """What a variable can be given that is known only when the program starts."""

    MEMBER = "member"  # the workload's name, with role and number where there are several replicas
    INDEX = "index"
    ID = "id"  # of the workload
    PROJECT = "project"
    USER = "user"
    NODE = "node"
    ADDRESS = "address"  # of the node


@dataclass(frozen=True, slots=True)
class Dependency:
    """Another workload that must end first; ``success_only`` also demands that it succeeded."""

    workload: WorkloadId
    success_only: bool = True


@dataclass(frozen=True, slots=True)
class Program:
    """What to execute, where, and with which environment. ``{name}`` in ``argv`` stands for a sweep's parameter.

    ``tree`` and ``lock`` are the files that come with it (``domain.jobfiles``); ``cwd`` is a folder in them then.
    ``env_from``: variables that get what is known only at the start, by the names of ``EnvSource``. ``literal``:
    ``{index}`` in ``argv`` means itself.
    ``container``: it runs in one, ``argv`` may then be empty; None: a plain process of the machine.
    """

    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    cwd: str = ""
    stdio: Stdio = Stdio.BATCH
    rows: int = 24
    columns: int = 80
    umask: int = 0o022
    client_bound: bool = False
    tree: str = ""
    lock: str = ""
    env_from: dict[str, str] = field(default_factory=dict)
    literal: bool = False
    container: ContainerSpec | None = None


TTL_LABEL = "gpupool/ttl"  # the label of work that is deleted some time after it has ended


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds in time and host resources; None means none. Times are seconds, ``memory_mib`` is host memory.

    ``ttl_s``: when it has ended for so long, it is deleted with its output.
    ``notice_signal``: see ``supervision.ProcessSpec``.
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


@dataclass(frozen=True, slots=True)
class Retry:
    """When and how often a replica is run again. Losses that are the pool's fault are not counted."""

    policy: RestartPolicy = RestartPolicy.NEVER
    backoff_limit: int = 0


@dataclass(frozen=True, slots=True)
class Role:
    """Members of a gang that are alike; what is None is the workload's own.

    ``env`` is added to the workload's. ``restart``: when a member that ended by itself is run again. ``container``: one
    of its own, in place of the program's.
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
    """What a user asked for, and where it stands.

    ``completions`` replicas (index 0 to completions - 1) run, at most ``parallelism`` at a time; ``parameters[i]``
    are the parameters of replica ``i`` of a sweep. ``on`` names the workload whose GPUs an EXEC uses. ``compute`` is
    what its part of a GPU means for time. ``gang``: its replicas start together (``parallelism`` is then the most of
    them). ``roles``: what its members differ in; they have consecutive indices, role by role, and none where all are
    alike. ``framework``: how they find each other; ``on_member_end``: what the loss of one means for the others;
    ``processes``: how many ranks each member runs; 0: one for each of its GPUs. ``wiring``: where
    they are, once they have started together. ``windows``: it starts only then
    (``domain.windows``). ``request_id`` makes a repeated submission of the same request harmless.
    Times are seconds since the epoch.
    ``version`` counts writes: a write with an old one is refused by the store.
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
    roles: tuple[Role, ...] = ()
    framework: Framework | None = None
    on_member_end: OnMemberEnd = OnMemberEnd.CONTINUE
    wiring: Wiring | None = None
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
    request_id: str | None = None
    state: WorkloadState = WorkloadState.QUEUED
    suspended: bool = False
    stop_reason: Reason | None = None  # set once a stop of the whole workload is wanted
    expires_at: float | None = None  # LEASE only
    started_at: float | None = None
    finished_at: float | None = None
    deleted_at: float | None = None
    version: int = 0

    def key(self, index: int, attempt: int) -> AttemptKey:
        """The key of one attempt at one replica."""
        return attempt_key(self.id, index, attempt)

    def member_name(self, index: int) -> str:
        """The workload's name, with what tells its replicas apart: ``mnist-worker-0``, ``sweep-3``."""
        place = self.place_in_roles(index)
        if place is not None:
            return f"{self.name}-{place[0].name.lower()}-{place[1]}"
        return f"{self.name}-{index}" if self.completions > 1 else self.name

    def place_in_roles(self, index: int) -> tuple[Role, int] | None:
        """The role of a member and its number within it; None where all members are alike."""
        for role in self.roles:
            if index < role.replicas:
                return role, index
            index -= role.replicas
        return None

    def role_of(self, index: int) -> Role | None:
        """The role of a member; None where all members are alike."""
        place = self.place_in_roles(index)
        return None if place is None else place[0]

    def indices_of(self, role: str) -> range:
        """The members of a role; empty where there is no such role."""
        first = 0
        for each in self.roles:
            if each.name == role:
                return range(first, first + each.replicas)
            first += each.replicas
        return range(0)

    def gpus_of(self, index: int) -> GpuRequest:
        """The GPUs that a member asks for."""
        role = self.role_of(index)
        return self.gpus if role is None or role.gpus is None else role.gpus

    def cpus_of(self, index: int) -> float | None:
        """The processors that a member asks for."""
        role = self.role_of(index)
        return self.limits.cpus if role is None or role.cpus is None else role.cpus

    def counted_cpus(self, index: int) -> float:
        """The processors that a member takes of its node: one where it has no GPU and does not say."""
        cpus = self.cpus_of(index)
        if cpus is None:
            return 0.0 if self.gpus_of(index).count else 1.0
        return cpus

    def memory_of(self, index: int) -> int | None:
        """The host memory that a member asks for, in MiB."""
        role = self.role_of(index)
        return self.limits.memory_mib if role is None or role.memory_mib is None else role.memory_mib

    def different_members(self) -> tuple[tuple[GpuRequest, float, int], ...]:
        """What its members ask for (GPUs, processors, MiB of host memory), each different one once."""
        firsts = [self.indices_of(role.name).start for role in self.roles] or [0]
        asked = ((self.gpus_of(i), self.counted_cpus(i), self.memory_of(i) or 0) for i in firsts)
        return tuple(dict.fromkeys(asked))

    def processes_of(self, index: int) -> int:
        """How many ranks a member runs."""
        return self.processes or max(1, self.gpus_of(index).count)

    def container_of(self, index: int) -> ContainerSpec | None:
        """The container that a member runs in; None: it is a plain process."""
        role = self.role_of(index)
        return self.program.container if role is None or role.container is None else role.container

    def restart_of(self, index: int) -> RestartPolicy:
        """When a member that ended by itself is run again."""
        role = self.role_of(index)
        return self.retry.policy if role is None or role.restart is None else role.restart


@dataclass(frozen=True, slots=True)
class Replica:
    """One member of a workload: the unit that is queued, placed, started and ended.

    ``attempt`` counts starts (0: never started). ``failures`` counts endings that the program caused,
    ``interruptions`` those that the pool caused (preempted, lost): only the first count against the back-off limit.
    ``next_reason`` says, while STOPPING, what becomes of it: a suspended or preempted replica goes back to PENDING.
    ``sharing`` is the mode that its node says it runs under, ``guarantee`` what that holds to; empty until it says so.
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
    version: int = 0

    @property
    def key(self) -> AttemptKey:
        """The key of its present attempt on the node."""
        return attempt_key(self.workload, self.index, self.attempt)


@dataclass(frozen=True, slots=True)
class Lease:
    """Shares of GPUs granted to one attempt of one replica.

    ``epoch`` grows with every grant of the pool and fences: a node refuses a start with an older epoch for the same
    replica. The shares count as taken from the moment the lease is written until ``released_at`` is, and that is
    written only after the node has confirmed that no process is left. ``sharing`` is the mode in which the shares are
    kept apart; empty: the node's own. ``fence_after_s``: when the node is out of contact for so long, it ends what
    runs under the lease by itself, and then nothing is left there although it cannot say so.
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

    @property
    def permille(self) -> int:
        """GPU thousandths held, over all its GPUs."""
        return sum(share.permille for share in self.shares)
