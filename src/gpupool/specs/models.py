"""The request as pydantic sees it: fields, their bounds, and what they may not say together."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from gpupool.domain.container import ContainerNetwork, PullPolicy
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.gpu import ComputePolicy, Placement, Sharing
from gpupool.domain.workload import EnvSource, Framework, OnMemberEnd, RestartPolicy, WorkloadKind
from gpupool.specs import limits, quantities
from gpupool.specs.containers import MAX_VOLUMES, ContainerUser, Image, VolumeField
from gpupool.specs.problems import refusal, reworded
from gpupool.specs.sweep import Range, check_parameter_names, grid_size
from gpupool.specs.templates import Scalar


class Condition(StrEnum):
    """How a workload must have ended before one that comes after it may start."""

    SUCCESS = "success"
    ANY = "any"


class _Strict(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        populate_by_name=True,
        use_attribute_docstrings=True,
    )


def _scalar(value: object) -> object:
    if not isinstance(value, str | int | float):
        raise refusal(ErrorCode.INVALID_REQUEST, "must be text, a number, or true or false.")
    if isinstance(value, str) and len(value) > limits.MAX_VALUE_LENGTH:
        raise refusal(ErrorCode.TOO_LARGE, f"is longer than {limits.MAX_VALUE_LENGTH} characters.")
    return value


Value = Annotated[Scalar, BeforeValidator(_scalar)]
Labels = Annotated[dict[quantities.LabelKey, quantities.LabelValue], Field(max_length=limits.MAX_LABELS)]


class GpuSpec(_Strict):
    """GPUs of one node that each replica gets: the same part of each."""

    count: quantities.GpuCount = 1
    """How many GPUs, up to 1024; 0: none, for work that needs processors only."""
    fraction: quantities.Fraction = None
    """The part of each GPU, above 0 and up to 1 in steps of 0.001; all of it when neither part is given."""
    memory_mib: quantities.Size = None
    """The part of each GPU as its memory: MiB, or text such as 4G."""
    models: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=100)]], Field(max_length=limits.MAX_MODELS)
    ] = Field(default_factory=list)
    """Models that will do, as a part of their name (t4, a100); any when empty."""
    labels: Labels = Field(default_factory=dict)
    """Labels that the node must have."""
    compute: Annotated[ComputePolicy, Field(strict=False)] | None = None
    """What the part means for compute time: guarantee, cap or none; the project's default when absent."""
    sharing: Annotated[Sharing, Field(strict=False)] | None = None
    """How the part is kept apart from others: whole, share, mps, mig or advisory; the GPU's own when absent."""
    placement: Annotated[Placement, Field(strict=False)] | None = None
    """Which place is taken of several: pack (what is left stays of use to others) or spread (the emptiest)."""

    @model_validator(mode="after")
    def _one_part(self) -> Self:
        if self.count == 0 and (self.fraction is not None or self.memory_mib is not None):
            raise refusal(
                ErrorCode.INVALID_REQUEST,
                "There is no part of no GPU.",
                "Leave the part (-p, -m) out, or ask for a GPU.",
                ("fraction" if self.fraction is not None else "memory_mib",),
            )
        if self.fraction is not None and self.memory_mib is not None:
            raise refusal(
                ErrorCode.INVALID_REQUEST,
                "A GPU's part is given twice, by fraction and by memory.",
                "Give one of fraction (-p) and memory_mib (-m).",
                ("memory_mib",),
            )
        return self

    @model_validator(mode="after")
    def _mode_of_part(self) -> Self:
        part = self.memory_mib is not None or self.fraction not in {None, 1.0}
        if part and self.sharing in {Sharing.WHOLE, Sharing.MIG}:
            raise refusal(
                ErrorCode.INVALID_REQUEST,
                f"The sharing mode {self.sharing} does not go with a part of a GPU.",
                "Leave the part (-p, -m) out; --model 1g.10gb chooses the size of a MIG instance.",
                ("sharing",),
            )
        if self.sharing is Sharing.MPS and self.count > 1:
            raise refusal(
                ErrorCode.INVALID_REQUEST,
                "The sharing mode mps is for one GPU, or a part of one.",
                "Ask for one GPU, or for another mode.",
                ("sharing",),
            )
        return self


