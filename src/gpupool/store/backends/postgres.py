"""PostgreSQL: connections, their settings, and transactions.

Every writing transaction first locks the one row of ``leadership``. That excludes other writers, as SQLite does by
itself, so the guards of ``writes`` are safe. It also compares the term, so a control plane that has been replaced can
write nothing. Readers stay on one snapshot and never wait.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import psycopg
import sqlalchemy as sa
from psycopg.types.json import set_json_dumps
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import QueuePool

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.store.backends import errors
from gpupool.store.backends.address import PostgresAddress
from gpupool.store.backends.sqlite import compact_json
from gpupool.store.backends.threads import DatabaseThreads
from gpupool.store.schema.tables import leadership

T = TypeVar("T")

READERS = 2
TRIES = 3  # of a transaction that the database rolled back because of others
# A session that waits for a row, or leaves a transaction open, delays the next leader: limit both times.
_WRITER = "SET lock_timeout = '5s'; SET idle_in_transaction_session_timeout = '5s'; SET application_name = 'gpupool'"
_READER = "SET default_transaction_read_only = on; SET application_name = 'gpupool reader'"
_DURABLE = "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
_locked_term = sa.select(leadership.c.term).where(leadership.c.id == 1).with_for_update()


def connect(address: PostgresAddress, *set_up: str) -> psycopg.Connection[Any]:
    """Open a new connection with autocommit; raise ``psycopg.Error`` or ``GpupoolError``.

    A server that disappears silently is noticed after about ten seconds.
    """
    raw: psycopg.Connection[Any] = psycopg.connect(address.conninfo(), autocommit=True, **_PATIENCE)
    for statement in set_up:
        raw.execute(statement)
    return raw


_WORDS = re.compile(r'"(?:[^"\\]|\\.)*"|-?Infinity|NaN')
_FINITE = {"Infinity": "1e999", "-Infinity": "-1e999", "NaN": "null"}
_PATIENCE: dict[str, Any] = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}


def make_engine(address: PostgresAddress, *, read_only: bool = False, pool_size: int = 1) -> Engine:
    """Return an engine for one database; readers' transactions stay on one snapshot."""

    def creator() -> psycopg.Connection[Any]:
        raw = connect(address, _READER if read_only else _WRITER, _DURABLE)
        raw.autocommit = False
        set_json_dumps(strict_json, raw)
        return raw

    return sa.create_engine(
        "postgresql+psycopg://",
        creator=creator,
        poolclass=QueuePool,
        pool_size=pool_size,
        max_overflow=0,
        isolation_level="REPEATABLE READ" if read_only else "READ COMMITTED",
    )


def strict_json(value: Any) -> str:
    """Return standard JSON; infinity becomes a number too large for a float, which is read as infinity again."""
    try:
        return compact_json(value, allow_nan=False)
    except ValueError:
        return _WORDS.sub(lambda word: _FINITE.get(word[0], word[0]), compact_json(value))


