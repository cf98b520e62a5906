"""The request as a pydantic model: fields, limits and conflicts."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self, TypedDict

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.gpu import mentions_mig
from gpupool.domain.nodes.sharing import LAZY_MODE, mode_of_whole
from gpupool.domain.work.mail_types import parse_mail_types
from gpupool.domain.work.program.container import ContainerNetwork, PullPolicy
from gpupool.domain.work.program.git_source import parse_git_source
from gpupool.domain.work.workload import (
    EnvSource,
    Framework,
    OnMemberEnd,
    OnPreempt,
    RestartPolicy,
    SuccessPolicy,
    WorkloadKind,
)
from gpupool.specs import limits
from gpupool.specs.fields import quantities
from gpupool.specs.fields.containers import MAX_VOLUMES, ContainerUser, Image, VolumeField
from gpupool.specs.fields.parts import AfterSpec, GangSpec, GpuSpec, Labels, Strict, SweepSpec
from gpupool.specs.fields.service import ServiceSpec
from gpupool.specs.fields.templates import as_text, check_placeholders, placeholders
from gpupool.specs.limits import MAX_ARGV_BYTES, MAX_MEMBERS, MAX_REPLICAS
from gpupool.specs.text.error_messages import Path, refusal, reworded

LAUNCHER = "launcher"
_NEEDS_IMAGE = ("volumes", "pull", "entrypoint", "container_user", "network", "read_only", "shm")
_SINGLE = {WorkloadKind.INTERACTIVE, WorkloadKind.SERVICE, WorkloadKind.LEASE, WorkloadKind.EXEC}


def _command_fits(command: list[str]) -> list[str]:
    if sum(len(argument.encode()) + 1 for argument in command) > MAX_ARGV_BYTES:
        raise refusal(ErrorCode.TOO_LARGE, "is longer than 1 MiB.", "Put the data in a file.")
    if command and not command[0]:
        raise refusal(ErrorCode.INVALID_REQUEST, "must begin with the program's name.")
    return command


def _env_fits(env: dict[str, str]) -> dict[str, str]:
    for name in env:
        if not name or "=" in name:
            raise refusal(ErrorCode.INVALID_NAME, f"has a variable that cannot be named '{name[:80]}'.")
    if sum(len(name.encode()) + len(value.encode()) + 2 for name, value in env.items()) > limits.MAX_ENV_BYTES:
        raise refusal(ErrorCode.TOO_LARGE, "is larger than 1 MiB.", "Put the data in a file.")
    return env


Quantity = str | float
Command = Annotated[list[quantities.Text], AfterValidator(_command_fits)]
Environment = Annotated[
    dict[str, quantities.Text], Field(max_length=limits.MAX_ENV_VARIABLES), AfterValidator(_env_fits)
]


class RoleSpec(Strict):
    """A group of gang members with the same settings; absent fields have the request's values."""

    name: quantities.Name
    """Name of the role: worker, ps, chief, launcher, ..."""
    replicas: quantities.ReplicaCount = 1
    """Number of members."""
    command: Command = Field(default_factory=list)
    """Program of these members, and its arguments."""
    env: Environment = Field(default_factory=dict)
    """Environment variables; they override those of the request."""
    gpus: GpuSpec | None = None
    """GPUs for each member."""
    cpus: Annotated[float, Field(gt=0, le=limits.MAX_CPUS)] | None = None
    """CPUs of the node for each member."""
    memory: quantities.Size = None
    """Memory of the node for each member: MiB, or text such as 4G."""
    restart: Annotated[RestartPolicy, Field(strict=False)] | None = None
    """Restart policy of these members: never, on-failure or always."""
    image: Image | None = None
    """Container image of these members; other container fields are those of the request."""
    volumes: Annotated[list[VolumeField], Field(max_length=MAX_VOLUMES)] | None = None
    """Volumes of these members, in place of the request's."""
    entrypoint: Command | None = None
    """Entry point of these members, in place of the image's."""


def _after(value: object) -> object:
    return {"workload": value} if isinstance(value, str) else value


