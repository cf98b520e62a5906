"""PostgreSQL: how it is reached, its connections are set up and its transactions are run.

Every transaction that writes first locks the one row of ``leadership``. That excludes other writers, as SQLite does by
itself, so the guards of ``writes`` hold whoever else writes; and it compares the term: a control plane that has been
replaced can write nothing any more. Readers stay on one snapshot and wait for nobody.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import sqlalchemy as sa
from psycopg.types.json import set_json_dumps
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import QueuePool

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.store import faults
from gpupool.store.address import PostgresAddress
from gpupool.store.sqlite import compact_json
from gpupool.store.tables import leadership
from gpupool.store.threads import DatabaseThreads

T = TypeVar("T")

READERS = 2
TRIES = 3  # of a transaction that the database took back through no fault of its own
# Who waits for a row, or forgets a transaction, holds up the next leader: neither for longer than this.
_WRITER = "SET lock_timeout = '5s'; SET idle_in_transaction_session_timeout = '5s'; SET application_name = 'gpupool'"
_READER = "SET default_transaction_read_only = on; SET application_name = 'gpupool reader'"
_DURABLE = "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
_locked_term = sa.select(leadership.c.term).where(leadership.c.id == 1).with_for_update()


def connect(address: PostgresAddress, *set_up: str) -> psycopg.Connection[Any]:
    """A connection of its own, with autocommit; raises ``psycopg.Error`` or ``GpupoolError``.

    A server that has gone without a word is noticed after about ten seconds.
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
    """An engine over one database; transactions of readers stay on one snapshot."""

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
    """JSON as the standard has it: infinity becomes a number too large for a float, which is read as infinity again."""
    try:
        return compact_json(value, allow_nan=False)
    except ValueError:
        return _WORDS.sub(lambda word: _FINITE.get(word[0], word[0]), compact_json(value))


class PostgresDatabase:
    """One PostgreSQL database: a writer and a few readers, each on a thread of its own.

    ``term`` is that of the control plane that uses it, None where no other can lead. ``in_doubt`` is called, on some
    thread, when nobody can say whether a transaction was committed: whoever keeps a picture of the database must read
    it anew.
    """

    def __init__(self, address: PostgresAddress, term: int | None = None) -> None:
        self._address = address
        writer, readers = make_engine(address), make_engine(address, read_only=True, pool_size=READERS)
        self._threads = DatabaseThreads(writer, readers, READERS)
        self._sockets = _Sockets(writer, readers)
        self._refusal: GpupoolError | None = None
        self._term = term
        self.in_doubt: Callable[[], None] = lambda: None

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run in a transaction that excludes other writers, in the order of the calls.

        A caller that is cancelled hears of it only after the transaction has ended; it may have been committed.
        Raises NOT_LEADING when another control plane leads by now.
        """
        return await self._threads.write(partial(self._write, work))

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run on one consistent snapshot, beside the writer."""
        return await self._threads.read(partial(self._read, work))

    def suspend(self, refusal: GpupoolError | None) -> None:
        """Refuse every transaction with an error and hang up on those that run; None: go on."""
        self._refusal = refusal
        if refusal is not None:
            self._sockets.hang_up()

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
                if engine is self._threads.writer:
                    self.in_doubt()
                raise error.translated from error.cause
            except _TakenBackError as error:
                if attempt == TRIES - 1:
                    raise error.translated from error.cause
        raise AssertionError  # unreachable: the last try returns or raises

    async def backup(self, path: Path) -> None:
        """A consistent copy at ``path``, a SQLite file (mode 0600, replaces what is there), while others write."""
        from gpupool.store.copying import back_up

        await self._threads.read(partial(self._read, lambda conn: back_up(conn, path)))

    async def close(self) -> None:
        """Finish what runs and let go; harmless when repeated."""
        await self._threads.close()


class _TakenBackError(Exception):
    """A transaction that certainly was not committed, and may be tried again."""

    def __init__(self, cause: Exception, translated: GpupoolError) -> None:
        super().__init__()
        self.cause, self.translated = cause, translated


class _InDoubtError(_TakenBackError):
    """The connection was lost while a transaction was being committed."""


def run(engine: Engine, address: PostgresAddress, work: Callable[[Connection], T]) -> T:
    """One transaction on the calling thread; raises ``GpupoolError`` for whatever the database says."""
    try:
        return _attempt(engine, address, work)
    except _TakenBackError as error:
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
        if not faults.is_driver_error(error) and not isinstance(error, psycopg.Error):
            raise
        translated, lost = faults.translate(error, address), _lost(error)
        if lost and committing:
            raise _InDoubtError(error, translated) from error
        if lost or faults.may_try_again(error):
            raise _TakenBackError(error, translated) from error
        raise translated from error


def _lost(error: Exception) -> bool:
    """Whether a connection that was there is gone (and not: could not be made)."""
    return isinstance(error, DBAPIError) and error.connection_invalidated


def not_leading() -> GpupoolError:
    """The error of a write by a control plane that has been replaced."""
    return GpupoolError(
        ErrorCode.NOT_LEADING,
        "Another control plane leads this pool by now.",
        "Ask that one; this one waits until it is needed.",
    )


class _Sockets:
    """The sockets of pooled connections, so that a thread that waits for a silent server can be freed."""

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

    def hang_up(self) -> None:
        """Shut down every connection; who waits for an answer gets an error at once."""
        with self._lock:
            for raw in self._open.values():
                hang_up(raw)


def hang_up(raw: psycopg.Connection[Any]) -> None:
    """Shut a connection's socket down, whatever thread uses it."""
    with contextlib.suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(raw.fileno())) as sock:
        sock.shutdown(socket.SHUT_RDWR)
