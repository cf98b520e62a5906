"""The checks of the database: PostgreSQL responds, belongs to the pool and stores durably; backups are recent."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from gpupool.daemon.config import PoolConfig, read_config
from gpupool.daemon.doctor.check import DoctorContext, Finding, NamedCheck, fine, problem, warning
from gpupool.daemon.doctor.state import open_to_read
from gpupool.daemon.folders import DATABASE
from gpupool.domain.backup import BackupSchedule, is_late, newest_good
from gpupool.domain.decode import decode
from gpupool.domain.errors import GpupoolError
from gpupool.domain.units import format_duration

_SETTINGS = (
    "SELECT current_setting('server_version_num')::int, current_setting('server_encoding'), current_setting('fsync')"
)
_TABLES = (
    "SELECT count(*), count(*) FILTER (WHERE tablename = 'alembic_version')"
    " FROM pg_tables WHERE schemaname = current_schema()"
)
_REVISION = "SELECT version_num FROM alembic_version"
_META = "SELECT value FROM meta WHERE name = ?"


def server(context: DoctorContext) -> Iterator[Finding]:
    """Check the server; yield nothing for a pool with its own database file."""
    config = None if context.closed else stored_config(context)
    if config is None or config.database is None:
        return
    try:
        import psycopg
    except ImportError:
        yield problem("database", "PostgreSQL cannot be used: psycopg is missing.", "pip install 'gpupool[postgres]'")
        return
    try:
        yield from _query(config)
    except GpupoolError as error:
        yield problem("database", error.message, error.hint)
    except psycopg.Error as error:
        yield problem("database", f"The database refused the check: {error}.", "See docs/database.md.")


def stored_config(context: DoctorContext) -> PoolConfig | None:
    """Return the stored options of the pool; None if there are none or they cannot be read."""
    try:
        stored = read_config(str(context.state_dir))
        places = {"state_dir": str(context.state_dir), "run_dir": str(context.run_dir)}
        return decode(PoolConfig, {**stored, **places}) if stored else None
    except (GpupoolError, TypeError, ValueError):
        return None  # reported by the check of the options


def _query(config: PoolConfig) -> Iterator[Finding]:
    import psycopg

    from gpupool.store.backends import errors, postgres

    address = config.database_address()
    if address is None:
        return
    try:
        raw = postgres.connect(address)
    except psycopg.Error as error:
        raise errors.translate(error, address) from error
    with raw:
        yield fine("database", f"{address} answers.")
        yield _settings(*_row(raw, _SETTINGS))
        yield _schema(raw, str(address))


def _row(raw: Any, statement: str) -> tuple[Any, ...]:
    found: tuple[Any, ...] = raw.execute(statement).fetchone() or ()
    return found


def _settings(version: int, encoding: str, fsync: str) -> Finding:
    from gpupool.store.migrations.migrate_postgres import ENCODING, OLDEST_SERVER

    said = f"PostgreSQL {version // 10_000}, {encoding}"
    if version // 10_000 < OLDEST_SERVER or encoding != ENCODING:
        return problem("database-server", f"{said}.", f"Use {OLDEST_SERVER} or newer and a database of {ENCODING}.")
    if fsync == "off":
        return warning("database-server", f"{said}, with fsync off: a power loss loses the pool.", "Set fsync = on.")
    return fine("database-server", f"{said}, fsync on.")


def _schema(raw: Any, address: str) -> Finding:
    from gpupool.store.migrations.migrate import HEAD, REVISIONS

    tables, ours = _row(raw, _TABLES)
    if not ours:
        if not tables:
            return fine("schema", f"{address} is empty: 'gpupool up' creates its tables.")
        return problem("schema", f"{address} has other tables.", "Use a separate database for the pool.")
    revision = str((_row(raw, _REVISION) or ("",))[0])
    if revision == HEAD:
        return fine("schema", f"{address} has the current version ({revision}).")
    if revision in REVISIONS:
        return warning("schema", f"{address} has an older version ({revision}).", "'gpupool up' upgrades it.")
    return problem(
        "schema",
        f"{address} has version '{revision[:40]}', which is unknown to this gpupool.",
        "Install a newer gpupool.",
    )


def backups(context: DoctorContext) -> Iterator[Finding]:
    """Check the newest scheduled copy; yield nothing for a pool without a schedule or without its own database file."""
    path = context.state_dir / DATABASE
    if context.closed or not path.exists():
        return
    config = stored_config(context)
    if config is not None and config.database is not None:
        return
    try:
        schedule, pool_id = _read_schedule(path)
    except (sqlite3.Error, ValueError, TypeError, AttributeError, GpupoolError):
        return  # reported by the check of the database
    if schedule is None or schedule.every_s is None:
        return
    from gpupool.store.backups import list_files

    folder = schedule.folder_in(str(context.state_dir))
    now = time.time()
    try:
        newest = newest_good(list_files(Path(folder), pool_id), now)
    except GpupoolError as error:
        yield warning("backups", error.message, error.hint)
        return
    age = "There is no good copy" if newest is None else f"The newest good copy is {format_duration(now - newest)} old"
    sentence = f"{age} in {folder}; one is made every {format_duration(schedule.every_s)}."
    if is_late(schedule, newest, now):
        yield warning("backups", sentence, "Start the pool, and check 'gpupool status' and 'gpupool backup --list'.")
    else:
        yield fine("backups", sentence)


def _read_schedule(path: Path) -> tuple[BackupSchedule | None, str]:
    with closing(open_to_read(path)) as database:
        found = database.execute(_META, ("backups",)).fetchone()
        schedule = decode(BackupSchedule, json.loads(found[0])) if found else None
        (pool_id,) = database.execute(_META, ("pool_id",)).fetchone()
    return schedule, str(pool_id)


CHECKS: list[NamedCheck] = [("database", server), ("backups", backups)]
