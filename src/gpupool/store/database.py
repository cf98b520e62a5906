"""What the store needs of a database: run a function in one transaction, to write or to read.

The functions are plain Core code over a ``sqlalchemy.Connection``. Both databases run them on threads of their own: one
hop per transaction, four times faster than a hop per statement, which the async drivers make.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.dml import Insert, UpdateBase

T = TypeVar("T")


class Database(Protocol):
    """Transactions over one database. Every method raises ``GpupoolError(DATABASE_*)`` when it cannot."""

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run in a transaction that excludes other writers; an exception rolls all of it back."""

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run on one consistent snapshot, beside a writer."""

    async def backup(self, path: Path) -> None:
        """A consistent copy while others write."""

    async def close(self) -> None:
        """Finish what runs and let go."""


def upsert(conn: Connection, table: Table, row: Mapping[str, Any]) -> None:
    """Insert a row, or replace the other columns of the one with the same primary key."""
    insert: Any = postgresql.insert if conn.dialect.name == "postgresql" else sqlite.insert
    statement = insert(table).values(**row)
    keys = [column.name for column in table.primary_key]
    changed = {name: statement.excluded[name] for name in row if name not in keys}
    conn.execute(statement.on_conflict_do_update(index_elements=keys, set_=changed))


def insert_all(conn: Connection, statement: Insert, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows in one round trip; nothing for none."""
    if rows:
        conn.execute(statement, list(rows))


def count_matched(conn: Connection, statement: UpdateBase, rows: Sequence[Mapping[str, Any]]) -> int:
    """Run a statement for each set of parameters and count the rows it met, over all."""
    if not rows:
        return 0
    if conn.dialect.supports_sane_multi_rowcount or len(rows) == 1:
        return conn.execute(statement, list(rows) if len(rows) > 1 else rows[0]).rowcount
    return sum(conn.execute(statement, row).rowcount for row in rows)
