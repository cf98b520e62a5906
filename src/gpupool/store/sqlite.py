"""SQLite: how its file is made, its connections are set up and its transactions are run.

Write-ahead log: readers never wait for the writer. ``synchronous=FULL``: what ``commit`` has answered survives a
power loss, at the price of one fsync per transaction; the fencing epochs of the nodes rely on it, for an epoch must
never be granted twice. A crash at any moment loses at most the transaction under way and never leaves half of one.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import Connection, Engine
from sqlalchemy.pool import QueuePool

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.store.faults import is_driver_error, translate
from gpupool.store.threads import DatabaseThreads

T = TypeVar("T")

READERS = 2
BUSY_TIMEOUT_MS = 5_000
WAL_LIMIT_BYTES = 64 << 20  # the log file is cut back to this after a checkpoint
PRIVATE = 0o600

compact_json = partial(json.dumps, separators=(",", ":"), ensure_ascii=True)


def create_private(path: Path) -> None:
    """Make an empty file (and its folder) that only this user can read, or take the rights of others away."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE))
    if path.stat().st_mode & 0o077:
        path.chmod(PRIVATE)


def make_engine(path: Path, *, read_only: bool = False, pool_size: int = 1, foreign_keys: bool = True) -> Engine:
    """An engine over one file; transactions begin at once as writers, or stay on a snapshot when ``read_only``."""
    engine = sa.create_engine(
        sa.URL.create("sqlite", database=str(path)),
        poolclass=QueuePool,
        pool_size=pool_size,
        max_overflow=0,
        connect_args={"check_same_thread": False, "cached_statements": 256},
        json_serializer=compact_json,
    )
    begin = "BEGIN" if read_only else "BEGIN IMMEDIATE"
    sa.event.listen(engine, "connect", partial(_set_up, read_only=read_only, foreign_keys=foreign_keys))
    sa.event.listen(engine, "begin", partial(_begin, statement=begin))
    return engine


def _begin(conn: Connection, *, statement: str) -> None:
    raw = conn.connection.dbapi_connection
    if raw is not None:
        raw.cursor().execute(statement)  # past SQLAlchemy: a tenth of a millisecond per transaction


def _set_up(raw: sqlite3.Connection, _record: Any, *, read_only: bool, foreign_keys: bool) -> None:
    raw.isolation_level = None  # transactions begin where this module says, not where the driver guesses
    raw.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
    if read_only:
        raw.execute("PRAGMA query_only=ON")
        return
    raw.execute("PRAGMA journal_mode=WAL")
    raw.execute("PRAGMA synchronous=FULL")
    raw.execute(f"PRAGMA foreign_keys={'ON' if foreign_keys else 'OFF'}")
    raw.execute(f"PRAGMA journal_size_limit={WAL_LIMIT_BYTES}")


def copy_database(source: Path, target: Path) -> None:
    """A consistent copy of a database that others may be writing; appears whole under its name, or not at all."""
    part = target.with_name(f".{target.name}.part")
    part.unlink(missing_ok=True)
    create_private(part)
    try:
        _copy_pages(source, part)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _copy_pages(source: Path, target: Path) -> None:
    origin = sqlite3.connect(source, timeout=BUSY_TIMEOUT_MS / 1000)
    copy = sqlite3.connect(target)
    try:
        origin.backup(copy)
        copy.execute("PRAGMA journal_mode=DELETE")  # one file, readable anywhere
    finally:
        copy.close()
        origin.close()


def run(engine: Engine, path: Path, work: Callable[[Connection], T]) -> T:
    """One transaction on the calling thread; raises ``GpupoolError`` for whatever the database says."""
    try:
        with engine.begin() as conn:
            return work(conn)
    except Exception as error:
        if not is_driver_error(error):
            raise
        raise translate(error, path) from error


class SqliteDatabase:
    """One SQLite file: a writer and a few readers, each on a thread of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        readers = make_engine(path, read_only=True, pool_size=READERS)
        self._threads = DatabaseThreads(make_engine(path), readers, READERS)

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run in a transaction that excludes other writers, in the order of the calls.

        A caller that is cancelled hears of it only after the transaction has ended; it may have been committed.
        """
        return await self._threads.write(partial(run, self._threads.writer, self._path, work))

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run on one consistent snapshot, beside the writer."""
        return await self._threads.read(partial(run, self._threads.readers, self._path, work))

    async def backup(self, path: Path) -> None:
        """A consistent copy at ``path`` (mode 0600, replaces what is there) while others write."""
        await self._threads.read(partial(self._backup, path))

    def _backup(self, path: Path) -> None:
        try:
            copy_database(self._path, path)
        except (sqlite3.Error, OSError) as error:
            raise no_backup(path, error) from error

    async def close(self) -> None:
        """Finish what runs, fold the log into the file and let go; harmless when repeated."""
        await self._threads.close()


def no_backup(path: Path, error: Exception) -> GpupoolError:
    """The error of a backup copy that could not be written."""
    return GpupoolError(
        ErrorCode.DATABASE_UNWRITABLE,
        f"No backup copy could be made at {path} ({error}).",
        f"Check that {path.parent} exists, can be written and has room.",
    )
