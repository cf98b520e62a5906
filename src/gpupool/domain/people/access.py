"""Users, roles and projects: permissions and quotas."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum

from gpupool.domain.nodes.gpu import SpreadRule
from gpupool.domain.nodes.sharing import ComputePolicy, Sharing

DEFAULT_PROJECT = "default"


class Role(StrEnum):
    """The permissions of a user, from least to most; each role includes those before it."""

    VIEWER = "viewer"  # read
    MEMBER = "member"  # submit, and manage one's own work
    MANAGER = "manager"  # manage all work in one's own projects
    ADMIN = "admin"  # everything

    @property
    def rank(self) -> int:
        """Return the position from 0 (viewer) to 3 (admin)."""
        return list(Role).index(self)

    def includes(self, other: Role) -> bool:
        """Return whether this role has all permissions of ``other``."""
        return self.rank >= other.rank


class Scope(StrEnum):
    """The permitted use of a token within the role, from least to most; each scope includes those before it."""

    METRICS = "metrics"  # read the Prometheus metrics
    READ = "read"  # read what the role may see
    SUBMIT = "submit"  # submit and control workloads, and transfer files
    FULL = "full"  # everything that the role may do, including tokens

    @property
    def rank(self) -> int:
        """Return the position from 0 (metrics) to 3 (full)."""
        return list(Scope).index(self)

    def includes(self, other: Scope) -> bool:
        """Return whether this scope allows everything that ``other`` allows."""
        return self.rank >= other.rank


@dataclass(frozen=True, slots=True)
class User:
    """A person or service account; ``uid`` is the operating-system account that runs its jobs.

    ``email`` is the address for warnings (empty: none are sent).
    """

    name: str
    role: Role = Role.MEMBER
    uid: int | None = None
    gpu_limit_permille: int | None = None  # most GPU thousandths held at once, over all projects
    disabled: bool = False
    email: str = ""


@dataclass(frozen=True, slots=True)
class Department:
    """A group of projects that share a quota above their own.

    ``quota_permille`` None: the sum of the projects' quotas. ``weight`` is its ratio of the over-quota GPUs. All its
    projects together never exceed ``limit_permille``.
    """

    name: str
    quota_permille: int | None = None
    weight: float = 1.0
    limit_permille: int | None = None
    note: str = ""


DEFAULT_MAX_PRIORITY = 0


@dataclass(frozen=True, slots=True)
class ProjectRules:
    """Rules for the work of a project; None and empty mean the pool's own rules.

    ``min_runtime_s``: training is not evicted sooner after its start. ``max_time_limit_s``: the longest time limit that
    may be requested. ``windows`` are the times at which training may start (``domain.work.time_windows``).
    ``node_pools`` are the values of the node label ``pool`` where its work may run. ``max_gpus_permille`` limits one
    replica, ``max_queued`` the number of queued replicas. ``images`` are patterns of allowed container images
    (``domain.work.program.container``), ``volumes`` the folders that must contain their volumes. ``workspace_mib``
    limits the disk that all its workspaces use, ``user_workspace_mib`` that of one user's. ``max_priority`` is the
    highest priority that members may choose (None: ``DEFAULT_MAX_PRIORITY``); managers and administrators may choose
    any. ``gpu_hours`` limits what the project uses in a calendar month, ``user_gpu_hours`` what each of its users does.
    ``user_weights`` are ratios of the shares of its users (others: 1), ``user_quotas`` the thousandths of a GPU that
    users are guaranteed of what the project has. ``spread`` says whether its work may request
    that placement.
    """

    min_runtime_s: float | None = None
    max_time_limit_s: float | None = None
    windows: tuple[str, ...] = ()
    node_pools: tuple[str, ...] = ()
    max_gpus_permille: int | None = None
    images: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    max_queued: int | None = None
    workspace_mib: int | None = None
    user_workspace_mib: int | None = None
    max_priority: int | None = None
    gpu_hours: float | None = None
    user_gpu_hours: float | None = None
    user_weights: tuple[tuple[str, float], ...] = ()
    user_quotas: tuple[tuple[str, int], ...] = ()
    spread: SpreadRule | None = None


@dataclass(frozen=True, slots=True)
class Project:
    """A group of users whose work shares a quota.

    ``quota_permille`` is the guaranteed part of the pool (None: the whole pool). Training may exceed it with idle GPUs
    when ``over_quota`` is true. ``limit_permille`` is never exceeded. ``members`` empty: everybody. ``compute_*`` and
    ``sharing_*`` are the allowed policies and modes (empty: any) and the defaults; see ``domain.work.sharing_policy``.
    ``model_quotas`` are the guaranteed parts of the quota on named GPU models. ``weight`` is its ratio of the
    over-quota GPUs.
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
    """The user behind a request, with the role in force and the proof of identity (``uid 1000``, ``token ab12``).

    ``scope`` limits the request. ``token_id`` is the token of the request, or of the session's sign-in (empty: none).
    """

    user: str
    role: Role
    via: str
    uid: int | None = None
    scope: Scope = Scope.FULL
    token_id: str = ""


@dataclass(frozen=True, slots=True)
class Token:
    """A network token; only a hash of its secret is stored. Times are seconds since the epoch.

    ``parent`` is the token that created it (empty: none): it ends with that token.
    """

    id: str
    user: str
    secret_sha256: str
    role: Role
    created_at: float
    expires_at: float
    revoked_at: float | None = None
    last_used_at: float | None = None
    note: str = ""
    scope: Scope = Scope.FULL
    parent: str = ""


def secret_hash(secret: str) -> str:
    """Return the form in which the pool stores a secret: its SHA-256, in hexadecimal."""
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()
