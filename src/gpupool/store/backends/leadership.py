"""The leader of a pool on PostgreSQL: a lock that lives as long as one connection, and a term.

The lock decides who may begin to lead. The term, which every write is compared with, decides whose writes count. A
leader that was frozen or cut off may believe in its lock for some time, but can write nothing once a new term began.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.heads import Head, HeadIdentity, MemberKey
from gpupool.domain.nodes.joining import MAX_REMOVED_MEMBERS, RemovedMember, removal_error
from gpupool.store.backends import postgres
from gpupool.store.backends.address import PostgresAddress
from gpupool.store.schema.tables import RESTORED

# The server ends a session, and its lock, after this time without a query; the leader queries once a second.
SILENCE_S = 10
_BRIEF = f"SET idle_session_timeout = '{SILENCE_S}s'"
_PATIENT = "SET idle_session_timeout = 0"
_SET_UP = (
    "SET application_name = 'gpupool leader'",
    "SET tcp_keepalives_idle = 5",
    "SET tcp_keepalives_interval = 2",
    "SET tcp_keepalives_count = 3",
)
_LOCK = "SELECT pg_try_advisory_lock(1735423344, hashtext(coalesce(current_schema(), '')))"
_BEGIN = (
    "UPDATE leadership SET term = greatest(term + 1, extract(epoch FROM clock_timestamp())::bigint),"
    " leader = %s, address = %s, since = extract(epoch FROM clock_timestamp()) WHERE id = 1 RETURNING term"
)
HEADS = "SELECT name, url, certificate, gcs_host, gcs_port, added_at FROM heads ORDER BY name"
_MEMBERS = "SELECT node, secret_sha256, node IN (SELECT name FROM heads) FROM members"
_REMOVED = "SELECT secret_sha256, node, removed_at, removed_by FROM removed_members"
_REMOVED_BY_SECRET = _REMOVED + " WHERE secret_sha256 = %s"
_REMOVED_NEWEST = _REMOVED + " ORDER BY removed_at DESC LIMIT %s"
_LOCK_TERM = "SELECT term FROM leadership WHERE id = 1 FOR UPDATE"
_HEAD_SECRETS = "SELECT heads.name, secret_sha256 FROM heads LEFT JOIN members ON node = heads.name ORDER BY heads.name"
_RESTORED = "SELECT 1 FROM meta WHERE name = %s"
_FORGET_RESTORED = "DELETE FROM meta WHERE name = %s AND EXISTS (SELECT 1 FROM heads WHERE heads.name = %s)"
_PRESENT = "SELECT term, leader, address, since FROM leadership WHERE id = 1"


@dataclass(frozen=True, slots=True)
class Leader:
    """The control plane that began the present term, when (seconds since the epoch), and its address for clients."""

    term: int
    name: str
    address: str
    since: float


def not_a_head(identity: HeadIdentity | None, heads: Sequence[str]) -> GpupoolError:
    """Return the error of a control plane that is not one of the recorded heads."""
    who = f"{identity.node} is" if identity is not None else "This control plane is"
    return GpupoolError(
        ErrorCode.NOT_LEADING,
        f"{who} not one of the heads of this pool ({', '.join(heads)}), so it must not lead it.",
        "Join as a head: 'gpupool join-token create --head' on the leader prints the command. If no head is"
        " left: 'gpupool backup FILE', 'gpupool restore FILE' and 'gpupool up --cluster' here.",
    )


class LeaderSession:
    """A connection that may hold the right to lead; methods raise ``psycopg.Error``, or ``GpupoolError``.

    The server ends it after ``SILENCE_S`` without a query, unless it is ``silent``.
    """

    def __init__(self, address: PostgresAddress, *, silent: bool = False) -> None:
        self._raw: psycopg.Connection[Any] = postgres.connect(address, *_SET_UP, *(() if silent else (_BRIEF,)))

    def try_lock(self) -> bool:
        """Take the right to lead if it is free; do not wait."""
        row = self._raw.execute(_LOCK).fetchone()
        return bool(row and row[0])

    def present(self) -> Leader | None:
        """Return the control plane that began the present term; None if there was none."""
        row = next(iter(self._rows(_PRESENT)), None)
        return Leader(*row) if row and row[0] else None

    def heads(self) -> tuple[Head, ...]:
        """Return the heads of a cluster; empty if none are recorded."""
        return tuple(Head(*row) for row in self._rows(HEADS))

    def members(self) -> tuple[MemberKey, ...]:
        """Return all machines of a cluster; empty if none are recorded."""
        return tuple(MemberKey(*row) for row in self._rows(_MEMBERS))

    def removed(self) -> tuple[RemovedMember, ...]:
        """Return the machines that were removed from a cluster, newest first; empty if none are recorded."""
        return tuple(RemovedMember(*row) for row in self._rows(_REMOVED_NEWEST, MAX_REMOVED_MEMBERS))

    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Return the rows; none without the table: the database is new, or of an older release."""
        try:
            return self._raw.execute(query, values or None).fetchall()
        except psycopg.errors.UndefinedTable:
            return []

    def exclusion(self, identity: HeadIdentity | None) -> GpupoolError | None:
        """Return why a machine must not lead, or None if it may; ``identity`` is None for a machine that is not a head.

        If heads are recorded, only they may lead: the nodes know no other machine, so none would follow it. After a
        restore a head that is missing in the copy may lead until it has been added to the list.
        """
        try:
            return self._exclusion(identity)
        except psycopg.errors.UndefinedTable:
            return None  # a new database, or one of an older release

    def _exclusion(self, identity: HeadIdentity | None) -> GpupoolError | None:
        secret = identity.secret_sha256 if identity is not None else ""
        removed = self._raw.execute(_REMOVED_BY_SECRET, (secret,)).fetchone() if secret else None
        if removed is not None:
            return removal_error(RemovedMember(*removed))
        heads = dict(self._raw.execute(_HEAD_SECRETS).fetchall())
        listed = identity is not None and identity.node in heads and heads[identity.node] in {None, secret}
        if not heads or listed or (identity is not None and self._raw.execute(_RESTORED, (RESTORED,)).fetchone()):
            return None
        return not_a_head(identity, sorted(heads))

    def begin_term(self, name: str, address: str, identity: HeadIdentity | None) -> int:
        """Begin a term and return its number: the former leader can write nothing afterwards. The lock must be held.

        Terms are at least the seconds since 1970. So they also grow when the pool gets an older or a new database, and
        nodes, which refuse lower terms than they have seen, follow its leader.

        Raises NODE_REMOVED or NOT_LEADING for a machine that must not lead. Removals wait for the row that is locked
        here, and are seen if they came before.
        """
        with self._raw.transaction():
            self._raw.execute(_LOCK_TERM)
            if (refusal := self.exclusion(identity)) is not None:
                raise refusal
            row = self._raw.execute(_BEGIN, (name, address)).fetchone()
            if row is None:
                raise psycopg.DataError("the table leadership has no row")
            self._raw.execute(_FORGET_RESTORED, (RESTORED, identity.node if identity is not None else ""))
            return int(row[0])

    @contextmanager
    def kept_without_queries(self) -> Iterator[None]:
        """Keep the session, and its lock, while its owner is busy for longer than ``SILENCE_S``."""
        self._raw.execute(_PATIENT)
        yield
        self._raw.execute(_BRIEF)

    def ping(self) -> None:
        """Send a query, so that the session stays alive."""
        self._raw.execute("SELECT 1")

    def disconnect(self) -> None:
        """Shut the connection down, so that a waiting thread gets an error; callable from any thread."""
        postgres.disconnect(self._raw)

    def close(self) -> None:
        """Release the lock and close the connection."""
        self._raw.close()
