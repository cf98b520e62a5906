"""What the services ask of the store about machines that join."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gpupool.domain.events import Event
from gpupool.domain.heads import Head
from gpupool.domain.joining import JoinToken, Member


class JoinStore(Protocol):
    """Every method is one transaction; errors are ``GpupoolError`` (DATABASE_*)."""

    async def save_token(self, token: JoinToken, event: Event) -> None:
        """Insert or replace."""

    async def tokens(self) -> Sequence[JoinToken]:
        """All that are remembered, newest first."""

    async def admit(self, secret_sha256: str, member: Member, event: Event, head: Head | None = None) -> bool:
        """Take one use of a token that is still good and write the member, also as a head; whether it was done.

        All or nothing.
        """

    async def members(self) -> Sequence[Member]:
        """All machines that have joined, by name."""

    async def save_member(self, member: Member, event: Event) -> None:
        """Insert or replace."""

    async def drop_member(self, node: str, event: Event) -> None:
        """Forget a machine, also as a head; nothing happens when it is none."""

    async def heads(self) -> Sequence[Head]:
        """All machines that may lead, by name."""

    async def save_head(self, head: Head) -> None:
        """Insert or replace."""
