"""The request as pydantic sees it: fields, their bounds, and what they may not say together."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from gpupool.domain.container import ContainerNetwork, PullPolicy
from gpupool.domain.errors import ErrorCode
from gpupool.domain.workload import EnvSource, Framework, OnMemberEnd, RestartPolicy, WorkloadKind
from gpupool.specs import limits, quantities
from gpupool.specs.containers import MAX_VOLUMES, ContainerUser, Image, VolumeField
from gpupool.specs.parts import AfterSpec, GangSpec, GpuSpec, Labels, Strict, SweepSpec
from gpupool.specs.problems import refusal


def _command_fits(command: list[str]) -> list[str]:
    if sum(len(argument.encode()) + 1 for argument in command) > limits.MAX_ARGV_BYTES:
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


Command = Annotated[list[quantities.Text], AfterValidator(_command_fits)]
Environment = Annotated[
    dict[str, quantities.Text], Field(max_length=limits.MAX_ENV_VARIABLES), AfterValidator(_env_fits)
]


class RoleSpec(Strict):
    """Members of a gang that are alike; what is absent is as the request says for all."""

    name: quantities.Name
    """The role's name: worker, ps, chief, launcher, ..."""
    replicas: quantities.ReplicaCount = 1
    """How many members."""
    command: Command = Field(default_factory=list)
    """Their program and its arguments."""
    env: Environment = Field(default_factory=dict)
    """Environment variables, put over those of the request."""
    gpus: GpuSpec | None = None
    """GPUs for each of them."""
    cpus: Annotated[float, Field(gt=0, le=limits.MAX_CPUS)] | None = None
    """Processors for each of them."""
    memory: quantities.Size = None
    """Memory of the machine for each of them: MiB, or text such as 4G."""
    restart: Annotated[RestartPolicy, Field(strict=False)] | None = None
    """When one of them that ended by itself is run again."""
    image: Image | None = None
    """A container image of their own; the rest of the container is as the request says for all."""
    volumes: Annotated[list[VolumeField], Field(max_length=MAX_VOLUMES)] | None = None
    """Volumes of their own, in place of the request's."""
    entrypoint: Command | None = None
    """An entry point of their own."""


def _after(value: object) -> object:
    return {"workload": value} if isinstance(value, str) else value


After = Annotated[AfterSpec, BeforeValidator(_after, json_schema_input_type=str | AfterSpec)]


