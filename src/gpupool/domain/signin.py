"""Browsers that are signed in: sessions, and where a browser comes from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gpupool.domain.access import Role

SESSION_IDLE_S = 12 * 3600.0  # without a look by a person; what a page asks by itself does not count
SESSION_LIFE_S = 7 * 86400.0
LINK_LIFE_S = 60.0
AGENT_LIMIT = 200


class SessionOrigin(StrEnum):
    """How a browser was signed in."""

    LINK = "link"
    TOKEN = "token"  # noqa: S105 - a word, no secret
    OIDC = "oidc"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a browser comes from.

    ``uid`` is the account that owns the browser's end of a loopback connection, as the kernel says; None for a
    browser that came over the network with TLS. ``agent`` is what it calls itself. ``peer`` names it for limits.
    """

    uid: int | None
    agent: str = ""
    peer: str = ""


@dataclass(frozen=True, slots=True)
class Session:
    """A browser that is signed in; only a hash of its secret is kept. Times are seconds since the epoch.

    ``role`` is the most it may do, whatever its user's role is. ``token_id`` is the token that it came from (empty:
    none): a session ends with it. ``peer_uid`` is the account whose processes alone may use it over the loopback
    address, where every program of the machine would be sent the cookie; None: it is good over TLS and there only.
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

    @property
    def id(self) -> str:
        """What lists call it; nothing can be done with it but to end one's own."""
        return self.secret_sha256[:12]

    def over(self, now: float) -> bool:
        """Whether it has ended by itself."""
        return now >= self.expires_at or now - self.last_used_at >= SESSION_IDLE_S
