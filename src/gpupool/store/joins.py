"""Join tokens and the machines that joined with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from sqlalchemy import Connection, delete, select, update

from gpupool.domain.events import Event
from gpupool.domain.heads import Head
from gpupool.domain.joining import JoinToken, Member
from gpupool.store import tables as t
from gpupool.store import writes
from gpupool.store.database import Database, upsert

MOST_LISTED = 200


class SqlJoins:
    """Machines that join, in a database; the methods are those of ``JoinStore``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def save_token(self, token: JoinToken, event: Event) -> None:
        """Insert or replace."""

        def work(conn: Connection) -> None:
            upsert(conn, t.join_tokens, asdict(token))
            writes.append_events(conn, (event,))

        await self._database.write(work)

    async def tokens(self) -> Sequence[JoinToken]:
        """The newest first, so many of them as anybody may want to see."""
        wanted = (
            select(t.join_tokens).order_by(t.join_tokens.c.created_at.desc(), t.join_tokens.c.id).limit(MOST_LISTED)
        )
        return await self._database.read(lambda conn: [JoinToken(**row) for row in conn.execute(wanted).mappings()])

    async def admit(self, secret_sha256: str, member: Member, event: Event, head: Head | None = None) -> bool:
        """Take one use of a token that is still good and write the member, all or nothing; whether it was done."""
        return await self._database.write(lambda conn: _admit(conn, secret_sha256, member, event, head))

    async def members(self) -> Sequence[Member]:
        """All machines that have joined, by name."""
        wanted = select(t.members)
        found = await self._database.read(lambda conn: [Member(**row) for row in conn.execute(wanted).mappings()])
        return sorted(found, key=lambda member: member.node)

    async def save_member(self, member: Member, event: Event) -> None:
        """Insert or replace."""

        def work(conn: Connection) -> None:
            upsert(conn, t.members, asdict(member))
            writes.append_events(conn, (event,))

        await self._database.write(work)

    async def drop_member(self, node: str, event: Event) -> None:
        """Forget a machine, also as a head; nothing happens when it is none."""

        def work(conn: Connection) -> None:
            conn.execute(delete(t.heads).where(t.heads.c.name == node))
            if conn.execute(delete(t.members).where(t.members.c.node == node)).rowcount:
                writes.append_events(conn, (event,))

        await self._database.write(work)

    async def heads(self) -> Sequence[Head]:
        """All machines that may lead, by name."""
        wanted = select(t.heads).order_by(t.heads.c.name)
        return await self._database.read(lambda conn: [Head(**row) for row in conn.execute(wanted).mappings()])

    async def save_head(self, head: Head) -> None:
        """Insert or replace."""
        await self._database.write(lambda conn: upsert(conn, t.heads, asdict(head)))


def _admit(conn: Connection, secret_sha256: str, member: Member, event: Event, head: Head | None) -> bool:
    """The token is spent by an UPDATE that looks once more: two machines cannot use the last use of it."""
    token = t.join_tokens.c
    good = (
        token.secret_sha256 == secret_sha256,
        token.revoked_at.is_(None),
        token.expires_at > member.joined_at,
        token.uses_left > 0,
    )
    if not conn.execute(update(t.join_tokens).where(*good).values(uses_left=token.uses_left - 1)).rowcount:
        return False
    upsert(conn, t.members, asdict(member))
    if head is not None:
        upsert(conn, t.heads, asdict(head))
    writes.append_events(conn, (event,))
    return True
