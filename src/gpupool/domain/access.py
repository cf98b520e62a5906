"""Users, roles and projects: who may do what, and how much."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gpupool.domain.gpu import ComputePolicy, Sharing

DEFAULT_PROJECT = "default"


class Role(StrEnum):
    """What a user may do, from least to most; each role includes those before it."""

    VIEWER = "viewer"  # read
    MEMBER = "member"  # submit, and manage one's own
    MANAGER = "manager"  # manage everybody's work in the projects one belongs to
    ADMIN = "admin"  # everything

    @property
    def rank(self) -> int:
        """Position from 0 (viewer) to 3 (admin)."""
        return list(Role).index(self)

    def includes(self, other: Role) -> bool:
        """Whether this role may do what ``other`` may."""
        return self.rank >= other.rank


@dataclass(frozen=True, slots=True)
class User:
    """A person or service account; ``uid`` is the operating-system account its jobs run as.

    ``email`` is where warnings go (empty: nowhere).
    """

    name: str
    role: Role = Role.MEMBER
    uid: int | None = None
    gpu_limit_permille: int | None = None  # most GPU thousandths held at once, over all projects
    disabled: bool = False
    email: str = ""


@dataclass(frozen=True, slots=True)
class Department:
    """Projects that share a quota above their own: nothing inside counts as owed beyond it.

    ``quota_permille`` None: the sum of the projects' quotas. ``weight`` is its part of what is left when every quota
    is served. ``limit_permille`` is never exceeded by all its projects together.
    """

    name: str
    quota_permille: int | None = None
    weight: float = 1.0
    limit_permille: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class ProjectRules:
    """What the work of a project may ask for and must put up with; None and empty mean the pool's own.

    ``min_runtime_s``: training is not evicted sooner after its start. ``max_time_limit_s``: the longest time limit
    that may be asked for. ``windows`` are the times at which training may start (``domain.windows``). ``node_pools``
    are the values of the node label ``pool`` where its work may run. ``max_gpus_permille`` bounds one replica.
    ``images`` are patterns of the container images that may be used (``domain.images``), ``volumes`` the folders in
    which their volumes must lie.
    """

    min_runtime_s: float | None = None
    max_time_limit_s: float | None = None
    windows: tuple[str, ...] = ()
    node_pools: tuple[str, ...] = ()
    max_gpus_permille: int | None = None
    images: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Project:
    """Work that shares a quota.

    ``quota_permille`` is the part of the pool that the project can count on (None: no bound, the whole pool);
    training may exceed it with idle GPUs when ``over_quota`` is true. ``limit_permille`` is never exceeded.
    ``members`` empty means everybody. ``compute_*`` and ``sharing_*`` say which policies and modes its work may ask
    for (none: any) and which it gets when it does not; see ``domain.sharing``. ``model_quotas`` are parts of the quota
    that it can count on of named GPU models. ``weight`` is its part of what is left when every quota is served.
    """

    name: str
    quota_permille: int | None = None
    over_quota: bool = True
    limit_permille: int | None = None
    user_limit_permille: int | None = None
    members: tuple[str, ...] = ()
    max_time_s: float | None = None
    idle_timeout_s: float | None = None
    note: str = ""
    compute_default: ComputePolicy | None = None
    compute_allowed: tuple[ComputePolicy, ...] = ()
    sharing_default: Sharing | None = None
    sharing_allowed: tuple[Sharing, ...] = ()
    department: str = ""
    weight: float = 1.0
    model_quotas: tuple[tuple[str, int], ...] = ()
    rules: ProjectRules = ProjectRules()


@dataclass(frozen=True, slots=True)
class Actor:
    """Who is asking: a user with the role in force, and how the pool knows (``uid 1000``, ``token ab12``)."""

    user: str
    role: Role
    via: str
    uid: int | None = None


@dataclass(frozen=True, slots=True)
class Token:
    """A network token; only a hash of its secret is kept. Times are seconds since the epoch."""

    id: str
    user: str
    secret_sha256: str
    role: Role
    created_at: float
    expires_at: float
    revoked_at: float | None = None
    last_used_at: float | None = None
    note: str = ""
