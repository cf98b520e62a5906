"""Copies of a database: always one SQLite file, so that any copy can be restored into either database."""

from __future__ import annotations

import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Table, delete, func, insert, select, text
from sqlalchemy.exc import DBAPIError

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.ids import Epoch
from gpupool.store.backends import errors, sqlite
from gpupool.store.migrations import migrate
from gpupool.store.pool.meta import save_meta
from gpupool.store.schema import tables as t
from gpupool.store.schema.usage_tables import metadata
from gpupool.store.work.queries import last_epoch

ROWS_PER_BATCH = 1_000


@dataclass(frozen=True, slots=True)
class Copy:
    """The content of a copy: its pool, its schema, and its number of rows."""

    pool_id: str
    revision: str
    workloads: int
    events: int


def inspect_copy(path: Path, *, verify: bool = True) -> Copy:
    """Return the description of a copy without changing it. ``verify``: read all of it and check its structure.

    Raises ``GpupoolError``: DATABASE_FOREIGN (not a database of gpupool), DATABASE_NEWER, DATABASE_CORRUPT,
    INVALID_FILE.
    """
    try:
        with path.open("rb") as file:
            if file.read(16) != b"SQLite format 3\0":
                raise errors.foreign(path, "it is not a SQLite file")
        raw = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    except OSError as error:
        raise GpupoolError(
            ErrorCode.INVALID_FILE, f"{path} cannot be read ({error.strerror}).", "Check its name and its permissions."
        ) from error
    try:
        return _inspect(raw, path, verify=verify)
    except (sqlite3.DatabaseError, TypeError) as error:  # TypeError: a row that every copy has is missing
        raise _damaged(path, str(error)) from error
    finally:
        raw.close()


def _inspect(raw: sqlite3.Connection, path: Path, *, verify: bool) -> Copy:
    names = {row[0] for row in raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not {"alembic_version", "meta", "workloads", "leases"} <= names:
        raise errors.foreign(path, "it has other tables")
    revision = str(raw.execute("SELECT version_num FROM alembic_version").fetchone()[0])
    if revision not in migrate.REVISIONS:
        raise migrate.newer(path, revision)
    found = raw.execute("PRAGMA quick_check(1)").fetchone()[0] if verify else "ok"
    if found != "ok":
        raise _damaged(path, str(found))
    (pool_id,) = raw.execute("SELECT value FROM meta WHERE name = 'pool_id'").fetchone()
    counts = [raw.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in ("workloads", "events")]  # noqa: S608 - names from here
    return Copy(str(pool_id), revision, *counts)


def _damaged(path: Path, why: str) -> GpupoolError:
    return GpupoolError(ErrorCode.DATABASE_CORRUPT, f"The copy {path} is damaged ({why}).", "Use another copy.")


def write_copy(conn: Connection, path: Path) -> None:
    """Copy a database while others write; the file appears complete under its name (mode 0600), or not at all.

    Raises ``GpupoolError(DATABASE_UNWRITABLE)``.
    """
    if conn.dialect.name == "sqlite":
        sqlite.copy_database(Path(conn.engine.url.database or ""), path)
    else:
        _copy_tables(conn, path)


def _copy_tables(conn: Connection, path: Path) -> None:
    part = path.with_name(f".{path.name}.part")
    try:
        part.unlink(missing_ok=True)
        sqlite.create_private(part)
        with _engine(part) as engine, engine.begin() as target:
            migrate.create_tables(target)
            copy_rows(conn, target)
        _finish(part)
        part.replace(path)
        sqlite.sync_folder(path.parent)
    except DBAPIError as error:
        if isinstance(error.orig, sqlite3.Error):  # of the copy, not of the database
            raise sqlite.no_backup(path, error.orig) from error
        raise
    except (sqlite3.Error, OSError) as error:
        raise sqlite.no_backup(path, error) from error
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _engine(path: Path) -> Iterator[Engine]:
    engine = sqlite.make_engine(path, foreign_keys=False)
    try:
        yield engine
    finally:
        engine.dispose()


def _finish(path: Path) -> None:
    """Make it one file on the disk, without a write-ahead log."""
    raw = sqlite3.connect(path)
    raw.execute("PRAGMA journal_mode=DELETE")
    raw.close()
    sqlite.sync_file(path)


def copy_rows(source: Connection, target: Connection) -> None:
    """Copy every row of every table into empty tables."""
    for table in metadata.sorted_tables:
        rows = source.execution_options(yield_per=ROWS_PER_BATCH).execute(select(table)).mappings()
        for chunk in rows.partitions(ROWS_PER_BATCH):
            target.execute(insert(table), [_row(table, row) for row in chunk])


def _row(table: Table, row: Any) -> dict[str, Any]:
    return {column.name: row[column] for column in table.columns}


@contextmanager
def unpacked(copy: Path, folder: Path) -> Iterator[Path]:
    """Yield a migrated copy of a copy, in a temporary folder inside ``folder``."""
    inspect_copy(copy)
    with tempfile.TemporaryDirectory(prefix=".restore-", dir=folder) as name:
        path = Path(name) / "pool.db"
        sqlite.copy_database(copy, path)
        migrate.prepare(path)
        yield path


def restore_into(conn: Connection, copy: Path) -> None:
    """Replace the content of a database of the present schema by a copy of that schema, in the caller's transaction.

    New epochs are above every epoch that a node can have seen, and new terms above the last leader's.
    """
    epoch, term = last_epoch(conn), conn.execute(select(t.leadership.c.term)).scalar() or 0
    last_event = conn.execute(select(func.max(t.events.c.id))).scalar() or 0
    for table in reversed(metadata.sorted_tables):
        conn.execute(delete(table))
    with _engine(copy) as engine, engine.connect() as source:
        copy_rows(source, conn)
    conn.execute(t.leadership.update().values(term=t.leadership.c.term + term))
    save_meta(conn, t.RESTORED, "1")
    raise_epochs(conn, epoch)
    _number_events_from(conn, last_event)


def raise_epochs(conn: Connection, above: int) -> Epoch:
    """Make the next epoch larger than this one and all granted ones, also those granted after the copy was made.

    Return the present last one. Milliseconds since 1970 are above the number of grants of any pool.
    """
    last = max(above + 1, last_epoch(conn) + 1, int(time.time() * 1000))
    save_meta(conn, t.EPOCH_FLOOR, str(last))
    return Epoch(last)


def _number_events_from(conn: Connection, last: int) -> None:
    """Continue the numbers of events: readers that continue from an id would miss events with reused ids."""
    if conn.dialect.name != "postgresql":
        return
    highest = max(last, conn.execute(select(func.max(t.events.c.id))).scalar() or 0)
    if highest:
        conn.execute(text("SELECT setval(pg_get_serial_sequence('events', 'id'), :highest)"), {"highest": highest})
