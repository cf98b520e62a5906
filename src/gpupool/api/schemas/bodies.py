"""Request bodies of the API, except submissions (``specs.request``)."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from gpupool.api.schemas import name_patterns
from gpupool.api.schemas.base import Body
from gpupool.domain.nodes.gpu import SpreadRule
from gpupool.domain.nodes.sharing import ComputePolicy, Sharing
from gpupool.domain.people.access import Role, Scope
from gpupool.domain.units import MAX_DURATION_S
from gpupool.domain.work.rules import MAX_GPU_HOURS, MAX_QUEUED, MAX_USER_WEIGHT
from gpupool.specs.fields.quantities import Priority

MAX_TOKEN_LIFE_S = 366 * 86400
DEFAULT_TOKEN_LIFE_S = 30 * 86400
MAX_PERMILLE = 1_000_000_000
MAX_DISK_MIB = 1 << 40


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("has a NUL byte")
    return text


Name = Annotated[str, StringConstraints(pattern=name_patterns.NAME, max_length=63)]
Note = Annotated[str, StringConstraints(max_length=500), AfterValidator(_without_nul)]
Permille = Annotated[int, Field(ge=0, le=MAX_PERMILLE)]
Seconds = Annotated[float, Field(gt=0, le=MAX_DURATION_S, allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]
ModelName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9 ._+-]{0,61}[A-Za-z0-9])?$")]
GpuIndex = Annotated[int, Field(ge=0, le=1_000_000)]
ReplicaIndex = Annotated[int, Field(ge=0, le=10_000_000)]


class CordonBody(Body):
    """The reason for a cordon; ``drain``: running training is queued again, too.

    ``gpu``: only the GPU with this index is cordoned; it cannot be drained.
    """

    reason: Note = ""
    drain: bool = False
    gpu: GpuIndex | None = None

    @model_validator(mode="after")
    def _check_drain(self) -> Self:
        if self.drain and self.gpu is not None:
            raise ValueError("drain applies to a whole node")
        return self


class UncordonBody(Body):
    """``gpu``: only the GPU with this index is uncordoned; null: the node."""

    gpu: GpuIndex | None = None


class LostBody(Body):
    """The reason why a node is known to be off."""

    reason: Note = ""


class SharingBody(Body):
    """The sharing mode of one GPU (by its index), or of all GPUs of the node without an own mode; null: none."""

    mode: Sharing | None
    gpu: GpuIndex | None = None


LABEL = r"^([A-Za-z0-9][A-Za-z0-9._-]{0,62}/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"
Label = Annotated[str, StringConstraints(pattern=LABEL)]
LabelValue = Annotated[str, StringConstraints(max_length=255), AfterValidator(_without_nul)]


class LabelsBody(Body):
    """Labels to set on a node, and names of set labels to remove."""

    put: Annotated[dict[Label, LabelValue], Field(max_length=64, default_factory=dict)]
    remove: Annotated[list[Label], Field(max_length=64, default_factory=list)]


GpuHours = Annotated[float, Field(ge=0, le=MAX_GPU_HOURS, allow_inf_nan=False)]


class RulesBody(Body):
    """Limits for the work of a project; null and empty mean the values of the pool.

    ``windows`` are texts such as ``mon-fri 20:00-08:00``, ``sat,sun`` or ``nights``; training starts only in them.
    ``node_pools`` are values of the node label ``pool``. ``images`` are patterns such as ``nvcr.io/nvidia/*``,
    ``volumes`` are folders of the nodes. ``max_queued`` is the largest number of replicas that may wait in the queue.
    ``workspace_mib`` limits the disk of all workspaces, ``user_workspace_mib`` that of each user. ``max_priority`` is
    the highest priority that members may choose. ``gpu_hours`` limits the use of the project in a calendar month,
    ``user_gpu_hours`` the use of each user. ``user_weights`` are ratios of the shares of users in the project (others:
    1), ``user_quotas`` the thousandths of a GPU that users are guaranteed of what the project has. ``spread`` says
    whether its workloads may request that placement.
    """

    min_runtime_s: Annotated[float, Field(ge=0, le=MAX_DURATION_S, allow_inf_nan=False)] | None = None
    max_time_limit_s: Seconds | None = None
    windows: Annotated[
        list[Annotated[str, StringConstraints(max_length=80)]], Field(max_length=16, default_factory=list)
    ]
    node_pools: Annotated[list[LabelValue], Field(max_length=64, default_factory=list)]
    max_gpus_permille: Annotated[int, Field(ge=1, le=MAX_PERMILLE)] | None = None
    max_queued: Annotated[int, Field(ge=1, le=MAX_QUEUED)] | None = None
    workspace_mib: Annotated[int, Field(ge=1, le=MAX_DISK_MIB)] | None = None
    user_workspace_mib: Annotated[int, Field(ge=1, le=MAX_DISK_MIB)] | None = None
    max_priority: Priority | None = None
    gpu_hours: GpuHours | None = None
    user_gpu_hours: GpuHours | None = None
    user_weights: Annotated[
        dict[Name, Annotated[float, Field(gt=0, le=MAX_USER_WEIGHT)]], Field(max_length=1000, default_factory=dict)
    ]
    user_quotas: Annotated[
        dict[Name, Annotated[int, Field(ge=1, le=MAX_PERMILLE)]], Field(max_length=1000, default_factory=dict)
    ]
    spread: SpreadRule | None = None
    images: Annotated[
        list[Annotated[str, StringConstraints(min_length=1, max_length=512)]],
        Field(max_length=64, default_factory=list),
    ]
    volumes: Annotated[
        list[Annotated[str, StringConstraints(min_length=2, max_length=4096)]],
        Field(max_length=64, default_factory=list),
    ]


class StopBody(Body):
    """Options of a stop: seconds between TERM and KILL, at once, or one replica only."""

    grace_s: Annotated[float, Field(ge=0, le=86400, allow_inf_nan=False)] | None = None
    force: bool = False
    index: ReplicaIndex | None = None


class RestartBody(StopBody):
    """Options of the stop before the start.

    ``attempt`` restarts only if it is the present attempt, so the request can be repeated.
    """

    attempt: Annotated[int, Field(ge=1)] | None = None


class SignalBody(Body):
    """A signal by name (``INT``, ``SIGUSR1``) or number, for one replica."""

    signal: (
        Annotated[int, Field(ge=1, le=64, strict=True)]
        | Annotated[str, StringConstraints(pattern=r"^[A-Z0-9+]{1,12}$")]
    )
    index: ReplicaIndex = 0


class ExtendBody(Body):
    """Extension of a lease."""

    seconds: Seconds


class PriorityBody(Body):
    """Priority within the project: ``low``, ``normal``, ``high``, or a number."""

    priority: Priority


class _ProjectBounds(Body):
    quota_permille: Permille | None = None
    over_quota: bool = True
    limit_permille: Permille | None = None
    user_limit_permille: Permille | None = None
    members: Annotated[list[Name], Field(max_length=1000, default_factory=list)]
    max_time_s: Seconds | None = None
    idle_timeout_s: Seconds | None = None
    note: Note = ""
    compute_default: ComputePolicy | None = None
    compute_allowed: Annotated[list[ComputePolicy], Field(max_length=len(ComputePolicy), default_factory=list)]
    sharing_default: Sharing | None = None
    sharing_allowed: Annotated[list[Sharing], Field(max_length=len(Sharing), default_factory=list)]
    rules: Annotated[RulesBody, Field(default_factory=RulesBody)]
    department: Name | Literal[""] = ""
    weight: Weight = 1.0
    model_quotas: Annotated[dict[ModelName, Permille], Field(max_length=64, default_factory=dict)]


class ProjectBody(_ProjectBounds):
    """A new project."""

    name: Name


class ProjectChange(_ProjectBounds):
    """Changes of a project; omitted fields stay."""


class _DepartmentBounds(Body):
    quota_permille: Permille | None = None
    weight: Weight = 1.0
    limit_permille: Permille | None = None
    note: Note = ""


class DepartmentBody(_DepartmentBounds):
    """A new department: projects that share a quota above their own (null: the sum of theirs)."""

    name: Name


class DepartmentChange(_DepartmentBounds):
    """Changes of a department; omitted fields stay."""


class UserChange(Body):
    """Changes of a user; omitted fields stay."""

    role: Role = Role.MEMBER
    uid: Annotated[int, Field(ge=0, le=4_294_967_294)] | None = None
    gpu_limit_permille: Permille | None = None
    disabled: bool = False
    email: Annotated[str, StringConstraints(max_length=254), AfterValidator(_without_nul)] = ""


class TokenBody(Body):
    """A new token: its user, maximum role, scope and lifetime. It ends with the token that creates it."""

    user: Name | None = None
    role: Role | None = None
    scope: Scope | None = None
    expires_in_s: Annotated[float, Field(gt=0, le=MAX_TOKEN_LIFE_S, allow_inf_nan=False)] = DEFAULT_TOKEN_LIFE_S
    note: Note = ""
