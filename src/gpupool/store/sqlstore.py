"""``SqlStore``: the ``Store`` Protocol over a database; each method is one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from sqlalchemy import Connection

from gpupool.domain.access import Department, Project, Token, User
from gpupool.domain.booking import Booking
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.events import Event
from gpupool.domain.gpu import Node
from gpupool.domain.ids import WorkloadId
from gpupool.domain.workload import Lease, Replica, Workload
from gpupool.services.ports import (
    AuditFilter,
    ChangeSet,
    EventFilter,
    LiveState,
    PastLease,
    RuntimeHistory,
    StartEstimate,
    WorkloadFilter,
)
from gpupool.store import access, accounting, audit, bookings, departments, queries, writes
from gpupool.store import estimates as start_estimates
from gpupool.store.address import PostgresAddress, is_postgres
from gpupool.store.database import Database
from gpupool.store.joins import SqlJoins
from gpupool.store.migrate import prepare
from gpupool.store.moments import SqlMoments
from gpupool.store.sessions import SqlSessions
from gpupool.store.sqlite import SqliteDatabase
from gpupool.store.usage_books import SqlUsageBooks
from gpupool.store.usage_rows import SqlUseRows


async def open_store(target: str | Path | PostgresAddress) -> SqlStore:
    """Open a database: made when missing, upgraded when older (a SQLite file after a backup copy).

    ``target`` is a path, a ``sqlite:///`` URL, or the address (or URL) of a PostgreSQL database. Raises
    ``GpupoolError``: DATABASE_*, UNSUPPORTED (another database).
    """
    if isinstance(target, str) and is_postgres(target):
        target = PostgresAddress(target)
    if isinstance(target, PostgresAddress):
        return await open_postgres(target)
    path = _path_of(target)
    await asyncio.to_thread(prepare, path)
    return await open_database(SqliteDatabase(path))


async def open_postgres(address: PostgresAddress, term: int | None = None) -> SqlStore:
    """The same for PostgreSQL; ``term`` is that of a control plane that leads and may be replaced."""
    from gpupool.store import migrate_postgres
    from gpupool.store.postgres import PostgresDatabase

    await asyncio.to_thread(migrate_postgres.prepare, address)
    return await open_database(PostgresDatabase(address, term))


async def open_database(database: Database) -> SqlStore:
    """The store over a database that has the present schema; it is closed when that fails."""
    try:
        return SqlStore(database, await database.read(access.meta))
    except BaseException:
        await database.close()
        raise


def _path_of(target: str | Path) -> Path:
    text = str(target).removeprefix("sqlite:///")
    if "://" in text:
        raise GpupoolError(
            ErrorCode.UNSUPPORTED,
            f"The database {text.partition('://')[0]}:// is not supported.",
            "Give the path of a SQLite file, or postgresql://USER@HOST/DATABASE.",
        )
    return Path(text).expanduser().absolute()


POLICY = "policy"  # its name in the table ``meta``
WARNINGS = "warnings"  # likewise


class SqlStore:
    """The truth, in a SQL database. Methods are those of ``Store``; errors are ``GpupoolError``."""

    def __init__(self, database: Database, meta: dict[str, str]) -> None:
        self._database = database
        self.usage_books = SqlUsageBooks(database)
        self.moments = SqlMoments(database)
        self.use_rows = SqlUseRows(database)
        self.sessions = SqlSessions(database)
        self.joins = SqlJoins(database)
        self.pool_id = meta["pool_id"]

    async def load_live(self) -> LiveState:
        """Workloads that have not ended (or still hold a lease) with all their replicas, and what is leased."""
        return await self._database.read(queries.live_state)

    async def commit(self, changes: ChangeSet) -> int:
        """Write all of it or nothing; returns the id of the last event written (0 when none was).

        Raises STALE_WRITE (a version, a lease or a GPU's capacity no longer fits), NAME_TAKEN, DATABASE_UNWRITABLE.
        A caller cancelled meanwhile cannot know whether it was written.
        """
        return await self._database.write(lambda conn: writes.apply(conn, changes)) if changes else 0

    async def get_workload(self, ref: str, user: str | None = None) -> Workload | None:
        """By id (deleted ones too), or by name: the newest not deleted one, the user's own first."""
        return await self._database.read(lambda conn: queries.workload_by_ref(conn, ref, user))

    async def by_request_id(self, request_id: str) -> Workload | None:
        """The workload a repeated request made the first time."""
        return await self._database.read(lambda conn: queries.workload_by_request(conn, request_id))

    async def list_workloads(self, wanted: WorkloadFilter) -> Sequence[Workload]:
        """Newest first, at most ``limit`` (and never more than ``queries.LISTING_LIMIT``)."""
        return await self._database.read(lambda conn: queries.workloads(conn, wanted))

    async def replicas_of(self, workload: WorkloadId) -> Sequence[Replica]:
        """All replicas of a workload by index."""
        return await self._database.read(lambda conn: queries.replicas_of(conn, workload))

    async def leases_of(self, workload: WorkloadId) -> Sequence[Lease]:
        """All leases a workload has held, oldest first."""
        return await self._database.read(lambda conn: queries.leases_of(conn, workload))

    async def list_events(self, wanted: EventFilter) -> Sequence[Event]:
        """Events oldest first, at most ``limit`` (and never more than ``queries.LISTING_LIMIT``)."""
        return await self._database.read(lambda conn: queries.events(conn, wanted))

    async def list_audit(self, wanted: AuditFilter) -> Sequence[Event]:
        """Events newest first, at most ``limit`` (and never more than 10,000)."""
        return await self._database.read(partial(audit.audit, wanted=wanted))

    async def runtime_history(self, project: str | None, user: str | None, limit: int = 200) -> RuntimeHistory | None:
        """Of the latest finished replicas of a user in a project (None: of all); None when there is none."""
        return await self._database.read(lambda conn: accounting.runtime_history(conn, project, user, limit))

    async def save_estimates(self, estimates: Sequence[StartEstimate]) -> None:
        """Insert or replace, by workload."""
        await self._database.write(lambda conn: start_estimates.save(conn, estimates))

    async def drop_estimates(self, workloads: Sequence[WorkloadId]) -> None:
        """Forget those that nothing can come of any more."""
        await self._database.write(lambda conn: start_estimates.drop(conn, workloads))

    async def newest_estimates(self, limit: int, *, settled: bool) -> Sequence[StartEstimate]:
        """The newest first: those of which it is known what came of them, or those of which it is not."""
        return await self._database.read(lambda conn: start_estimates.newest(conn, limit, settled=settled))

    async def forget_estimates(self, before: float, most: int) -> int:
        """Drop what was made before a time, and all but the newest ``most``; how many those were."""
        return await self._database.write(lambda conn: start_estimates.forget(conn, before, most))

    async def past_leases(self, since: float) -> Sequence[PastLease]:
        """Leases released since a time, in order of their release."""
        return await self._database.read(lambda conn: departments.past_leases(conn, since))

    async def past_runs(self, limit: int) -> Sequence[PastLease]:
        """The latest leases under which replicas came to their own end, in order of their release."""
        return await self._database.read(lambda conn: accounting.past_runs(conn, limit))

    async def save_department(self, department: Department, event: Event) -> None:
        """Insert or replace."""
        await self._with_event(partial(departments.save_department, department=department), event)

    async def delete_department(self, name: str, event: Event) -> None:
        """Remove a department. Raises UNKNOWN_DEPARTMENT."""
        await self._with_event(partial(departments.delete_department, name=name), event)

    async def load_policy(self) -> str | None:
        """The scheduling policy as it was saved; None when none was."""
        return (await self._database.read(access.meta)).get(POLICY)

    async def save_policy(self, document: str, event: Event) -> None:
        """Insert or replace."""
        await self._with_event(partial(access.save_meta, name=POLICY, value=document), event)

    async def load_warnings(self) -> str | None:
        """The settings of warnings as they were saved; None when none were."""
        return (await self._database.read(access.meta)).get(WARNINGS)

    async def save_warnings(self, document: str, event: Event) -> None:
        """Insert or replace."""
        await self._with_event(partial(access.save_meta, name=WARNINGS, value=document), event)

    async def save_project(self, project: Project, event: Event) -> None:
        """Insert or replace."""
        await self._with_event(partial(access.save_project, project=project), event)

    async def delete_project(self, name: str, event: Event) -> None:
        """Remove a project; its history stays. Raises UNKNOWN_PROJECT."""
        await self._with_event(partial(access.delete_project, name=name), event)

    async def save_user(self, user: User, event: Event) -> None:
        """Insert or replace."""
        await self._with_event(partial(access.save_user, user=user), event)

    async def save_node(self, node: Node, event: Event | None = None) -> None:
        """Insert or replace a node and its last report."""
        await self._with_event(partial(access.save_node, node=node), event)

    async def save_nodes(self, nodes: Sequence[Node], events: Sequence[Event]) -> None:
        """Insert or replace many nodes."""

        def all_of_it(conn: Connection) -> None:
            for node in nodes:
                access.save_node(conn, node)
            writes.append_events(conn, events)

        await self._database.write(all_of_it)

    async def delete_node(self, name: str, event: Event) -> None:
        """Forget a node."""
        await self._with_event(partial(access.delete_node, name=name), event)

    async def save_booking(self, booking: Booking, event: Event) -> None:
        """Insert or replace."""
        await self._with_event(partial(bookings.save_booking, booking=booking), event)

    async def delete_booking(self, booking_id: str, event: Event) -> None:
        """Remove a booking. Raises UNKNOWN_BOOKING."""
        await self._with_event(partial(bookings.delete_booking, booking_id=booking_id), event)

    async def save_token(self, token: Token, event: Event) -> None:
        """Insert or replace."""
        await self._with_event(partial(access.save_token, token=token), event)

    async def list_tokens(self, user: str | None = None) -> Sequence[Token]:
        """All tokens, newest first."""
        return await self._database.read(lambda conn: access.tokens(conn, user))

    async def find_token(self, secret_sha256: str) -> Token | None:
        """The token with this hash, whatever its state."""
        return await self._database.read(lambda conn: access.token_by_secret(conn, secret_sha256))

    async def touch_token(self, token_id: str, at: float) -> None:
        """Note when a token was last used."""
        await self._database.write(lambda conn: access.touch_token(conn, token_id, at))

    async def delete_finished_before(self, finished_before: float, limit: int = 1000) -> Sequence[WorkloadId]:
        """Drop old history (workloads, replicas, their events); leases stay for accounting.

        Workloads that hold a lease, or that a live one waits for, are kept.
        """
        return await self._database.write(lambda conn: accounting.forget_finished(conn, finished_before, limit))

    async def backup(self, path: Path) -> None:
        """A consistent copy of the database at ``path`` (mode 0600) while the pool runs."""
        await self._database.backup(path)

    async def close(self) -> None:
        """Let go of the database."""
        await self._database.close()

    async def _with_event(self, work: Callable[[Connection], None], event: Event | None) -> None:
        def both(conn: Connection) -> None:
            work(conn)
            writes.append_events(conn, (event,) if event else ())

        await self._database.write(both)
