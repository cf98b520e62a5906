"""The interface of the store to a database: run a function in one transaction, to write or to read.

The functions are plain SQLAlchemy Core code over a ``Connection``. Both databases run them on their own threads: one
thread switch per transaction. That is four times faster than the async drivers, which switch per statement.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import sqlite
from sqlalchemy.sql.dml import Insert, UpdateBase

P = ParamSpec("P")
T = TypeVar("T")


class Database(Protocol):
    """Transactions over one database. Every method raises ``GpupoolError(DATABASE_*)`` when it cannot."""

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run in a transaction that excludes other writers; an exception rolls all of it back."""

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run on one consistent snapshot, concurrently with a writer."""

    async def close(self) -> None:
        """Finish running transactions and close the connections."""


def read_method(work: Callable[Concatenate[Connection, P], T]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return a method that runs ``work`` on one snapshot of the ``_database`` of its object."""

    @wraps(work)
    async def method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        found: T = await self._database.read(lambda conn: work(conn, *args, **kwargs))
        return found

    return method


def write_method(
    work: Callable[Concatenate[Connection, P], T],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return a method that runs ``work`` in one transaction of the ``_database`` of its object."""

    @wraps(work)
    async def method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        written: T = await self._database.write(lambda conn: work(conn, *args, **kwargs))
        return written

    return method


def insert_or(conn: Connection, table: Table) -> Any:
    """Return an insert with a conflict clause, in the dialect of the database."""
    if conn.dialect.name == "postgresql":
        from sqlalchemy.dialects import postgresql  # a pool on SQLite need not load it

        return postgresql.insert(table)
    return sqlite.insert(table)


def upsert(conn: Connection, table: Table, row: Mapping[str, Any]) -> None:
    """Insert a row, or replace the other columns of the row with the same primary key."""
    statement = insert_or(conn, table).values(**row)
    keys = [column.name for column in table.primary_key]
    changed = {name: statement.excluded[name] for name in row if name not in keys}
    conn.execute(statement.on_conflict_do_update(index_elements=keys, set_=changed))


def insert_all(conn: Connection, statement: Insert, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows in one round trip; without rows do nothing."""
    if rows:
        conn.execute(statement, list(rows))


def count_matched(conn: Connection, statement: UpdateBase, rows: Sequence[Mapping[str, Any]]) -> int:
    """Run a statement for each set of parameters; return the total number of matched rows."""
    if not rows:
        return 0
    if conn.dialect.supports_sane_multi_rowcount or len(rows) == 1:
        return conn.execute(statement, list(rows) if len(rows) > 1 else rows[0]).rowcount
    return sum(conn.execute(statement, row).rowcount for row in rows)
