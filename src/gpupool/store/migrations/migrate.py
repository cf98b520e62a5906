"""Creation and migration of the database schema; an older SQLite database is first copied.

Alembic takes most of a second to import, so it is used only for a database of an older revision. A new one gets the
tables of ``tables`` directly; a test compares them with the result of the migrations.
"""

from __future__ import annotations

import time
import uuid
from pathlib import Path

from sqlalchemy import Connection, Engine, inspect, text

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.store.backends import errors, sqlite
from gpupool.store.schema.tables import leadership, meta
from gpupool.store.schema.usage_tables import metadata

# Oldest first; the files in ``versions``.
REVISIONS = (
    "0001",
    "0002",
    "0003",
    "0004",
    "0005",
    "0006",
    "0007",
    "0008",
    "0009",
    "0010",
    "0011",
    "0012",
    "0013",
    "0014",
    "0015",
    "0016",
    "0017",
    "0018",
    "0019",
    "0020",
    "0021",
)
HEAD = REVISIONS[-1]
MIGRATIONS = Path(__file__).parent
MAX_BACKUPS = 5


def prepare(path: Path, pool_id: str | None = None) -> None:
    """Make sure that a database of the present schema exists; a new one gets ``pool_id`` (None: a new id).

    Raises ``GpupoolError``: DATABASE_CORRUPT, DATABASE_NEWER, DATABASE_UNWRITABLE.
    """
    try:
        sqlite.create_private(path)
    except OSError as error:
        raise GpupoolError(
            ErrorCode.DATABASE_UNWRITABLE,
            f"The database {path} cannot be opened ({error.strerror}).",
            f"Check that {path.parent} belongs to you and has free space.",
        ) from error
    engine = sqlite.make_engine(path, foreign_keys=False)  # a migration may rebuild a table that others reference
    try:
        revision = sqlite.run(engine, path, lambda conn: create_if_empty(conn, pool_id))
        if revision != HEAD:
            _upgrade(engine, path, revision)
    finally:
        engine.dispose()


def create_if_empty(conn: Connection, pool_id: str | None = None) -> str | None:
    """Create the schema in an empty database; return the revision, or None for a database of another program."""
    names = set(inspect(conn).get_table_names())
    if not names:
        _create(conn, pool_id)
        return HEAD
    if "alembic_version" not in names or "meta" not in names:
        return None
    return conn.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()


def create_tables(conn: Connection) -> None:
    """Create the empty tables of the present schema."""
    metadata.create_all(conn, checkfirst=False)
    conn.exec_driver_sql(
        "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL,"
        " CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))"
    )
    conn.execute(text("INSERT INTO alembic_version VALUES (:head)"), {"head": HEAD})


def _create(conn: Connection, pool_id: str | None) -> None:
    create_tables(conn)
    seed = {"pool_id": pool_id or uuid.uuid4().hex, "created_at": repr(time.time())}
    conn.execute(meta.insert(), [{"name": name, "value": value} for name, value in seed.items()])
    conn.execute(leadership.insert(), {"id": 1, "term": 0, "leader": "", "address": "", "since": 0.0})


def _upgrade(engine: Engine, path: Path, revision: str | None) -> None:
    if revision is None:
        raise errors.corrupt(path, "it has tables but no schema revision")
    if revision not in REVISIONS:
        raise newer(path, revision)
    sqlite.run(engine, path, lambda conn: _check_pages(conn, path))
    back_up(path, revision)
    sqlite.run(engine, path, lambda conn: migrate_to(conn, HEAD))
    sqlite.run(engine, path, lambda conn: _check_pages(conn, path))


def newer(database: object, revision: str) -> GpupoolError:
    """Return the error of a schema that is newer than this version."""
    return GpupoolError(
        ErrorCode.DATABASE_NEWER,
        f"The database {database} has schema {revision}, made by a newer gpupool; this one knows up to {HEAD}.",
        "Install that newer gpupool again, or restore a backup copy from before the upgrade.",
    )


def back_up(path: Path, revision: str) -> Path:
    """Copy the database to the same folder before an upgrade; keep the newest ``MAX_BACKUPS`` copies."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    target = path.with_name(f"{path.name}.backup-{revision}-{stamp}")
    sqlite.copy_database(path, target)
    for old in errors.backups(path)[:-MAX_BACKUPS]:
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
        raise errors.corrupt(path, str(found))
    if conn.exec_driver_sql("PRAGMA foreign_key_check").first() is not None:
        raise errors.corrupt(path, "a row references a missing row")
