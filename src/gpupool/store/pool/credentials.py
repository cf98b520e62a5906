"""Network tokens, sessions of browsers, and the users of a provider's identities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, bindparam, delete, func, insert, select, update

from gpupool.domain.decode import decode
from gpupool.domain.events import Event
from gpupool.domain.people.access import Token
from gpupool.domain.people.sessions import Session
from gpupool.store.backends.database import Database, read_method, upsert, write_method
from gpupool.store.events import append_events, write_with_events
from gpupool.store.pool.pool_mapping import token_of
from gpupool.store.pool.rows import TOKENS, SqlRows
from gpupool.store.schema import tables as t
from gpupool.store.schema.columns import plain_text

_touch_session = (
    update(t.sessions).where(t.sessions.c.secret_sha256 == bindparam("of")).values(last_used_at=bindparam("at"))
)
_IDENTITY = "identity "  # prefix of identities in the table ``meta``


def _tokens(conn: Connection, user: str | None = None) -> list[Token]:
    """Return tokens, newest first; only one user's if given."""
    statement = select(t.tokens).order_by(t.tokens.c.created_at.desc(), t.tokens.c.id.desc())
    if user is not None:
        statement = statement.where(t.tokens.c.user_name == user)
    return [token_of(row) for row in conn.execute(statement).mappings()]


def _find(conn: Connection, secret_sha256: str) -> Token | None:
    """Return the token with this hash."""
    row = conn.execute(select(t.tokens).where(t.tokens.c.secret_sha256 == secret_sha256)).mappings().first()
    return None if row is None else token_of(row)


def _touch(conn: Connection, token_id: str, at: float) -> None:
    """Record a use; do nothing if the token is deleted."""
    conn.execute(update(t.tokens).where(t.tokens.c.id == token_id).values(last_used_at=at))


class SqlTokens(SqlRows[Token]):
    """Network tokens in a database; implements ``TokenStore``."""

    def __init__(self, database: Database) -> None:
        super().__init__(database, TOKENS)

    list = read_method(_tokens)
    find = read_method(_find)
    touch = write_method(_touch)


class SqlSessions:
    """Sessions in a database; implements ``SessionStore``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load(self) -> Sequence[Session]:
        """Return the sessions whose token, if any, is still valid; oldest first."""
        return await self._database.read(_all)

    async def save(self, session: Session, event: Event) -> None:
        """Insert or replace."""
        await write_with_events(self._database, (event,), lambda conn: upsert(conn, t.sessions, _row_of(session)))

    async def touch(self, used: Mapping[str, float]) -> None:
        """Record the last use of sessions, by their hashes."""
        rows = [{"of": of, "at": at} for of, at in used.items()]
        await self._database.write(lambda conn: conn.execute(_touch_session, rows) if rows else None)

    async def drop(self, hashes: Sequence[str], events: Sequence[Event] = ()) -> None:
        """Delete sessions."""
        ended = delete(t.sessions).where(t.sessions.c.secret_sha256.in_(hashes))
        await write_with_events(self._database, events, lambda conn: conn.execute(ended))

    async def note(self, event: Event) -> None:
        """Record an event without a session: a failed attempt."""
        await self._database.write(lambda conn: append_events(conn, (event,)))

    async def who_is(self, identity: str) -> str | None:
        """Return the user bound to an identity of a provider; None if it is new."""
        wanted = select(t.meta.c.value).where(t.meta.c.name == _IDENTITY + identity)
        return await self._database.read(lambda conn: conn.execute(wanted).scalar())

    async def is_bound(self, user: str, provider: str) -> bool:
        """Return whether an identity of a provider (a key prefix) is bound to this user."""
        begins = t.meta.c.name.startswith(_IDENTITY + provider, autoescape=True)
        wanted = select(func.count()).select_from(t.meta).where(begins, t.meta.c.value == user)
        return bool(await self._database.read(lambda conn: conn.execute(wanted).scalar()))

    async def bind(self, identity: str, user: str, event: Event) -> None:
        """Bind an identity to a user permanently; an existing binding stays."""
        bound = insert(t.meta).values(name=_IDENTITY + identity, value=user)
        await write_with_events(self._database, (event,), lambda conn: conn.execute(bound))


def _all(conn: Connection) -> list[Session]:
    revoked = select(t.tokens.c.id).where(t.tokens.c.revoked_at.is_not(None))
    statement = select(t.sessions).where(t.sessions.c.token_id.not_in(revoked)).order_by(t.sessions.c.created_at)
    return [decode(Session, {**row, "user": row["user_name"]}) for row in conn.execute(statement).mappings()]


def _row_of(session: Session) -> dict[str, object]:
    row = {column.name: getattr(session, column.name) for column in t.sessions.c if column.name != "user_name"}
    words = {"role": session.role.value, "scope": session.scope.value, "agent": plain_text(session.agent)}
    return {**row, **words, "user_name": session.user}
