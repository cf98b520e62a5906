"""Copies of a database: always one SQLite file, whatever it was taken from, so that it can be put back into either."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Table, delete, func, insert, select, text

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.store import access, faults, migrate, sqlite
from gpupool.store import tables as t
from gpupool.store.queries import EPOCH_FLOOR, last_epoch
from gpupool.store.usage_tables import metadata

ROWS_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True)
class Copy:
    """What a copy is: of which pool, of which schema, and how much is in it."""

    pool_id: str
    revision: str
    workloads: int
    events: int


def look_into(path: Path) -> Copy:
    """What a file is a copy of; nothing is changed.

    Raises ``GpupoolError``: DATABASE_FOREIGN (no database of gpupool's), DATABASE_NEWER, DATABASE_CORRUPT,
    INVALID_FILE.
    """
    try:
        with path.open("rb") as file:
            if file.read(16) != b"SQLite format 3\0":
                raise faults.foreign(path, "it is no SQLite file")
        raw = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    except OSError as error:
        raise GpupoolError(
            ErrorCode.INVALID_FILE, f"{path} cannot be read ({error.strerror}).", "Check its name and its rights."
        ) from error
    try:
        return _look(raw, path)
    except sqlite3.DatabaseError as error:
        raise _damaged(path, str(error)) from error
    finally:
        raw.close()


def _look(raw: sqlite3.Connection, path: Path) -> Copy:
    names = {row[0] for row in raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not {"alembic_version", "meta", "workloads", "leases"} <= names:
        raise faults.foreign(path, "it has other tables")
    revision = str(raw.execute("SELECT version_num FROM alembic_version").fetchone()[0])
    if revision not in migrate.REVISIONS:
        raise migrate.newer(path, revision)
    found = raw.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise _damaged(path, str(found))
    (pool_id,) = raw.execute("SELECT value FROM meta WHERE name = 'pool_id'").fetchone()
    counts = [raw.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in ("workloads", "events")]  # noqa: S608 - names from here
    return Copy(str(pool_id), revision, *counts)


def _damaged(path: Path, why: str) -> GpupoolError:
    return GpupoolError(ErrorCode.DATABASE_CORRUPT, f"The copy {path} is damaged ({why}).", "Use another copy.")


def back_up(conn: Connection, path: Path) -> None:
    """Copy all tables that a transaction sees; the file appears whole under its name (mode 0600), or not at all."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.unlink(missing_ok=True)
        sqlite.create_private(part)
        with _engine(part) as engine, engine.begin() as target:
            migrate.make_tables(target)
            copy_rows(conn, target)
        _finish(part)
        part.replace(path)
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
    """One file without a log beside it, on the disk."""
    raw = sqlite3.connect(path)
    raw.execute("PRAGMA journal_mode=DELETE")
    raw.close()
    with path.open("rb") as file:
        os.fsync(file.fileno())


def copy_rows(source: Connection, target: Connection) -> None:
    """Every row of every table, into tables that are empty."""
    for table in metadata.sorted_tables:
        rows = source.execution_options(yield_per=ROWS_AT_ONCE).execute(select(table)).mappings()
        for chunk in rows.partitions(ROWS_AT_ONCE):
            target.execute(insert(table), [_row(table, row) for row in chunk])


def _row(table: Table, row: Any) -> dict[str, Any]:
    return {column.name: row[column] for column in table.columns}


@contextmanager
def unpacked(copy: Path, folder: Path) -> Iterator[Path]:
    """A copy of a copy, of the present schema, for as long as it is needed, in a folder of its own in ``folder``."""
    look_into(copy)
    with tempfile.TemporaryDirectory(prefix=".restore-", dir=folder) as name:
        path = Path(name) / "pool.db"
        try:
            sqlite.copy_database(copy, path)
        except (sqlite3.Error, OSError) as error:
            raise sqlite.no_backup(path, error) from error
        migrate.prepare(path)
        yield path


def restore_into(conn: Connection, copy: Path) -> None:
    """Replace all that a database of the present schema has by a copy of that schema, in the caller's transaction.

    Grants go on above every epoch that any node can have seen, and terms above that of whoever led.
    """
    epoch, term = last_epoch(conn), conn.execute(select(t.leadership.c.term)).scalar() or 0
    last_event = conn.execute(select(func.max(t.events.c.id))).scalar() or 0
    for table in reversed(metadata.sorted_tables):
        conn.execute(delete(table))
    with _engine(copy) as engine, engine.connect() as source:
        copy_rows(source, conn)
    conn.execute(t.leadership.update().values(term=t.leadership.c.term + term))
    raise_epochs(conn, epoch)
    _number_events_from(conn, last_event)


def raise_epochs(conn: Connection, above: int) -> None:
    """Have the next lease get an epoch above every one that was ever granted, also after the copy was made.

    Milliseconds since 1970 are more than any pool has granted.
    """
    access.save_meta(conn, EPOCH_FLOOR, str(max(above + 1, last_epoch(conn) + 1, int(time.time() * 1000))))


def _number_events_from(conn: Connection, last: int) -> None:
    """No id of an event is used twice: who reads on from one would miss what follows."""
    if conn.dialect.name != "postgresql":
        return
    highest = max(last, conn.execute(select(func.max(t.events.c.id))).scalar() or 0)
    if highest:
        conn.execute(text("SELECT setval(pg_get_serial_sequence('events', 'id'), :highest)"), {"highest": highest})
