"""What the services ask of the store about sessions of browsers, and about who a provider's people are here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from gpupool.domain.events import Event
from gpupool.domain.signin import Session


class SessionStore(Protocol):
    """Every method is one transaction; errors are ``GpupoolError`` (DATABASE_*)."""

    async def load(self) -> Sequence[Session]:
        """Every session whose token, if it came from one, is still good; oldest first."""

    async def save(self, session: Session, event: Event) -> None:
        """Insert or replace."""

    async def touch(self, used: Mapping[str, float]) -> None:
        """Note when sessions were last used, by their hashes."""

    async def drop(self, hashes: Sequence[str], events: Sequence[Event] = ()) -> None:
        """Forget sessions."""

    async def note(self, event: Event) -> None:
        """Write down what happened without a session: a failed attempt."""

    async def who_is(self, identity: str) -> str | None:
        """The user that an identity of a provider was bound to; None when it was not seen before."""

    async def is_bound(self, user: str, provider: str) -> bool:
        """Whether somebody of a provider, whose identities begin so, is this user."""

    async def bind(self, identity: str, user: str, event: Event) -> None:
        """From now on an identity is this user; it stays the one it was bound to first."""
