"""Copying a pool's database while it runs, and putting a copy back while it does not."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpupool.daemon.config import PoolConfig
from gpupool.daemon.folders import DATABASE, START_LOCK, prepare_folders
from gpupool.daemon.processes import waiting_for_lock
from gpupool.daemon.record import read_record
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.store import copying, faults, sqlite
from gpupool.store.address import PostgresAddress

LOCK_TIMEOUT_S = 5.0


def back_up(config: PoolConfig, path: Path) -> copying.Copy:
    """A consistent copy of the pool's database in one private file, whether the pool runs or not.

    Raises ``GpupoolError``: DATABASE_*, INVALID_FILE (there is no database, or something else is at ``path``).
    """
    if path.exists():
        copying.look_into(path)  # what is no copy is not replaced
    elif not path.parent.is_dir():
        raise GpupoolError(ErrorCode.INVALID_FILE, f"There is no folder {path.parent}.", "Make it, or choose another.")
    address = config.database_address()
    if address is None:
        _back_up_file(Path(config.state_dir) / DATABASE, path)
    else:
        _back_up_server(address, path)
    return copying.look_into(path)


def _back_up_file(source: Path, path: Path) -> None:
    if not source.exists():
        raise GpupoolError(
            ErrorCode.INVALID_FILE, f"There is no database at {source}.", "Give the pool's folder with --state-dir."
        )
    try:
        sqlite.copy_database(source, path)
    except (sqlite3.Error, OSError) as error:
        raise sqlite.no_backup(path, error) from error


def _back_up_server(address: PostgresAddress, path: Path) -> None:
    from gpupool.store import postgres

    engine = postgres.make_engine(address, read_only=True)
    try:
        postgres.run(engine, address, lambda conn: copying.back_up(conn, path))
    finally:
        engine.dispose()


def restore(config: PoolConfig, copy: Path) -> Path | None:
    """Put a copy in the place of the pool's database; what was there is kept beside it (None: nothing was).

    Raises ``GpupoolError``: POOL_ALREADY_RUNNING, DATABASE_FOREIGN, DATABASE_NEWER, DATABASE_CORRUPT, INVALID_FILE.
    """
    copying.look_into(copy)
    prepare_folders(config)
    address = config.database_address()
    with _stopped(config), copying.unpacked(copy, Path(config.state_dir)) as fresh:
        kept = Path(config.state_dir) / f"{DATABASE}.before-restore-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
        if address is None:
            return _restore_file(Path(config.state_dir) / DATABASE, fresh, kept)
        return _restore_server(address, fresh, kept)


@contextmanager
def _stopped(config: PoolConfig) -> Iterator[None]:
    """Nobody starts the pool meanwhile."""
    with waiting_for_lock(Path(config.state_dir) / START_LOCK, LOCK_TIMEOUT_S) as ours:
        record = read_record(config.state_dir)
        if not ours or (record and record.alive):
            raise GpupoolError(
                ErrorCode.POOL_ALREADY_RUNNING,
                f"The pool of {config.state_dir} runs: its database cannot be replaced.",
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
        sqlite.run(engine, fresh, lambda conn: copying.raise_epochs(conn, known))
    finally:
        engine.dispose()
    for suffix in ("-wal", "-shm"):  # of the old database: never to be read into the new one
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    fresh.replace(path)
    return kept if there else None


def _keep(path: Path, kept: Path) -> int:
    """Copy what there is aside, damaged or not; the last epoch granted in it, 0 when that cannot be read."""
    try:
        sqlite.copy_database(path, kept)
        with sqlite3.connect(kept) as raw:
            return int(raw.execute("SELECT max(epoch) FROM leases").fetchone()[0] or 0)
    except (sqlite3.Error, OSError):
        with suppress(OSError):
            for suffix in ("", "-wal", "-shm"):
                part = path.with_name(path.name + suffix)
                if part.exists():
                    part.replace(kept.with_name(kept.name + suffix))
        return 0


def _restore_server(address: PostgresAddress, fresh: Path, kept: Path) -> Path | None:
    import psycopg

    from gpupool.store import migrate_postgres, postgres
    from gpupool.store.leadership import LeaderSession

    try:
        session = LeaderSession(address, silent=True)
    except psycopg.Error as error:
        raise faults.translate(error, address) from error
    engine = postgres.make_engine(address)
    try:
        if not session.try_lock():
            raise GpupoolError(
                ErrorCode.POOL_ALREADY_RUNNING,
                f"A control plane leads on {address}: its database cannot be replaced.",
                "Stop the pool on every machine that may lead it: gpupool down --stop-jobs",
            )
        migrate_postgres.prepare(address)
        _back_up_server(address, kept)
        postgres.run(engine, address, lambda conn: copying.restore_into(conn, fresh))
    finally:
        engine.dispose()
        session.close()
    if copying.look_into(kept).events:
        return kept
    kept.unlink()
    return None
