"""Join tokens and the machines that joined with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from sqlalchemy import Connection, delete, extract, func, select, update

from gpupool.domain.events import Event
from gpupool.domain.nodes.heads import Head, HeadReport
from gpupool.domain.nodes.joining import MAX_REMOVED_MEMBERS, JoinedMachine, JoinToken, RemovedMember
from gpupool.store.backends.database import Database, upsert
from gpupool.store.events import append_events, write_with_events
from gpupool.store.pool.nodes import revoke_member
from gpupool.store.schema import tables as t

MAX_LISTED = 200


class SqlJoins:
    """The database tables of joining machines; implements ``JoinStore``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def save_token(self, token: JoinToken, event: Event) -> None:
        """Insert or replace."""
        await write_with_events(self._database, (event,), lambda conn: upsert(conn, t.join_tokens, asdict(token)))

    async def tokens(self) -> Sequence[JoinToken]:
        """Return tokens, newest first, up to a limit."""
        wanted = select(t.join_tokens).order_by(t.join_tokens.c.created_at.desc(), t.join_tokens.c.id).limit(MAX_LISTED)
        return await self._database.read(lambda conn: [JoinToken(**row) for row in conn.execute(wanted).mappings()])

    async def tokens_made_with(self, parent: str) -> Sequence[JoinToken]:
        """Return the tokens that a network token created."""
        wanted = select(t.join_tokens).where(t.join_tokens.c.parent == parent)
        return await self._database.read(lambda conn: [JoinToken(**row) for row in conn.execute(wanted).mappings()])

    async def admit(self, secret_sha256: str, member: JoinedMachine, event: Event, head: Head | None = None) -> bool:
        """Use a valid token once and write the member, in one transaction; return whether it was done."""
        return await self._database.write(lambda conn: _admit(conn, secret_sha256, member, event, head))

    async def members(self) -> Sequence[JoinedMachine]:
        """Return all machines that have joined, by name."""
        wanted = select(t.members)
        found = await self._database.read(
            lambda conn: [JoinedMachine(**row) for row in conn.execute(wanted).mappings()]
        )
        return sorted(found, key=lambda member: member.node)

    async def save_member(self, member: JoinedMachine, event: Event) -> None:
        """Insert or replace."""
        await write_with_events(self._database, (event,), lambda conn: upsert(conn, t.members, asdict(member)))

    async def drop_member(self, node: str, event: Event) -> None:
        """Delete a machine, also as a head, and revoke its secret; do nothing if it is not a member."""

        def work(conn: Connection) -> None:
            if revoke_member(conn, node, event):
                append_events(conn, (event,))

        await self._database.write(work)

    async def removed(self) -> Sequence[RemovedMember]:
        """Return removed machines, newest first."""
        wanted = select(t.removed_members).order_by(t.removed_members.c.removed_at.desc()).limit(MAX_REMOVED_MEMBERS)
        return await self._database.read(lambda conn: [RemovedMember(**row) for row in conn.execute(wanted).mappings()])

    async def heads(self) -> Sequence[Head]:
        """Return all heads, by name."""
        wanted = select(t.heads).order_by(t.heads.c.name)
        return await self._database.read(lambda conn: [Head(**row) for row in conn.execute(wanted).mappings()])

    async def head_reports(self) -> Sequence[HeadReport]:
        """Return the last reports of standby heads, by name; ages follow the clock of the database."""
        return await self._database.read(_head_reports)

    async def save_head(self, head: Head) -> None:
        """Insert or replace."""

        def work(conn: Connection) -> None:
            upsert(conn, t.heads, asdict(head))
            conn.execute(delete(t.meta).where(t.meta.c.name == t.RESTORED))

        await self._database.write(work)


def _head_reports(conn: Connection) -> list[HeadReport]:
    if conn.dialect.name != "postgresql":
        return []  # a file of one machine: there is no standby head
    wanted = select(t.head_reports, extract("epoch", func.clock_timestamp()).label("now"))
    rows = conn.execute(wanted.order_by(t.head_reports.c.name)).mappings()
    return [HeadReport(row["name"], float(row["now"]) - row["reported_at"], tuple(row["faults"])) for row in rows]


def _admit(conn: Connection, secret_sha256: str, member: JoinedMachine, event: Event, head: Head | None) -> bool:
    """Spend the token with an UPDATE that checks again: two machines cannot share its last use."""
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
    append_events(conn, (event,))
    return True
