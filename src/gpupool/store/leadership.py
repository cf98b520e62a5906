"""Who leads a pool whose database is PostgreSQL: a lock that lives as long as one connection, and a term.

The lock says who may begin; the term, which every write is compared with, says whose writes still count. A leader that
was frozen or cut off may believe in its lock for a while: it can write nothing once another has begun a term.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from gpupool.domain.heads import Head, MemberKey
from gpupool.store import postgres
from gpupool.store.address import PostgresAddress

# The server ends a session that says nothing for this long, and its lock with it; the leader speaks once a second.
SILENCE_S = 10
_BRIEF = f"SET idle_session_timeout = '{SILENCE_S}s'"
_SET_UP = (
    "SET application_name = 'gpupool leader'",
    "SET tcp_keepalives_idle = 5",
    "SET tcp_keepalives_interval = 2",
    "SET tcp_keepalives_count = 3",
)
_LOCK = "SELECT pg_try_advisory_lock(1735423344, hashtext(coalesce(current_schema(), '')))"
_BEGIN = (
    "UPDATE leadership SET term = term + 1, leader = %s, address = %s, since = extract(epoch FROM clock_timestamp())"
    " WHERE id = 1 RETURNING term"
)
_HEADS = "SELECT name, url, certificate, gcs_host, gcs_port, added_at FROM heads ORDER BY name"
_MEMBERS = "SELECT node, secret_sha256, node IN (SELECT name FROM heads) FROM members"
_PRESENT = "SELECT term, leader, address, since FROM leadership WHERE id = 1"


@dataclass(frozen=True, slots=True)
class Leader:
    """Who began the present term, when (seconds since the epoch), and where clients find it (may be empty)."""

    term: int
    name: str
    address: str
    since: float


class LeaderSession:
    """A connection that may hold the right to lead; methods raise ``psycopg.Error``, or ``GpupoolError``.

    It ends when nothing is said on it for ``SILENCE_S``, unless it is ``silent`` by intent.
    """

    def __init__(self, address: PostgresAddress, *, silent: bool = False) -> None:
        self._raw: psycopg.Connection[Any] = postgres.connect(address, *_SET_UP, *(() if silent else (_BRIEF,)))

    def try_lock(self) -> bool:
        """Take the right to lead unless somebody has it; at once."""
        row = self._raw.execute(_LOCK).fetchone()
        return bool(row and row[0])

    def present(self) -> Leader | None:
        """Who began the present term; None when nobody has yet."""
        try:
            row = self._raw.execute(_PRESENT).fetchone()
        except psycopg.errors.UndefinedTable:
            return None  # a database that is new, or of an older release
        return Leader(*row) if row and row[0] else None

    def heads(self) -> tuple[Head, ...]:
        """The machines of a cluster that may lead; none where they are not written down."""
        try:
            return tuple(Head(*row) for row in self._raw.execute(_HEADS).fetchall())
        except psycopg.errors.UndefinedTable:
            return ()  # likewise

    def members(self) -> tuple[MemberKey, ...]:
        """All machines of a cluster; none where they are not written down."""
        try:
            return tuple(MemberKey(*row) for row in self._raw.execute(_MEMBERS).fetchall())
        except psycopg.errors.UndefinedTable:
            return ()  # likewise

    def begin_term(self, name: str, address: str) -> int:
        """Begin a term: from here on whoever led before writes nothing. The lock must be held."""
        row = self._raw.execute(_BEGIN, (name, address)).fetchone()
        if row is None:
            raise psycopg.DataError("the table leadership has no row")
        return int(row[0])

    def ping(self) -> None:
        """Ask for a sign of life."""
        self._raw.execute("SELECT 1")

    def hang_up(self) -> None:
        """Free whoever waits for an answer; from any thread."""
        postgres.hang_up(self._raw)

    def close(self) -> None:
        """Let go of the lock and the connection."""
        self._raw.close()
