"""Bringing a database to the present schema: made at once when new, migrated after a backup copy when older.

Alembic takes most of a second to import, so it is only called when a database is really of an older revision; a new
one gets the tables of ``tables`` directly, which tests hold equal to what the migrations make.
"""

from __future__ import annotations

import sqlite3
import time
import uuid
from pathlib import Path

from sqlalchemy import Connection, Engine, inspect, text

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.store import faults, sqlite
from gpupool.store.tables import leadership, meta
from gpupool.store.usage_tables import metadata

REVISIONS = ("0001", "0002", "0003", "0004", "0005", "0006", "0007")  # oldest first; the files in migrations/versions
HEAD = REVISIONS[-1]
MIGRATIONS = Path(__file__).parent / "migrations"
KEPT_BACKUPS = 5


def prepare(path: Path) -> None:
    """Make sure that there is a database of the present schema at a path.

    Raises ``GpupoolError``: DATABASE_CORRUPT, DATABASE_NEWER, DATABASE_UNWRITABLE.
    """
    try:
        sqlite.create_private(path)
    except OSError as error:
        raise GpupoolError(
            ErrorCode.DATABASE_UNWRITABLE,
            f"The database {path} cannot be opened ({error.strerror}).",
            f"Check that {path.parent} belongs to you and has room.",
        ) from error
    engine = sqlite.make_engine(path, foreign_keys=False)  # a migration may rebuild a table that others point to
    try:
        revision = sqlite.run(engine, path, create_if_empty)
        if revision != HEAD:
            _upgrade(engine, path, revision)
    finally:
        engine.dispose()


def create_if_empty(conn: Connection) -> str | None:
    """The schema's revision, after making one where there is none; None: not a database of gpupool's."""
    names = set(inspect(conn).get_table_names())
    if not names:
        _create(conn)
        return HEAD
    if "alembic_version" not in names or "meta" not in names:
        return None
    return conn.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()


def make_tables(conn: Connection) -> None:
    """Make the tables of the present schema, with nothing in them."""
    metadata.create_all(conn, checkfirst=False)
    conn.exec_driver_sql(
        "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL,"
        " CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))"
    )
    conn.execute(text("INSERT INTO alembic_version VALUES (:head)"), {"head": HEAD})


def _create(conn: Connection) -> None:
    make_tables(conn)
    seed = {"pool_id": uuid.uuid4().hex, "created_at": repr(time.time())}
    conn.execute(meta.insert(), [{"name": name, "value": value} for name, value in seed.items()])
    conn.execute(leadership.insert(), {"id": 1, "term": 0, "leader": "", "address": "", "since": 0.0})


def _upgrade(engine: Engine, path: Path, revision: str | None) -> None:
    if revision is None:
        raise faults.corrupt(path, "it has tables but no schema revision")
    if revision not in REVISIONS:
        raise newer(path, revision)
    sqlite.run(engine, path, lambda conn: _check_pages(conn, path))
    back_up(path, revision)
    sqlite.run(engine, path, lambda conn: migrate_to(conn, HEAD))
    sqlite.run(engine, path, lambda conn: _check_pages(conn, path))


def newer(database: object, revision: str) -> GpupoolError:
    """The error of a schema that this version does not know."""
    return GpupoolError(
        ErrorCode.DATABASE_NEWER,
        f"The database {database} has schema {revision}, made by a newer gpupool; this one knows up to {HEAD}.",
        "Install that newer gpupool again, or put a backup copy of before in its place.",
    )


def back_up(path: Path, revision: str) -> Path:
    """Copy the database beside itself before an upgrade; the newest ``KEPT_BACKUPS`` copies stay."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    target = path.with_name(f"{path.name}.backup-{revision}-{stamp}")
    try:
        sqlite.copy_database(path, target)
    except (sqlite3.Error, OSError) as error:
        raise sqlite.no_backup(target, error) from error
    for old in faults.backups(path)[:-KEPT_BACKUPS]:
        old.unlink(missing_ok=True)
    return target


def migrate_to(conn: Connection, revision: str) -> None:
    """Run the migrations up to a revision inside the caller's transaction."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = conn
    command.upgrade(config, revision)


def _check_pages(conn: Connection, path: Path) -> None:
    found = conn.exec_driver_sql("PRAGMA quick_check(1)").scalar()
    if found != "ok":
        raise faults.corrupt(path, str(found))
    if conn.exec_driver_sql("PRAGMA foreign_key_check").first() is not None:
        raise faults.corrupt(path, "a row points to one that does not exist")
