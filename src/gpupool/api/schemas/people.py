"""The caller, projects, users, tokens and sessions."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from gpupool.api.schemas.base import Body, PageView, View
from gpupool.domain.nodes.gpu import SpreadRule
from gpupool.domain.nodes.sharing import ComputePolicy, Sharing
from gpupool.domain.people.access import Role, Scope
from gpupool.domain.people.sessions import SessionOrigin


class WhoamiView(View):
    """The authenticated user; ``projects`` are those to which the user may submit."""

    user: str
    role: Role
    via: str
    uid: int | None
    scope: Scope = Scope.FULL
    projects: list[str]


class RulesView(View):
    """Limits for the work of a project; null and empty mean the values of the pool."""

    min_runtime_s: float | None = None
    max_time_limit_s: float | None = None
    windows: list[str] = Field(default_factory=list)
    node_pools: list[str] = Field(default_factory=list)
    max_gpus_permille: int | None = None
    images: list[str] = Field(default_factory=list)
    volumes: list[str] = Field(default_factory=list)
    max_queued: int | None = None
    workspace_mib: int | None = None
    user_workspace_mib: int | None = None
    max_priority: int | None = None
    gpu_hours: float | None = None
    user_gpu_hours: float | None = None
    user_weights: Annotated[dict[str, float], BeforeValidator(dict)] = Field(default_factory=dict)
    user_quotas: Annotated[dict[str, int], BeforeValidator(dict)] = Field(default_factory=dict)
    spread: SpreadRule | None = None


class ProjectView(View):
    """A project, its limits, and its allocated and waiting GPUs.

    ``*_allowed`` are the permitted compute policies and sharing modes (empty: all), ``*_default`` the values for
    requests without one. ``weight`` divides over-quota GPUs; ``model_quotas`` are parts of the quota by GPU model.
    ``gpu_hours_used`` is the use of this calendar month; null without a limit.
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
    gpu_hours_used: float | None = None
    compute_default: ComputePolicy | None = None
    compute_allowed: list[ComputePolicy] = Field(default_factory=list)
    sharing_default: Sharing | None = None
    sharing_allowed: list[Sharing] = Field(default_factory=list)
    rules: RulesView = Field(default_factory=RulesView)
    department: str = ""
    weight: float = 1.0
    model_quotas: dict[str, int] = Field(default_factory=dict)


class ProjectList(PageView):
    """All projects."""

    projects: list[ProjectView]


class UserView(View):
    """A user of the pool; ``email`` is the address for warnings (empty: none)."""

    name: str
    role: Role
    uid: int | None
    gpu_limit_permille: int | None
    disabled: bool
    email: str = ""


class UserList(PageView):
    """Users: all for an administrator, else the caller."""

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
    scope: Scope = Scope.FULL
    parent: str = ""  # the token that created it


class NewTokenView(TokenView):
    """A new token: only here is its secret shown."""

    secret: str


class TokenList(PageView):
    """Tokens, newest first: all for an administrator, else the caller's own."""

    tokens: list[TokenView]


class LoginCodeView(View):
    """A code for ``POST /v1/logins``, and its expiry (seconds since the epoch)."""

    code: str
    expires_at: float


class LoginBody(Body):
    """The code."""

    code: Annotated[str, Field(min_length=1, max_length=200)]


class LinkBody(Body):
    """``browser_uid``: the account of the browser, if it is not the caller's own (sudo)."""

    browser_uid: int | None = Field(default=None, ge=0, le=2**32 - 2)


class LinkView(View):
    """A link that signs one browser in, once, until ``expires_at`` (epoch seconds).

    ``url`` is complete for browsers on the control plane's node (null: no dashboard there); over the network, append
    ``path`` to the address of the pool.
    """

    url: str | None
    path: str
    expires_at: float


class SessionView(View):
    """A signed-in browser; times are epoch seconds. ``local``: it is on the control plane's node."""

    id: str
    user: str
    origin: SessionOrigin
    created_at: float
    last_used_at: float
    expires_at: float
    agent: str
    local: bool


class SessionList(PageView):
    """Open sessions, newest first."""

    sessions: list[SessionView]