class WorkloadRequest(Strict):
    """What somebody wants run: the body of a submission and the content of a job file."""

    name: quantities.Name | None = None
    """Up to 63 letters, digits, dots, dashes and underscores; made from the command when absent."""
    kind: Annotated[WorkloadKind, Field(strict=False)] = WorkloadKind.TRAINING
    """What it is for; decides what may interrupt it and how often it is run again."""
    command: Command = Field(default_factory=list)
    """The program and its arguments; never given to a shell. {name} stands for a parameter of the sweep."""
    env: Environment = Field(default_factory=dict)
    """Environment variables, added to what the pool sets."""
    env_from: Annotated[
        dict[str, Annotated[EnvSource, Field(strict=False)]], Field(max_length=limits.MAX_ENV_VARIABLES)
    ] = Field(default_factory=dict)
    """Variables for what is known only at the start: member (its name), index, id, project, user, node, address."""
    literal: bool = False
    """{index} in the command means itself, also where there are several replicas."""
    workdir: Annotated[str, Field(max_length=limits.MAX_PATH)] = ""
    """The folder to start in."""
    tree: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    """The SHA-256 of a list of files that were sent before; they make the folder to start in."""
    lock: Annotated[str, Field(max_length=limits.MAX_PATH)] = ""
    """The file in the tree (uv.lock, requirements.txt) from which an environment is made."""
    project: quantities.ProjectName | None = None
    """The project whose quota is used; the user's default when absent."""
    priority: quantities.Priority = 0
    """low (-100), normal (0), high (100), or a number from -1000 to 1000."""
    gpus: GpuSpec = Field(default_factory=GpuSpec)
    """GPUs for each replica."""
    cpus: Annotated[float, Field(gt=0, le=limits.MAX_CPUS)] | None = None
    """Processors of the machine at most."""
    memory: quantities.Size = None
    """Memory of the machine at most: MiB, or text such as 4G."""
    wait: quantities.DurationOrZero = None
    """Longest time in the queue; 0 or none: start now or fail; without end when absent."""
    max_time: quantities.Duration = None
    """Longest running time."""
    idle_timeout: quantities.Duration = None
    """Longest time without using its GPUs."""
    grace: quantities.DurationOrZero = None
    """Time between TERM and KILL when it is stopped; 10 s when absent."""
    notice_signal: Literal["TERM", "INT", "HUP", "QUIT", "USR1", "USR2"] = "TERM"
    """The signal that tells the program that it has to go and will be run again; TERM comes later then."""
    lifetime: quantities.Duration = None
    """How long a lease is held, from when it is granted."""
    tty: bool = False
    """Give the program a terminal."""
    rows: Annotated[int, Field(ge=1, le=limits.MAX_TERMINAL)] = 24
    """Height of the terminal."""
    columns: Annotated[int, Field(ge=1, le=limits.MAX_TERMINAL)] = 80
    """Width of the terminal."""
    stdin: bool = False
    """Give the program standard input, and keep output and errors apart."""
    client_bound: bool = False
    """Start when a client attaches, and end when that client goes away."""
    umask: quantities.Umask = None
    """Permissions taken away from new files, octal text such as '022'."""
    restart: Annotated[RestartPolicy, Field(strict=False)] | None = None
    """When a replica that ended by itself is run again; on-failure for training, else never."""
    backoff_limit: Annotated[int, Field(ge=0, le=limits.MAX_BACKOFF)] | None = None
    """How many failures of a replica are forgiven; 6 where it is run again at all."""
    preemptible: bool | None = None
    """May be interrupted for work with a better claim, and run again; true for training."""
    completions: quantities.OptionalReplicaCount = None
    """How many replicas must end; the size of the sweep, else parallelism, else 1."""
    parallelism: quantities.OptionalReplicaCount = None
    """How many replicas run at a time; all when absent."""
    gang: GangSpec | None = None
    """Replicas that start together, in place of completions and parallelism."""
    roles: Annotated[list[RoleSpec], Field(max_length=limits.MAX_ROLES)] = Field(default_factory=list)
    """What the members of a gang differ in; they are numbered role by role."""
    framework: Annotated[Framework, Field(strict=False)] | None = None
    """How the members find each other: torch, mpi or tf."""
    on_member_end: Annotated[OnMemberEnd, Field(strict=False)] | None = None
    """What a member's failure or loss means for the others: restart, fail or continue; by framework when absent."""
    processes: Annotated[int, Field(ge=1, le=limits.MAX_PROCESSES)] | None = None
    """How many ranks each member that works runs; as many as it has GPUs when absent (framework torch or mpi)."""
    sweep: SweepSpec | None = None
    """Parameters, one set per replica."""
    after: Annotated[list[After], Field(max_length=limits.MAX_DEPENDENCIES)] = Field(default_factory=list)
    """Workloads that must end first."""
    windows: quantities.Windows = Field(default_factory=list)
    """Times at which it may start: mon-fri 20:00-08:00, sat,sun, nights, weekends; always when empty."""
    on: Annotated[str, Field(min_length=1, max_length=limits.MAX_REFERENCE)] | None = None
    """The workload whose GPUs are used (kind exec)."""
    on_index: Annotated[int, Field(ge=0, lt=limits.MAX_REPLICAS)] = 0
    """Which replica of it."""
    labels: Labels = Field(default_factory=dict)
    """Labels to find it by."""
    ttl: quantities.Duration = None
    """Delete it, with its output, so long after it has ended; kept when absent."""
    log_limit: quantities.Size = None
    """Most output kept: MiB, or text; 64 MiB when absent."""
    request_id: Annotated[str, Field(min_length=1, max_length=limits.MAX_REFERENCE)] | None = None
    """A text of your own that makes a repeated submission harmless."""
    image: Image | None = None
    """The container image it runs in; a plain process of the machine when absent. workdir is a folder inside then."""
    volumes: Annotated[list[VolumeField], Field(max_length=MAX_VOLUMES)] = Field(default_factory=list)
    """What is seen inside besides the image: SRC:DST, SRC:DST:ro, or in full."""
    pull: Annotated[PullPolicy, Field(strict=False)] | None = None
    """When the image is fetched: missing (the default), always or never."""
    entrypoint: Command | None = None
    """Replaces the entry point of the image; command are its arguments."""
    container_user: ContainerUser | None = None
    """The user inside, where the pool leaves that to its users; the one who submits otherwise."""
    network: Annotated[ContainerNetwork, Field(strict=False)] | None = None
    """The network inside: host (the node's, the default) or none."""
    read_only: bool = False
    """Nothing can be written inside but to volumes."""
    shm: quantities.Size = None
    """Size of /dev/shm inside: MiB, or text such as 4G."""

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        from gpupool.specs.agreement import check_agreement

        check_agreement(self)
        return self

    def to_body(self) -> dict[str, Any]:
        """The request as plain JSON values, without what is left at its default; ``parse_request`` reads it back."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True)