After = Annotated[AfterSpec, BeforeValidator(_after, json_schema_input_type=str | AfterSpec)]


class RequestOptions(TypedDict, total=False):
    """The fields of a request as keywords of the Python client.

    Durations and sizes are numbers (seconds, MiB) or text (30m, 4G).
    """

    name: str
    kind: str
    env: Mapping[str, str]
    workdir: str
    tree: str
    lock: str
    git: str
    workspace: str
    project: str
    priority: int | str
    cpus: float
    memory: Quantity
    wait: Quantity
    max_time: Quantity
    idle_timeout: Quantity
    grace: Quantity
    notice_signal: str
    on_preempt: str
    lazy: bool
    return_after: Quantity
    checkpoint: Quantity
    begin: Quantity
    lifetime: Quantity
    restart: str
    backoff_limit: int
    preemptible: bool
    completions: int
    parallelism: int
    gang: Mapping[str, Any]
    framework: str
    sweep: Mapping[str, Any]
    after: Sequence[str | Mapping[str, Any]]
    windows: Sequence[str]
    on: str
    on_index: int
    labels: Mapping[str, str]
    mail: str
    ttl: Quantity
    log_limit: Quantity
    image: str
    volumes: Sequence[str | Mapping[str, Any]]
    pull: str
    entrypoint: Sequence[str]
    container_user: str
    network: str
    read_only: bool
    shm: Quantity
    service: Mapping[str, Any]
    request_id: str


