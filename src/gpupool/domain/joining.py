"""Machines that join a pool: the tokens that let them in, and what the pool remembers of them."""

from __future__ import annotations

from dataclasses import dataclass

JOIN_PREFIX = "gpj"
LONGEST_LIFE_S = 30 * 86400.0
MOST_USES = 1000


@dataclass(frozen=True, slots=True)
class JoinToken:
    """Lets ``uses_left`` more machines in until it ends. Only a hash of its secret is kept; times are epoch seconds.

    With ``for_head`` a machine may join as one that can lead.
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

    def good(self, now: float) -> bool:
        """Whether it still lets a machine in."""
        return self.revoked_at is None and now < self.expires_at and self.uses_left > 0


@dataclass(frozen=True, slots=True)
class Member:
    """A machine that has joined: by which secret (its hash) it is known, which key it has, and since when."""

    node: str
    secret_sha256: str
    key_sha256: str
    address: str
    joined_at: float
    token_id: str


@dataclass(frozen=True, slots=True)
class Versions:
    """What must fit between machines: Ray speaks to its own kind only, down to the patch version of Python."""

    gpupool: str
    ray: str
    python: str


@dataclass(frozen=True, slots=True)
class JoinText:
    """What an administrator carries to a new machine: ``gpj_ID_SECRET_FINGERPRINT``.

    The fingerprint is the SHA-256 of the head's certificate: the new machine shows the secret to nobody else.
    """

    secret: str  # with the prefix and the id: what is sent and hashed
    fingerprint: str

    def __str__(self) -> str:
        return f"{self.secret}_{self.fingerprint}"

    @classmethod
    def read(cls, text: str) -> JoinText | None:
        """The inverse of ``str``; None for what is no join token."""
        secret, _, fingerprint = text.strip().rpartition("_")
        hexadecimal = len(fingerprint) == 64 and set(fingerprint) <= set("0123456789abcdef")
        parts = secret.split("_")
        if not hexadecimal or len(parts) != 3 or parts[0] != JOIN_PREFIX or len(text) > 256:
            return None
        return cls(secret, fingerprint)
