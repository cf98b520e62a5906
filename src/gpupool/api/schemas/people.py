"""The caller, projects, users, tokens and sessions."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from gpupool.api.schemas.base import Body, View
from gpupool.domain.nodes.sharing import ComputePolicy, Sharing
from gpupool.domain.people.access import Role, Scope
from gpupool.domain.people.sessions import SessionOrigin


class WhoamiView(View):
    """Return the authenticated user; ``projects`` are those the user may submit to."""

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


class ProjectView(View):
    """A project, its bounds, and what it holds and waits for now.

    ``*_allowed`` are the compute policies and sharing modes that its work may have (empty: any), ``*_default`` what it
    has when it asks for none. ``weight`` is its part of what is left when quotas are served; ``model_quotas`` are
    parts of the quota by GPU model. ``gpu_hours_used`` is what it used this calendar month; null without a limit.
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
    scope: Scope = Scope.FULL
    parent: str = ""  # the token with which it was made


class NewTokenView(TokenView):
    """A token just made: the only time its secret is shown."""

    secret: str


class TokenList(View):
    """Tokens, newest first: all for an administrator, one's own for others."""

    tokens: list[TokenView]


class LoginCodeView(View):
    """A code for ``POST /v1/logins``, and until when it is good (seconds since the epoch)."""

    code: str
    expires_at: float


class LoginBody(Body):
    """The code."""

    code: Annotated[str, Field(min_length=1, max_length=200)]


class LinkBody(Body):
    """``browser_uid``: the account whose browser may follow the link, when that is not the caller's own (sudo)."""

    browser_uid: int | None = Field(default=None, ge=0, le=2**32 - 2)


class LinkView(View):
    """A link that signs one browser in, once, until ``expires_at`` (epoch seconds).

    ``url`` is whole for browsers of the pool's machine (null: the dashboard is not served there); over the network
    ``path`` belongs behind the pool's own address.
    """

    url: str | None
    path: str
    expires_at: float


class SessionView(View):
    """A browser that is signed in; times are epoch seconds. ``local``: it is on the pool's machine."""

    id: str
    user: str
    origin: SessionOrigin
    created_at: float
    last_used_at: float
    expires_at: float
    agent: str
    local: bool


class SessionList(View):
    """Open sessions, newest first."""

    sessions: list[SessionView]
