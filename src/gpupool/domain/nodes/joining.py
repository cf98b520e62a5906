"""Machines that join a pool: join tokens, and what the pool stores about members."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from gpupool.domain.errors import ErrorCode, GpupoolError

JOIN_PREFIX = "gpj"
MAX_TOKEN_LIFETIME_S = 30 * 86400.0
MAX_TOKEN_USES = 1000
MAX_REMOVED_MEMBERS = 10_000  # removed machines that are read; the database keeps older ones


@dataclass(frozen=True, slots=True)
class JoinToken:
    """A token for up to ``uses_left`` more machines, until it expires. Only a hash of its secret is stored.

    With ``for_head`` a machine may join as a head. ``parent`` is the network token that created it (empty: none): it
    ends with that token. Times are seconds since the epoch.
    """

    id: str
    secret_sha256: str
    created_by: str
    created_at: float
    expires_at: float
    uses_left: int
    revoked_at: float | None = None
    note: str = ""
    for_head: bool = False
    parent: str = ""

    def good(self, now: float) -> bool:
        """Return whether the token still admits a machine."""
        return self.revoked_at is None and now < self.expires_at and self.uses_left > 0


@dataclass(frozen=True, slots=True)
class JoinedMachine:
    """A machine that has joined: the hashes that identify its secret and its key, and since when."""

    node: str
    secret_sha256: str
    key_sha256: str
    address: str
    joined_at: float
    token_id: str


@dataclass(frozen=True, slots=True)
class RemovedMember:
    """A removed machine: its secret (hash) is refused for ever, even if a new machine takes its name."""

    secret_sha256: str
    node: str
    removed_at: float
    removed_by: str


def refused_names(removed: Iterable[RemovedMember], members: Iterable[str]) -> list[str]:
    """Return the names of removed machines that no present member has."""
    return sorted({former.node for former in removed} - set(members))


def removal_error(removed: RemovedMember) -> GpupoolError:
    """Return the error for every request of a removed machine."""
    when = datetime.fromtimestamp(removed.removed_at, UTC)
    return GpupoolError(
        ErrorCode.NODE_REMOVED,
        f"{removed.node} was removed from the pool by {removed.removed_by} at {when:%Y-%m-%d %H:%M:%S} UTC.",
        "Stop it with 'gpupool down' and join again with a new token: 'gpupool join-token create' on the head that"
        " leads prints the command. 'gpupool leave' deletes the rest of the membership.",
    )


@dataclass(frozen=True, slots=True)
class Versions:
    """Versions that must match between machines: Ray requires equal Ray and Python versions, even the patch level."""

    gpupool: str
    ray: str
    python: str


@dataclass(frozen=True, slots=True)
class JoinText:
    """The text that an administrator gives to a new machine: ``gpj_ID_SECRET_FINGERPRINT``.

    The fingerprint is the SHA-256 of the head's certificate. The new machine sends the secret to no other server.
    """

    secret: str  # with the prefix and the id: this is sent and hashed
    fingerprint: str

    def __str__(self) -> str:
        return f"{self.secret}_{self.fingerprint}"

    @classmethod
    def read(cls, text: str) -> JoinText | None:
        """Parse the text; return None if it is not a join token."""
        secret, _, fingerprint = text.strip().rpartition("_")
        hexadecimal = len(fingerprint) == 64 and set(fingerprint) <= set("0123456789abcdef")
        parts = secret.split("_")
        if not hexadecimal or len(parts) != 3 or parts[0] != JOIN_PREFIX or len(text) > 256:
            return None
        return cls(secret, fingerprint)
