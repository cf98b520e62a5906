"""Sessions of signed-in browsers, and the origin of a browser's connection."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gpupool.domain.people.access import Role, Scope

SESSION_IDLE_S = 12 * 3600.0  # without a request by a person; automatic requests of a page do not count
SESSION_LIFE_S = 7 * 86400.0
LINK_LIFE_S = 60.0
MAX_AGENT_LENGTH = 200


class SessionOrigin(StrEnum):
    """The way in which a browser was signed in."""

    LINK = "link"
    TOKEN = "token"  # noqa: S105 - a word, no secret
    OIDC = "oidc"


@dataclass(frozen=True, slots=True)
class BrowserClient:
    """The origin of a browser's connection.

    ``uid`` is the account that owns the browser's end of a loopback connection, according to the kernel; None for TLS
    over the network. ``agent`` is the browser's user agent. ``peer`` is the key for rate limits.
    """

    uid: int | None
    agent: str = ""
    peer: str = ""


@dataclass(frozen=True, slots=True)
class Session:
    """A signed-in browser; only a hash of its secret is stored. Times are seconds since the epoch.

    ``role`` and ``scope`` limit it further than the role of its user. ``token_id`` is the token of its sign-in, or
    empty: the session ends with that token. ``peer_uid`` is the only account whose processes may use it over the
    loopback address, because a browser sends the cookie to every program there. None: it is valid only over TLS.
    """

    secret_sha256: str
    user: str
    role: Role
    origin: SessionOrigin
    created_at: float
    expires_at: float
    last_used_at: float
    token_id: str = ""
    agent: str = ""
    peer_uid: int | None = None
    scope: Scope = Scope.FULL

    @property
    def id(self) -> str:
        """Return the id for lists; it only serves to end one's own session."""
        return self.secret_sha256[:12]

    def over(self, now: float) -> bool:
        """Return whether the session has expired."""
        return now >= self.expires_at or now - self.last_used_at >= SESSION_IDLE_S
