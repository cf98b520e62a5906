"""The Protocols of a cluster: its certificate authority, and the store for join tokens, members and heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gpupool.domain.events import Event
from gpupool.domain.nodes.heads import Head, HeadReport
from gpupool.domain.nodes.joining import JoinedMachine, JoinToken, RemovedMember, Versions


@dataclass(frozen=True, slots=True)
class Papers:
    """The credentials of a machine: its certificate and the authority's certificate (PEM), and Ray's token."""

    certificate: str
    ca: str
    ray_token: str


class Authority(Protocol):
    """The certificate authority of a cluster."""

    @property
    def versions(self) -> Versions:
        """Return the versions on the head."""

    @property
    def address(self) -> tuple[str, int]:
        """Return the address and port of Ray's GCS."""

    def fingerprint(self) -> str:
        """Return the SHA-256 of the head's certificate; raises INVALID_FILE."""

    def papers(self, node: str, address: str, request_pem: str) -> Papers:
        """Issue a certificate for the key of a signing request; raises INVALID_REQUEST for an invalid one."""

    def secret_key(self) -> str:
        """Return its private key (PEM), for another head; raises INVALID_FILE."""

    def checked(self, certificate_pem: str) -> str:
        """Return a certificate in the form that is stored; raises INVALID_REQUEST for an invalid one."""

    def keep_heads(self, heads: Sequence[Head]) -> None:
        """Store the heads for the processes of this machine; raises OSError."""

    def keep_refused(self, names: Sequence[str]) -> None:
        """Store the removed nodes for the bridge of this machine; raises OSError."""

    def key_of(self, request_pem: str) -> str:
        """Return the SHA-256 of the public key in a signing request; raises INVALID_REQUEST."""


class JoinStore(Protocol):
    """Stored tokens, members and heads. Each method is one transaction; errors are ``GpupoolError`` (DATABASE_*)."""

    async def save_token(self, token: JoinToken, event: Event) -> None:
        """Insert or replace a join token."""

    async def tokens(self) -> Sequence[JoinToken]:
        """Return all stored join tokens, newest first."""

    async def admit(self, secret_sha256: str, member: JoinedMachine, event: Event, head: Head | None = None) -> bool:
        """Take one use of a valid token and insert the member, also as a head, in one transaction; True if done."""

    async def tokens_made_with(self, parent: str) -> Sequence[JoinToken]:
        """Return the join tokens that were created with a network token."""

    async def members(self) -> Sequence[JoinedMachine]:
        """Return all members, sorted by name."""

    async def save_member(self, member: JoinedMachine, event: Event) -> None:
        """Insert or replace a member."""

    async def drop_member(self, node: str, event: Event) -> None:
        """Delete a member, also as a head, and revoke its secret; do nothing if it does not exist."""

    async def removed(self) -> Sequence[RemovedMember]:
        """Return the removed members, newest first."""

    async def heads(self) -> Sequence[Head]:
        """Return all heads, sorted by name."""

    async def head_reports(self) -> Sequence[HeadReport]:
        """Return the last reports of standby heads, sorted by name."""

    async def save_head(self, head: Head) -> None:
        """Insert or replace a head."""