class PostgresDatabase:
    """One PostgreSQL database: a writer and a few readers, each on its own thread.

    ``term`` is that of the control plane that uses it, None where no other one can lead. ``in_doubt`` is called, on any
    thread, when it is unknown whether a transaction was committed: caches of the database must then be read again.
    None: there are none.
    """

    def __init__(
        self, address: PostgresAddress, term: int | None = None, in_doubt: Callable[[], None] | None = None
    ) -> None:
        self._address = address
        writer, readers = make_engine(address), make_engine(address, read_only=True, pool_size=READERS)
        self._threads = DatabaseThreads(writer, readers, READERS)
        self._sockets = _Sockets(writer, readers)
        self._refusal: GpupoolError | None = None
        self._term = term
        self.in_doubt = in_doubt

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run in a transaction that excludes other writers, in the order of the calls.

        A cancelled caller continues only after the transaction has ended, which may have been committed. Raises
        NOT_LEADING if another control plane leads now.
        """
        return await self._threads.write(partial(self._write, work))

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run on one consistent snapshot, concurrently with the writer."""
        return await self._threads.read(partial(self._read, work))

    def suspend(self, refusal: GpupoolError | None) -> None:
        """Refuse every transaction with an error and abort running ones; None: accept them again."""
        self._refusal = refusal
        if refusal is not None:
            self._sockets.disconnect()

    def _write(self, work: Callable[[Connection], T]) -> T:
        def fenced(conn: Connection) -> T:
            term = conn.execute(_locked_term).scalar()
            if self._term is not None and term != self._term:
                raise not_leading()
            return work(conn)

        return self._run(self._threads.writer, fenced)

    def _read(self, work: Callable[[Connection], T]) -> T:
        return self._run(self._threads.readers, work)

    def _run(self, engine: Engine, work: Callable[[Connection], T]) -> T:
        for attempt in range(TRIES):
            if self._refusal is not None:
                raise self._refusal
            try:
                return _attempt(engine, self._address, work)
            except _InDoubtError as error:
                if engine is self._threads.writer and self.in_doubt is not None:
                    self.in_doubt()
                raise error.translated from error.cause
            except _RolledBackError as error:
                if attempt == TRIES - 1:
                    raise error.translated from error.cause
        raise AssertionError  # unreachable: the last try returns or raises

    async def close(self) -> None:
        """Finish running transactions and close the connections; safe to repeat."""
        await self._threads.close()


class _RolledBackError(Exception):
    """A transaction that certainly was not committed, and may be retried."""

    def __init__(self, cause: Exception, translated: GpupoolError) -> None:
        super().__init__()
        self.cause, self.translated = cause, translated


class _InDoubtError(_RolledBackError):
    """The connection was lost while a transaction was being committed."""


def run(engine: Engine, address: PostgresAddress, work: Callable[[Connection], T]) -> T:
    """Run one transaction on the calling thread; translate all errors to ``GpupoolError``."""
    try:
        return _attempt(engine, address, work)
    except _RolledBackError as error:
        raise error.translated from error.cause


def _attempt(engine: Engine, address: PostgresAddress, work: Callable[[Connection], T]) -> T:
    committing = False
    try:
        with engine.connect() as conn, conn.begin() as transaction:
            result = work(conn)
            committing = True
            transaction.commit()
            return result
    except GpupoolError:
        raise
    except Exception as error:
        if not errors.is_driver_error(error) and not isinstance(error, psycopg.Error):
            raise
        translated, lost = errors.translate(error, address), _lost(error)
        if lost and committing:
            raise _InDoubtError(error, translated) from error
        if lost or errors.is_retryable(error):
            raise _RolledBackError(error, translated) from error
        raise translated from error


def _lost(error: Exception) -> bool:
    """Return whether an existing connection was lost (not: could not be opened)."""
    return isinstance(error, DBAPIError) and error.connection_invalidated


def not_leading() -> GpupoolError:
    """Return the error of a write by a control plane that has been replaced."""
    return GpupoolError(
        ErrorCode.NOT_LEADING,
        "Another control plane leads this pool now.",
        "Send the request to the leader; this one is a standby.",
    )


class _Sockets:
    """The sockets of pooled connections, so that a thread that waits for a silent server can be released."""

    def __init__(self, *engines: Engine) -> None:
        self._lock = threading.Lock()
        self._open: dict[int, psycopg.Connection[Any]] = {}
        for engine in engines:
            sa.event.listen(engine, "connect", self._add)
            sa.event.listen(engine, "close", self._drop)
            sa.event.listen(engine, "close_detached", self._drop)

    def _add(self, raw: Any, _record: object) -> None:
        with self._lock:
            self._open[id(raw)] = raw

    def _drop(self, raw: Any, _record: object = None) -> None:
        with self._lock:
            self._open.pop(id(raw), None)

    def disconnect(self) -> None:
        """Shut down every connection; waiting threads get an error at once."""
        with self._lock:
            for raw in self._open.values():
                disconnect(raw)


def disconnect(raw: psycopg.Connection[Any]) -> None:
    """Shut down a connection's socket, from any thread."""
    with contextlib.suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(raw.fileno())) as sock:
        sock.shutdown(socket.SHUT_RDWR)
