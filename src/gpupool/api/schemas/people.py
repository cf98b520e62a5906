"""Who asks, projects, users, tokens and what was used."""

from __future__ import annotations

from pydantic import Field

from gpupool.api.schemas.base import View
from gpupool.domain.access import Role
from gpupool.domain.gpu import ComputePolicy, Sharing


class WhoamiView(View):
    """Who the pool takes the caller for; ``projects`` are those the caller may use."""

    user: str
    role: Role
    via: str
    uid: int | None
    projects: list[str]


class RulesView(View):
    """What the work of a project may ask for and must put up with; null and empty mean the pool's own."""

    min_runtime_s: float | None = None
    max_time_limit_s: float | None = None
    windows: list[str] = Field(default_factory=list)
    node_pools: list[str] = Field(default_factory=list)
    max_gpus_permille: int | None = None
    images: list[str] = Field(default_factory=list)
    volumes: list[str] = Field(default_factory=list)


class ProjectView(View):
    """A project, its bounds, and what it holds and waits for now.

    ``*_allowed`` are the compute policies and sharing modes that its work may have (empty: any), ``*_default`` what it
    has when it asks for none. ``weight`` is its part of what is left when quotas are served; ``model_quotas`` are
    parts of the quota by GPU model.
    """

    name: str
    quota_permille: int | None
    over_quota: bool
    limit_permille: int | None
    user_limit_permille: int | None
    members: list[str]
    max_time_s: float | None
    idle_timeout_s: float | None
    note: str
    allocated_permille: int
    queued: int
    compute_default: ComputePolicy | None = None
    compute_allowed: list[ComputePolicy] = Field(default_factory=list)
    sharing_default: Sharing | None = None
    sharing_allowed: list[Sharing] = Field(default_factory=list)
    rules: RulesView = Field(default_factory=RulesView)
    department: str = ""
    weight: float = 1.0
    model_quotas: dict[str, int] = Field(default_factory=dict)


class ProjectList(View):
    """All projects."""

    projects: list[ProjectView]


class UserView(View):
    """A user of the pool; ``email`` is where warnings go (empty: nowhere)."""

    name: str
    role: Role
    uid: int | None
    gpu_limit_permille: int | None
    disabled: bool
    email: str = ""


class UserList(View):
    """Users: all for an administrator, oneself for others."""

    users: list[UserView]


class TokenView(View):
    """A network token, without its secret."""

    id: str
    user: str
    role: Role
    created_at: float
    expires_at: float
    revoked_at: float | None
    last_used_at: float | None
    note: str


class NewTokenView(TokenView):
    """A token just made: the only time its secret is shown."""

    secret: str


class TokenList(View):
    """Tokens, newest first: all for an administrator, one's own for others."""

    tokens: list[TokenView]
