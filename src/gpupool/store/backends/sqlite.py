"""SQLite: the file, its connections and its transactions.

Write-ahead log: readers never wait for the writer. ``synchronous=FULL``: a committed transaction survives a power loss,
at the cost of one fsync per transaction. The fencing epochs of the nodes rely on it, because an epoch must never be
granted twice. A crash loses at most the running transaction and never leaves half of one.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import Connection, Engine
from sqlalchemy.pool import QueuePool

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.store.backends.errors import is_driver_error, translate
from gpupool.store.backends.threads import DatabaseThreads

T = TypeVar("T")

READERS = 2
BUSY_TIMEOUT_MS = 5_000
WAL_LIMIT_BYTES = 64 << 20  # the log file is truncated to this after a checkpoint
PRIVATE = 0o600

compact_json = partial(json.dumps, separators=(",", ":"), ensure_ascii=True)


def create_private(path: Path) -> None:
    """Create an empty file (and its folder) that only this user can read; restrict an existing one."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE))
    if path.stat().st_mode & 0o077:
        path.chmod(PRIVATE)


def make_engine(path: Path, *, read_only: bool = False, pool_size: int = 1, foreign_keys: bool = True) -> Engine:
    """Return an engine for one file; transactions begin as writers at once, or are snapshots when ``read_only``."""
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
        raw.cursor().execute(statement)  # not through SQLAlchemy: saves a tenth of a millisecond per transaction


def _set_up(raw: sqlite3.Connection, _record: Any, *, read_only: bool, foreign_keys: bool) -> None:
    raw.isolation_level = None  # this module begins transactions explicitly, the driver must not
    raw.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
    if read_only:
        raw.execute("PRAGMA query_only=ON")
        return
    raw.execute("PRAGMA journal_mode=WAL")
    raw.execute("PRAGMA synchronous=FULL")
    raw.execute(f"PRAGMA foreign_keys={'ON' if foreign_keys else 'OFF'}")
    raw.execute(f"PRAGMA journal_size_limit={WAL_LIMIT_BYTES}")


def copy_database(source: Path, target: Path) -> None:
    """Write a consistent copy of a database in use; it appears complete under its name, or not at all.

    Raises ``GpupoolError(DATABASE_UNWRITABLE)``.
    """
    part = target.with_name(f".{target.name}.part")
    try:
        part.unlink(missing_ok=True)
        create_private(part)
        _copy_pages(source, part)
        sync_file(part)
        part.replace(target)
        sync_folder(target.parent)
    except (sqlite3.Error, OSError) as error:
        raise no_backup(target, error) from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def sync_file(path: Path) -> None:
    """Wait until the contents of a file are on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _copy_pages(source: Path, target: Path) -> None:
    origin = sqlite3.connect(source, timeout=BUSY_TIMEOUT_MS / 1000)
    copy = sqlite3.connect(target)
    try:
        origin.backup(copy)
        copy.execute("PRAGMA journal_mode=DELETE")  # one file, without a write-ahead log
    finally:
        copy.close()
        origin.close()


def run(engine: Engine, path: Path, work: Callable[[Connection], T]) -> T:
    """Run one transaction on the calling thread; translate all errors to ``GpupoolError``."""
    try:
        with engine.begin() as conn:
            return work(conn)
    except Exception as error:
        if not is_driver_error(error):
            raise
        raise translate(error, path) from error


class SqliteDatabase:
    """One SQLite file: a writer and a few readers, each on its own thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        readers = make_engine(path, read_only=True, pool_size=READERS)
        self._threads = DatabaseThreads(make_engine(path), readers, READERS)

    @property
    def path(self) -> Path:
        """Return the path of the file."""
        return self._path

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run in a transaction that excludes other writers, in the order of the calls.

        A cancelled caller continues only after the transaction has ended, which may have been committed.
        """
        return await self._threads.write(partial(run, self._threads.writer, self._path, work))

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run on one consistent snapshot, concurrently with the writer."""
        return await self._threads.read(partial(run, self._threads.readers, self._path, work))

    async def close(self) -> None:
        """Finish running transactions, merge the log into the file and close it; safe to repeat."""
        await self._threads.close()


def no_backup(path: Path, error: Exception) -> GpupoolError:
    """Return the error of a backup copy that could not be written."""
    return GpupoolError(
        ErrorCode.DATABASE_UNWRITABLE,
        f"The backup copy {path} could not be written ({error}).",
        f"Check that {path.parent} exists, is writable and has free space.",
    )
