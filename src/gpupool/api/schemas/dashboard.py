"""Links into the dashboard and the browsers that are signed in."""

from __future__ import annotations

from pydantic import Field

from gpupool.api.schemas.base import Body, View
from gpupool.domain.signin import SessionOrigin


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