class RandomRange(_Strict):
    """How one parameter is drawn: between ``min`` and ``max``, or from ``choices``."""

    min: float | None = None
    """Lowest value."""
    max: float | None = None
    """Highest value."""
    log: bool = False
    """Spread evenly in the logarithm (needs min above 0)."""
    integer: bool = False
    """Whole numbers only."""
    choices: Annotated[list[Value], Field(min_length=1, max_length=limits.MAX_REPLICAS)] | None = None
    """Values to choose from, each as likely."""

    @model_validator(mode="after")
    def _range_or_choices(self) -> Self:
        if self.choices is not None:
            if self.min is not None or self.max is not None or self.log or self.integer:
                raise refusal(ErrorCode.INVALID_REQUEST, "must have choices, or min and max, not both.")
            return self
        if self.min is None or self.max is None:
            raise refusal(ErrorCode.INVALID_REQUEST, "must have min and max, or choices.")
        _check_range(self.min, self.max, log=self.log, integer=self.integer)
        return self

    def drawn(self) -> Range | tuple[Scalar, ...]:
        """The same for ``sweep.draw``."""
        if self.choices is not None:
            return tuple(self.choices)
        return Range(self.min or 0.0, self.max or 0.0, self.log, self.integer)


def _check_range(low: float, high: float, *, log: bool, integer: bool) -> None:
    if low > high or not math.isfinite(high - low):
        raise refusal(ErrorCode.INVALID_REQUEST, "must have a min that is not above its max.")
    if log and low <= 0:
        raise refusal(ErrorCode.INVALID_REQUEST, "must have a min above 0 when log is true.")
    if integer and not (low.is_integer() and high.is_integer()):
        raise refusal(ErrorCode.INVALID_REQUEST, "must have whole numbers as min and max when integer is true.")


class RandomSweep(_Strict):
    """Random draws: so many runs, each parameter drawn by itself."""

    samples: quantities.ReplicaCount
    """How many runs, 1 to 10000."""
    seed: Annotated[int, Field(ge=0, le=limits.MAX_INTEGER)] | None = None
    """The same seed draws the same values; without one they differ with every submission."""
    parameters: Annotated[dict[str, RandomRange], Field(min_length=1)]
    """The parameters by name."""


class SweepSpec(_Strict):
    """Sets of parameters, one per run: exactly one of ``grid``, ``list`` and ``random``."""

    grid: Annotated[dict[str, Annotated[list[Value], Field(min_length=1)]], Field(min_length=1)] | None = None
    """Values by parameter; every combination is run."""
    rows: Annotated[list[Annotated[dict[str, Value], Field(min_length=1)]], Field(min_length=1)] | None = Field(
        default=None, alias="list"
    )
    """Sets of parameters, run as they are."""
    random: RandomSweep | None = None
    """Random draws."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if sum(part is not None for part in (self.grid, self.rows, self.random)) != 1:
            raise refusal(ErrorCode.INVALID_REQUEST, "must have exactly one of grid, list and random.")
        if self.size > limits.MAX_REPLICAS:
            raise refusal(ErrorCode.INVALID_COUNT, f"has {self.size} runs; at most {limits.MAX_REPLICAS} are possible.")
        try:
            for names in self.name_sets():
                check_parameter_names(names)
        except GpupoolError as error:
            raise reworded(error) from error
        return self

    def name_sets(self) -> list[list[str]]:
        """The names of the parameters, for each run of a list and once for the others."""
        if self.rows is not None:
            return [list(row) for row in self.rows]
        return [list(self.grid if self.grid is not None else self.random.parameters if self.random else ())]

    @property
    def size(self) -> int:
        """How many runs there are."""
        if self.grid is not None:
            return grid_size(self.grid)
        return self.random.samples if self.random else len(self.rows or ())


class AfterSpec(_Strict):
    """A workload that must end first."""

    workload: Annotated[str, Field(min_length=1, max_length=limits.MAX_REFERENCE)]
    """Its name or id."""
    condition: Annotated[Condition, Field(strict=False)] = Condition.SUCCESS
    """Whether it must have succeeded (success) or only ended (any)."""


class GangSpec(_Strict):
    """Replicas that start together or not at all."""

    workers: quantities.ReplicaCount
    """How many replicas, 1 to 10000."""
    min: quantities.OptionalReplicaCount = None
    """With how many it can start already; the others join as GPUs come free. All of them when absent."""
    within: quantities.LabelKey | None = None
    """The node label whose value their nodes should share: rack, zone, ...; node for one node."""
    strict: bool = False
    """Wait rather than start on nodes that do not share it."""

    @model_validator(mode="after")
    def _sizes(self) -> Self:
        if self.min is not None and self.min > self.workers:
            sentence = f"is {self.min}, more than the {self.workers} workers there are."
            raise refusal(ErrorCode.INVALID_COUNT, sentence, "Give at most as many.", ("min",))
        if self.strict and self.within is None:
            raise refusal(ErrorCode.INVALID_REQUEST, "needs a label: say within what.", "Add within.", ("strict",))
        return self


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


class RoleSpec(_Strict):
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


class WorkloadRequest(_Strict):
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