class WorkloadRequest(Strict):
    """A request for a workload: the body of a submission and the content of a job file."""

    name: quantities.Name | None = None
    """Name: up to 63 letters, digits, dots, dashes and underscores; default: made from the command."""
    kind: Annotated[WorkloadKind, Field(strict=False)] = WorkloadKind.TRAINING
    """Kind of the workload; it sets the defaults of preemption and restarts."""
    command: Command = Field(default_factory=list)
    """Program and its arguments; no shell is used. {name} is replaced by a parameter of the sweep."""
    env: Environment = Field(default_factory=dict)
    """Environment variables, in addition to those that the pool sets."""
    env_from: Annotated[
        dict[str, Annotated[EnvSource, Field(strict=False)]], Field(max_length=limits.MAX_ENV_VARIABLES)
    ] = Field(default_factory=dict)
    """Environment variables with values of the attempt: member (name), index, id, project, user, node, address."""
    literal: bool = False
    """Do not replace {index} in the command."""
    workdir: Annotated[str, Field(max_length=limits.MAX_PATH)] = ""
    """Working directory of the program."""
    tree: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    """SHA-256 of an uploaded list of files, from which the working directory is created."""
    lock: Annotated[str, Field(max_length=limits.MAX_PATH)] = ""
    """File in the tree (uv.lock, requirements.txt) from which an environment is created."""
    git: Annotated[str, quantities.checked_by(parse_git_source)] | None = None
    """Repository, cloned into the working directory before the start: URL, or repository=URL,rev=REV,path=DIR."""
    workspace: Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$")] | None = None
    """Workspace in whose home the program runs, by name or id; it must be stopped."""
    project: quantities.ProjectName | None = None
    """Project whose quota is used; default: the user's default project."""
    priority: quantities.Priority = 0
    """Priority: low (-100), normal (0), high (100), or a number from -1000 to 1000."""
    gpus: GpuSpec = Field(default_factory=GpuSpec)
    """GPUs for each replica."""
    cpus: Annotated[float, Field(gt=0, le=limits.MAX_CPUS)] | None = None
    """CPU limit on the node."""
    memory: quantities.Size = None
    """Memory limit on the node: MiB, or text such as 4G."""
    wait: quantities.DurationOrZero = None
    """Queue time limit; 0 or none: start now or fail; default: no limit."""
    max_time: quantities.Duration = None
    """Time limit of each attempt."""
    idle_timeout: quantities.Duration = None
    """Idle limit: longest time without GPU use."""
    grace: quantities.DurationOrZero = None
    """Grace period: time between TERM and KILL; default: 10 s."""
    notice_signal: Literal["TERM", "INT", "HUP", "QUIT", "USR1", "USR2"] = "TERM"
    """Signal that is sent before preemption; TERM follows later."""
    on_preempt: Annotated[OnPreempt, Field(strict=False)] = OnPreempt.SIGNAL
    """On preemption: signal (notice, signal and grace period), kill (at once: it has nothing to save) or suspend (its
    GPU memory moves to the memory of its node; signal where that is not possible)."""
    lazy: bool = False
    """Hold no GPU until the program first uses CUDA; it then waits for its GPUs on its node. Experimental."""
    return_after: quantities.Duration = None
    """Lazy: return the GPUs when no process has used CUDA for this time; default: 5 minutes."""
    begin: quantities.Duration = None
    """Do not start before this time after the submission."""
    checkpoint: quantities.DurationOrNone = None
    """Checkpoint interval of the program: 30m; 0: on preemption; none (the default): never."""
    lifetime: quantities.Duration = None
    """Time from the grant of a lease to its release (kind lease)."""
    tty: bool = False
    """Give the program a terminal."""
    rows: Annotated[int, Field(ge=1, le=limits.MAX_TERMINAL)] = 24
    """Height of the terminal."""
    columns: Annotated[int, Field(ge=1, le=limits.MAX_TERMINAL)] = 80
    """Width of the terminal."""
    stdin: bool = False
    """Open standard input, and separate standard output and standard error."""
    client_bound: bool = False
    """Start when a client attaches, and stop when that client disconnects."""
    linger: quantities.Duration = None
    """Kind exec: how long its background processes may run after the last client of the workload has disconnected."""
    umask: quantities.Umask = None
    """Umask of the program, octal text such as '022'."""
    restart: Annotated[RestartPolicy, Field(strict=False)] | None = None
    """Restart policy: never, on-failure or always; default: on-failure for training, else never."""
    backoff_limit: Annotated[int, Field(ge=0, le=limits.MAX_BACKOFF)] | None = None
    """Maximum number of retries of a failed replica; default: 6 with a restart policy."""
    preemptible: bool | None = None
    """Allow preemption by workloads with a higher claim; default: true for training."""
    completions: quantities.OptionalReplicaCount = None
    """Number of replicas; default: the size of the sweep, else parallelism, else 1."""
    parallelism: quantities.OptionalReplicaCount = None
    """Maximum number of replicas at a time; default: all."""
    gang: GangSpec | None = None
    """Gang: replicas that start together; excludes completions and parallelism."""
    roles: Annotated[list[RoleSpec], Field(max_length=limits.MAX_ROLES)] = Field(default_factory=list)
    """Roles of gang members with different settings; members are numbered role by role."""
    framework: Annotated[Framework, Field(strict=False)] | None = None
    """Framework that the gang members are set up for: torch, mpi or tf."""
    on_member_end: Annotated[OnMemberEnd, Field(strict=False)] | None = None
    """Effect of the failure or loss of a member: restart, fail or continue; default: that of the framework."""
    success_policy: Annotated[SuccessPolicy, Field(strict=False)] | None = None
    """Framework tf without a chief: the job succeeds with all-workers (default) or with the first-worker."""
    processes: Annotated[int, Field(ge=1, le=limits.MAX_PROCESSES)] | None = None
    """Number of ranks of each member (framework torch or mpi); default: its number of GPUs."""
    sweep: SweepSpec | None = None
    """Parameter sweep: one set of parameters for each replica."""
    after: Annotated[list[After], Field(max_length=limits.MAX_DEPENDENCIES)] = Field(default_factory=list)
    """Dependencies: workloads that must end before this one may start."""
    windows: quantities.Windows = Field(default_factory=list)
    """Time windows in which it may start: mon-fri 20:00-08:00, sat,sun, nights, weekends; empty: always."""
    on: Annotated[str, Field(min_length=1, max_length=limits.MAX_REFERENCE)] | None = None
    """Workload whose GPUs are used (kind exec)."""
    on_index: Annotated[int, Field(ge=0, lt=limits.MAX_REPLICAS)] = 0
    """Index of the replica of that workload."""
    labels: Labels = Field(default_factory=dict)
    """Labels, for searches."""
    mail: Annotated[str, quantities.checked_by(parse_mail_types)] | None = None
    """Moments of mail to the user's address: begin, end, fail, all or none, with commas; default: unexpected ends."""
    ttl: quantities.Duration = None
    """Time from its end to the deletion of the workload and its output; default: never."""
    log_limit: quantities.Size = None
    """Limit of the stored output: MiB, or text such as 1G; default: 64 MiB."""
    request_id: Annotated[str, Field(min_length=1, max_length=limits.MAX_REFERENCE)] | None = None
    """Id of the submission: a repeated submission with the same id creates nothing."""
    image: Image | None = None
    """Container image; default: none, a plain process. With an image, workdir is a folder in the container."""
    volumes: Annotated[list[VolumeField], Field(max_length=MAX_VOLUMES)] = Field(default_factory=list)
    """Volumes of the container: SRC:DST, SRC:DST:ro, or an object."""
    pull: Annotated[PullPolicy, Field(strict=False)] | None = None
    """Pull policy of the image: missing (default), always or never."""
    entrypoint: Command | None = None
    """Entry point, in place of the image's; command has its arguments."""
    container_user: ContainerUser | None = None
    """User in the container, if the pool allows the choice; default: the submitting user."""
    network: Annotated[ContainerNetwork, Field(strict=False)] | None = None
    """Network of the container: host (that of the node, the default) or none."""
    read_only: bool = False
    """Mount the image read-only; volumes stay writable."""
    shm: quantities.Size = None
    """Size of /dev/shm in the container: MiB, or text such as 4G."""
    service: ServiceSpec | None = None
    """Port, readiness, replicas and addresses of a server (kind service)."""

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        _check_agreement(self)
        return self

    def to_body(self) -> dict[str, Any]:
        """Return the request as plain JSON values without defaults; ``parse_request`` reads it back."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def _check_agreement(request: WorkloadRequest) -> None:
    _check_container(request)
    _check_command(request)
    _check_exec(request)
    _check_lease(request)
    _check_git(request)
    _check_workspace(request)
    _check_preemption(request)
    _check_separate_gpus(request)
    _check_service(request)
    _check_replicas(request)
    _check_gang(request)
    _check_roles(request)
    _check_framework(request)
    if request.sweep is not None:
        _check_template(request.command, request.sweep)


def _refuse_if(wrong: bool, sentence: str, path: Path, hint: str = "") -> None:
    if wrong:
        raise refusal(ErrorCode.INVALID_REQUEST, sentence, hint, path)


def _check_container(request: WorkloadRequest) -> None:
    some = request.image is not None or any(role.image is not None for role in request.roles)
    for number, role in enumerate(request.roles):
        for name in ("volumes", "entrypoint"):
            if getattr(role, name) is not None and request.image is None and role.image is None:
                raise refusal(ErrorCode.INVALID_REQUEST, "needs an image.", "Add image.", ("roles", number, name))
    if not some:
        default = type(request).model_fields
        given = request.model_fields_set  # the defaults of others need not be copied for the comparison
        for name in (name for name in _NEEDS_IMAGE if name in given):
            if getattr(request, name) != default[name].get_default(call_default_factory=True):
                raise refusal(ErrorCode.INVALID_REQUEST, "needs an image.", "Add image (-i).", (name,))
        return
    if request.kind is WorkloadKind.LEASE:
        raise refusal(ErrorCode.INVALID_REQUEST, "must be omitted: a lease has no program.", path=("image",))
    if request.kind is WorkloadKind.EXEC:
        sentence = "must be omitted: it runs where the workload runs."
        raise refusal(ErrorCode.INVALID_REQUEST, sentence, path=("image",))
    targets = [posixpath.normpath(volume.target) for volume in request.volumes]
    if len(set(targets)) < len(targets):
        raise refusal(ErrorCode.INVALID_REQUEST, "has two volumes at the same path.", path=("volumes",))


def _check_command(request: WorkloadRequest) -> None:
    lease = request.kind is WorkloadKind.LEASE
    _refuse_if(lease and bool(request.command), "must be omitted: a lease has no program.", ("command",))
    told = (
        bool(request.command)
        or request.image is not None
        or (bool(request.roles) and all(_has_program(request, r) for r in request.roles))
    )
    _refuse_if(not lease and not told, "is missing: give the command.", ("command",))


def _has_program(request: WorkloadRequest, role: RoleSpec) -> bool:
    """Return whether a role has a command; the workers of MPI run what the launcher starts."""
    return (
        bool(role.command)
        or role.image is not None
        or (request.framework is Framework.MPI and role.name.lower() != LAUNCHER)
    )


def _check_exec(request: WorkloadRequest) -> None:
    on_others = request.kind is WorkloadKind.EXEC
    _refuse_if(on_others and request.on is None, "is missing: give the workload whose GPUs are used.", ("on",))
    _refuse_if(not on_others and request.on is not None, "is for the kind exec only.", ("on",))
    _refuse_if(not on_others and request.on_index != 0, "is for the kind exec only.", ("on_index",))
    asks = request.gpus != type(request.gpus)()
    _refuse_if(on_others and asks, "must be omitted: an exec uses the GPUs of another workload.", ("gpus",))


def _check_lease(request: WorkloadRequest) -> None:
    lease = request.kind is WorkloadKind.LEASE
    _refuse_if(not lease and request.lifetime is not None, "is for the kind lease only; see max_time.", ("lifetime",))
    _refuse_if(lease and request.gpus.count == 0, "must be at least 1: a lease holds GPUs.", ("gpus", "count"))
    both = request.lifetime is not None and request.max_time is not None
    _refuse_if(both, "must be omitted if lifetime is given.", ("max_time",))


def _check_git(request: WorkloadRequest) -> None:
    if request.git is None:
        return
    alone = request.kind not in {WorkloadKind.EXEC, WorkloadKind.LEASE}
    _refuse_if(not alone, f"must be omitted for the kind {request.kind.value}.", ("git",))


def _check_preemption(request: WorkloadRequest) -> None:
    saves = request.notice_signal != "TERM" or request.checkpoint == 0
    hint = "Use on_preempt: signal, or leave out notice_signal and checkpoint: 0."
    wrong = saves and request.on_preempt is OnPreempt.KILL
    _refuse_if(wrong, "cannot be kill for a program that saves its state when it is notified.", ("on_preempt",), hint)


def _check_separate_gpus(request: WorkloadRequest) -> None:
    """Check a request whose program gets and returns its GPUs while it runs."""
    if not request.lazy:
        _refuse_if(request.return_after is not None, "is for lazy programs.", ("return_after",), "Add lazy: true.")
    if request.on_preempt is OnPreempt.SUSPEND:
        _check_single(request, "on_preempt", "can be suspend")
        _refuse_if(request.gpus.count > 1, "can be suspend for one GPU only.", ("on_preempt",), "Use signal.")
    elif request.lazy:
        _check_single(request, "lazy", "can be true")


def _check_single(request: WorkloadRequest, field: str, can: str) -> None:
    one = request.kind in {WorkloadKind.RUN, WorkloadKind.INTERACTIVE, WorkloadKind.TRAINING}
    many = request.sweep is not None or (request.completions or 1) > 1 or (request.parallelism or 1) > 1
    many = many or request.gang is not None or bool(request.roles)
    _refuse_if(not one or many, f"{can} only for a single program.", (field,))
    _refuse_if(request.gpus.count == 0, f"{can} only with GPUs.", (field,), "Add a number or a part of GPUs.")
    inside = request.image is not None
    _refuse_if(inside, f"{can} only without an image: a container keeps its GPUs.", (field,))
    other = request.gpus.sharing not in {None, LAZY_MODE, mode_of_whole(partitioned=False)}
    _refuse_if(other, f"{can} only in the sharing mode {LAZY_MODE.value}.", (field,))
    instance = any(mentions_mig(model) for model in request.gpus.models)
    _refuse_if(instance, f"{can} only for GPUs that are no MIG instances.", (field,))


def _check_workspace(request: WorkloadRequest) -> None:
    if request.workspace is None:
        return
    alone = request.kind not in {WorkloadKind.EXEC, WorkloadKind.LEASE}
    _refuse_if(not alone, f"must be omitted for the kind {request.kind.value}.", ("workspace",))
    many = request.sweep is not None or (request.completions or 1) > 1 or (request.parallelism or 1) > 1
    many = many or request.gang is not None or bool(request.roles)
    _refuse_if(many, "must be omitted: a home is used by one replica at a time.", ("workspace",))
    _refuse_if(bool(request.tree), "must be omitted: the program runs in its uploaded folder.", ("workspace",))


def _check_service(request: WorkloadRequest) -> None:
    service = request.kind is WorkloadKind.SERVICE
    _refuse_if(not service and request.service is not None, "is for the kind service only.", ("service",))
    if not service:
        return
    for name, sentence in (
        ("workspace", "must be omitted: several replicas cannot share a home."),
        ("client_bound", "must be false: a service runs without a client."),
        ("tty", "must be false: a service has no terminal."),
        ("stdin", "must be false: a service has no standard input."),
        ("after", "must be omitted: a service has no dependencies."),
        ("windows", "must be omitted: a service runs at any time."),
        ("wait", "must be omitted: replicas wait until GPUs are free."),
        ("restart", "must be omitted: replicas are always restarted."),
        ("ttl", "must be omitted: a service is kept until it is deleted."),
    ):
        given = getattr(request, name)
        _refuse_if(given is not None and given is not False and given != [], sentence, (name,))
    isolated = request.network is ContainerNetwork.NONE
    _refuse_if(isolated, "must be host: requests arrive over the network.", ("network",))


def _check_replicas(request: WorkloadRequest) -> None:
    many = request.sweep is not None or (request.completions or 1) > 1 or (request.parallelism or 1) > 1
    path = "sweep" if request.sweep is not None else "completions"
    if request.kind in _SINGLE:
        _refuse_if(many, f"must be omitted: the kind {request.kind.value} has one replica.", (path,))
        again = request.restart not in {None, RestartPolicy.NEVER} or (request.backoff_limit or 0) > 0
        _refuse_if(
            again and request.kind not in {WorkloadKind.INTERACTIVE, WorkloadKind.SERVICE},
            "must be never here.",
            ("restart",),
        )
    lingers = request.kind is WorkloadKind.EXEC and request.client_bound
    _refuse_if(
        request.linger is not None and not lingers, "is for client-bound programs of the kind exec.", ("linger",)
    )
    _refuse_if(many and request.client_bound, "must be false for several replicas.", ("client_bound",))
    if request.sweep is not None and request.completions not in {None, request.sweep.size}:
        sentence = f"is {request.completions}, but the sweep has {request.sweep.size} runs."
        raise refusal(
            ErrorCode.INVALID_COUNT,
            sentence,
            "Omit completions; parallelism limits concurrent runs.",
            ("completions",),
        )


def _check_gang(request: WorkloadRequest) -> None:
    if request.gang is None and not request.roles:
        _refuse_if(request.on_member_end is not None, "is for gangs: add gang.", ("on_member_end",))
        return
    path = "gang" if request.gang is not None else "roles"
    _refuse_if(request.kind in _SINGLE, f"must be omitted: the kind {request.kind.value} has one replica.", (path,))
    _refuse_if(request.client_bound, "must be false for a gang.", ("client_bound",))
    for field in ("sweep", "completions", "parallelism"):
        given = getattr(request, field) is not None
        _refuse_if(given, f"must be omitted if {path} gives the number of members.", (field,))


def _check_roles(request: WorkloadRequest) -> None:
    if not request.roles:
        return
    total, gang = sum(role.replicas for role in request.roles), request.gang
    if len({role.name for role in request.roles}) < len(request.roles):
        raise refusal(ErrorCode.INVALID_NAME, "has two roles of the same name.", path=("roles",))
    if total > MAX_REPLICAS:
        sentence = f"has {total} members; at most {MAX_REPLICAS} are possible."
        raise refusal(ErrorCode.INVALID_COUNT, sentence, path=("roles",))
    if gang is not None and gang.workers != total:
        sentence = f"is {gang.workers}, but the roles have {total} members."
        raise refusal(ErrorCode.INVALID_COUNT, sentence, path=("gang", "workers"))
    elastic = gang is not None and gang.min not in {None, gang.workers}
    _refuse_if(elastic and len(request.roles) > 1, "must be omitted if there are several roles.", ("gang", "min"))


def _check_framework(request: WorkloadRequest) -> None:
    framework = request.framework
    ranks = framework in {Framework.TORCH, Framework.MPI}
    _refuse_if(request.processes is not None and not ranks, "is for the frameworks torch and mpi.", ("processes",))
    other = request.success_policy is not None and framework is not Framework.TF
    _refuse_if(other, "is for the framework tf.", ("success_policy",))
    if framework is None:
        return
    gang = request.gang
    members = sum(role.replicas for role in request.roles) or (gang.workers if gang is not None else 0)
    if members > MAX_MEMBERS:
        sentence = f"is for at most {MAX_MEMBERS} members; there are {members}."
        raise refusal(ErrorCode.INVALID_COUNT, sentence, path=("framework",))
    _refuse_if(gang is None and not request.roles, "needs a gang: give its workers.", ("framework",), "Add gang.")
    elastic = gang is not None and gang.min not in {None, gang.workers}
    fixed = framework is not Framework.TORCH
    _refuse_if(elastic and fixed, f"must be omitted: {framework.value} has a fixed size.", ("gang", "min"))
    alone = request.on_member_end is OnMemberEnd.CONTINUE and framework is Framework.MPI
    _refuse_if(alone, "must be restart or fail: MPI cannot continue without a rank.", ("on_member_end",))
    if framework is Framework.MPI:
        _check_mpi(request)


def _check_mpi(request: WorkloadRequest) -> None:
    launchers = [role.replicas for role in request.roles if role.name.lower() == LAUNCHER]
    _refuse_if(bool(request.roles) and launchers != [1], "must have one launcher (replicas: 1).", ("roles",))
    for number, role in enumerate(request.roles):
        told = role.name.lower() != LAUNCHER and bool(role.command)
        _refuse_if(told, "must be omitted: the launcher starts the programs of workers.", ("roles", number, "command"))


def _check_template(command: list[str], sweep: SweepSpec) -> None:
    try:
        check_placeholders(command, set.intersection(*map(set, sweep.name_sets())))
    except GpupoolError as error:
        refused = reworded(error)
        raise refusal(error.code, error.message, error.hint, ("command",)) from refused
    widths = _widths(sweep)
    uses = Counter(name for argument in command for name in placeholders(argument))
    if sum(widths.get(name, 8) * times for name, times in uses.items()) > MAX_ARGV_BYTES:
        raise refusal(ErrorCode.TOO_LARGE, "is longer than 1 MiB with the parameters.", path=("command",))


def _widths(sweep: SweepSpec) -> dict[str, int]:
    """Return the maximum bytes of each parameter."""
    widths: dict[str, int] = {}
    values = [(name, value) for name, many in (sweep.grid or {}).items() for value in many]
    values += [(name, value) for row in sweep.rows or () for name, value in row.items()]
    if sweep.random is not None:
        for name, drawn in sweep.random.parameters.items():
            widths[name] = 32
            values += [(name, value) for value in drawn.choices or ()]
    for name, value in values:
        widths[name] = max(widths.get(name, 0), len(as_text(value).encode()))
    return widths
