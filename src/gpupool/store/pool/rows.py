"""Small tables that are read as a whole: one row for each project, department, user, reservation, node and token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Generic, TypeVar

from sqlalchemy import Connection, Table, delete, select
from sqlalchemy.engine import RowMapping

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.events import Event
from gpupool.domain.work.workspace import Workspace
from gpupool.store.backends.database import Database, upsert
from gpupool.store.events import write_with_events
from gpupool.store.pool import pool_mapping as mapping
from gpupool.store.schema import tables as t
from gpupool.store.schema.columns import Columns

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RowKind(Generic[T]):
    """A kind of value: its table, its conversion, and the error for a missing one (``command`` lists those there are).

    ``order`` names the fields by which values are sorted.
    """

    table: Table
    row_of: Callable[[T], Columns]
    value_of: Callable[[RowMapping], T]
    missing: ErrorCode
    noun: str
    command: str
    order: tuple[str, ...] = ("name",)

    def all(self, conn: Connection) -> list[T]:
        """Return all values, sorted here: the collation of a database depends on how it was created."""
        return sorted(map(self.value_of, conn.execute(select(self.table)).mappings()), key=attrgetter(*self.order))

    def save(self, conn: Connection, value: T) -> None:
        """Insert or replace."""
        upsert(conn, self.table, self.row_of(value))

    def delete(self, conn: Connection, key: str) -> None:
        """Delete the value with this primary key; raise the error ``missing`` if there is none."""
        (column,) = self.table.primary_key
        if not conn.execute(delete(self.table).where(column == key)).rowcount:
            raise GpupoolError(self.missing, f"There is no {self.noun} '{key}'.", f"See `gpupool {self.command} list`.")


PROJECTS = RowKind(t.projects, mapping.project_row, mapping.project_of, ErrorCode.UNKNOWN_PROJECT, "project", "project")
DEPARTMENTS = RowKind(
    t.departments,
    mapping.department_row,
    mapping.department_of,
    ErrorCode.UNKNOWN_DEPARTMENT,
    "department",
    "department",
)
USERS = RowKind(t.users, mapping.user_row, mapping.user_of, ErrorCode.UNKNOWN_USER, "user", "user")
NODES = RowKind(t.nodes, mapping.node_row, mapping.node_of, ErrorCode.UNKNOWN_NODE, "node", "node")
RESERVATIONS = RowKind(
    t.bookings,
    mapping.reservation_row,
    mapping.reservation_of,
    ErrorCode.UNKNOWN_BOOKING,
    "reservation",
    "reserve",
    ("starts_at", "id"),
)
WORKSPACES = RowKind(
    t.workspaces,
    mapping.workspace_row,
    mapping.workspace_of,
    ErrorCode.UNKNOWN_WORKSPACE,
    "workspace",
    "workspace",
    ("user", "name"),
)
SERVICES = RowKind(
    t.services,
    mapping.service_row,
    mapping.service_of,
    ErrorCode.UNKNOWN_SERVICE,
    "service",
    "service",
    ("project", "name"),
)
TOKENS = RowKind(
    t.tokens, mapping.token_row, mapping.token_of, ErrorCode.UNKNOWN_TOKEN, "token", "token", ("created_at", "id")
)


class SqlRows(Generic[T]):
    """The rows of one kind in a database; implements ``Rows``. Each change is one transaction, with its event."""

    def __init__(self, database: Database, kind: RowKind[T]) -> None:
        self._database = database
        self._kind = kind

    async def save(self, value: T, event: Event) -> None:
        """Insert or replace."""
        await write_with_events(self._database, (event,), lambda conn: self._kind.save(conn, value))

    async def delete(self, key: str, event: Event) -> None:
        """Delete the value with this name or id. Raises the error of an unknown one."""
        await write_with_events(self._database, (event,), lambda conn: self._kind.delete(conn, key))


class SqlWorkspaces(SqlRows[Workspace]):
    """Workspaces in a database; implements ``WorkspaceStore``."""

    def __init__(self, database: Database) -> None:
        super().__init__(database, WORKSPACES)

    async def update(self, workspace: Workspace) -> None:
        """Replace a workspace without an event."""
        await self._database.write(lambda conn: WORKSPACES.save(conn, workspace))
