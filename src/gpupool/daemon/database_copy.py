"""Backup of a pool's database while it runs, and restore of a copy while it is stopped."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpupool.daemon.config import PoolConfig, save_config
from gpupool.daemon.folders import DATABASE, START_LOCK, prepare_folders
from gpupool.daemon.process.identity import waiting_for_lock
from gpupool.daemon.process.record import read_record
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.store import database_copy
from gpupool.store.backends import errors, sqlite
from gpupool.store.backends.address import PostgresAddress

LOCK_TIMEOUT_S = 5.0


def back_up(config: PoolConfig, path: Path) -> database_copy.Copy:
    """Write a consistent copy of the pool's database to one private file, whether the pool runs or not.

    Raises ``GpupoolError``: DATABASE_*, INVALID_FILE (there is no database, or ``path`` is not a copy).
    """
    if path.exists():
        database_copy.inspect_copy(path)  # only a copy may be replaced
    elif not path.parent.is_dir():
        raise GpupoolError(ErrorCode.INVALID_FILE, f"There is no folder {path.parent}.", "Create it, or use another.")
    address = config.database_address()
    if address is None:
        _back_up_file(Path(config.state_dir) / DATABASE, path)
    else:
        _back_up_server(address, path)
    return database_copy.inspect_copy(path)


def _back_up_file(source: Path, path: Path) -> None:
    if not source.exists():
        raise GpupoolError(
            ErrorCode.INVALID_FILE, f"There is no database at {source}.", "Give the pool's folder with --state-dir."
        )
    sqlite.copy_database(source, path)


def _back_up_server(address: PostgresAddress, path: Path) -> None:
    from gpupool.store.backends import postgres

    engine = postgres.make_engine(address, read_only=True)
    try:
        postgres.run(engine, address, lambda conn: database_copy.write_copy(conn, path))
    finally:
        engine.dispose()


def restore(config: PoolConfig, copy: Path) -> Path | None:
    """Replace the pool's database by a copy and store the pool's options, which name the database.

    Returns where the old database is stored; None: there was none.

    Raises ``GpupoolError``: POOL_ALREADY_RUNNING, DATABASE_FOREIGN, DATABASE_NEWER, DATABASE_CORRUPT, INVALID_FILE.
    """
    database_copy.inspect_copy(copy)
    prepare_folders(config)
    address = config.database_address()
    with _stopped(config), database_copy.unpacked(copy, Path(config.state_dir)) as fresh:
        kept = Path(config.state_dir) / f"{DATABASE}.before-restore-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
        if address is None:
            previous = _restore_file(Path(config.state_dir) / DATABASE, fresh, kept)
        else:
            previous = _restore_server(address, fresh, kept)
        save_config(config)
        return previous


@contextmanager
def _stopped(config: PoolConfig) -> Iterator[None]:
    """Prevent a start of the pool for the duration of the block."""
    with waiting_for_lock(Path(config.state_dir) / START_LOCK, LOCK_TIMEOUT_S) as ours:
        record = read_record(config.state_dir)
        if not ours or (record and record.alive):
            raise GpupoolError(
                ErrorCode.POOL_ALREADY_RUNNING,
                f"The pool of {config.state_dir} is running: its database cannot be replaced.",
                "Stop it first: gpupool down --stop-jobs",
            )
        yield


def _restore_file(path: Path, fresh: Path, kept: Path) -> Path | None:
    there = path.exists()
    known = 0
    if there:
        known = _keep(path, kept)
    engine = sqlite.make_engine(fresh)
    try:
        sqlite.run(engine, fresh, lambda conn: database_copy.raise_epochs(conn, known))
    finally:
        engine.dispose()
    for suffix in ("-wal", "-shm"):  # of the old database: they must not be applied to the new one
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    sqlite.sync_file(fresh)
    fresh.replace(path)
    sqlite.sync_folder(path.parent)
    return kept if there else None


def _keep(path: Path, kept: Path) -> int:
    """Copy the old database, damaged or not; return its last granted epoch, 0 if it cannot be read."""
    try:
        sqlite.copy_database(path, kept)
        with sqlite3.connect(kept) as raw:
            return int(raw.execute("SELECT max(epoch) FROM leases").fetchone()[0] or 0)
    except (GpupoolError, sqlite3.Error):
        with suppress(OSError):
            for suffix in ("", "-wal", "-shm"):
                part = path.with_name(path.name + suffix)
                if part.exists():
                    part.replace(kept.with_name(kept.name + suffix))
        return 0


def _restore_server(address: PostgresAddress, fresh: Path, kept: Path) -> Path | None:
    import psycopg

    from gpupool.store.backends import postgres
    from gpupool.store.backends.leadership import LeaderSession
    from gpupool.store.migrations import migrate_postgres

    try:
        session = LeaderSession(address, silent=True)
    except psycopg.Error as error:
        raise errors.translate(error, address) from error
    engine = postgres.make_engine(address)
    try:
        if not session.try_lock():
            raise GpupoolError(
                ErrorCode.POOL_ALREADY_RUNNING,
                f"A control plane uses {address}: the database cannot be replaced.",
                "Stop the pool on every machine that may lead it: gpupool down --stop-jobs",
            )
        migrate_postgres.prepare(address)
        _back_up_server(address, kept)
        postgres.run(engine, address, lambda conn: database_copy.restore_into(conn, fresh))
    finally:
        engine.dispose()
        session.close()
    if database_copy.inspect_copy(kept).events:
        return kept
    kept.unlink()
    return None
