"""Sessions of browsers, read whole when a control plane starts; and who the people of a provider are here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, bindparam, delete, func, insert, select, update
from sqlalchemy.engine import RowMapping

from gpupool.domain.access import Role
from gpupool.domain.events import Event
from gpupool.domain.signin import Session, SessionOrigin
from gpupool.store import tables as t
from gpupool.store import writes
from gpupool.store.columns import plain_text
from gpupool.store.database import Database, upsert

_touch = update(t.sessions).where(t.sessions.c.secret_sha256 == bindparam("of")).values(last_used_at=bindparam("at"))
_IDENTITY = "identity "  # what the names of identities begin with in the table ``meta``


class SqlSessions:
    """Sessions in a database; the methods are those of ``SessionStore``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load(self) -> Sequence[Session]:
        """Every session whose token, if it came from one, is still good; oldest first."""
        return await self._database.read(_all)

    async def save(self, session: Session, event: Event) -> None:
        """Insert or replace."""

        def work(conn: Connection) -> None:
            upsert(conn, t.sessions, _row_of(session))
            writes.append_events(conn, (event,))

        await self._database.write(work)

    async def touch(self, used: Mapping[str, float]) -> None:
        """Note when sessions were last used, by their hashes."""
        rows = [{"of": of, "at": at} for of, at in used.items()]
        await self._database.write(lambda conn: conn.execute(_touch, rows) if rows else None)

    async def drop(self, hashes: Sequence[str], events: Sequence[Event] = ()) -> None:
        """Forget sessions."""

        def work(conn: Connection) -> None:
            conn.execute(delete(t.sessions).where(t.sessions.c.secret_sha256.in_(hashes)))
            writes.append_events(conn, events)

        await self._database.write(work)

    async def note(self, event: Event) -> None:
        """Write down what happened without a session: a failed attempt."""
        await self._database.write(lambda conn: writes.append_events(conn, (event,)))

    async def who_is(self, identity: str) -> str | None:
        """The user that an identity of a provider was bound to; None when it was not seen before."""
        wanted = select(t.meta.c.value).where(t.meta.c.name == _IDENTITY + identity)
        return await self._database.read(lambda conn: conn.execute(wanted).scalar())

    async def is_bound(self, user: str, provider: str) -> bool:
        """Whether somebody of a provider, whose identities begin so, is this user."""
        begins = t.meta.c.name.startswith(_IDENTITY + provider, autoescape=True)
        wanted = select(func.count()).select_from(t.meta).where(begins, t.meta.c.value == user)
        return bool(await self._database.read(lambda conn: conn.execute(wanted).scalar()))

    async def bind(self, identity: str, user: str, event: Event) -> None:
        """From now on an identity is this user; it stays the one it was bound to first."""

        def work(conn: Connection) -> None:
            conn.execute(insert(t.meta).values(name=_IDENTITY + identity, value=user))
            writes.append_events(conn, (event,))

        await self._database.write(work)


def _all(conn: Connection) -> list[Session]:
    revoked = select(t.tokens.c.id).where(t.tokens.c.revoked_at.is_not(None))
    statement = select(t.sessions).where(t.sessions.c.token_id.not_in(revoked)).order_by(t.sessions.c.created_at)
    return [_session_of(row) for row in conn.execute(statement).mappings()]


def _row_of(session: Session) -> dict[str, object]:
    row = {column.name: getattr(session, column.name) for column in t.sessions.c if column.name != "user_name"}
    return {**row, "user_name": session.user, "role": session.role.value, "agent": plain_text(session.agent)}


def _session_of(row: RowMapping) -> Session:
    columns = {**row, "role": Role(row["role"]), "origin": SessionOrigin(row["origin"])}
    return Session(user=columns.pop("user_name"), **columns)
