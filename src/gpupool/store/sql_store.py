"""``SqlStore``: the ``Store`` Protocol over a database; each method is one transaction."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.services.ports.store import ChangeSet
from gpupool.store import database_copy, events
from gpupool.store.backends.address import PostgresAddress, is_postgres
from gpupool.store.backends.database import Database, read_method, write_method
from gpupool.store.backends.sqlite import SqliteDatabase
from gpupool.store.backups import SqlBackups
from gpupool.store.migrations.migrate import prepare
from gpupool.store.pool import nodes
from gpupool.store.pool.credentials import SqlSessions, SqlTokens
from gpupool.store.pool.joins import SqlJoins
from gpupool.store.pool.meta import SqlDocuments, load_meta
from gpupool.store.pool.rows import DEPARTMENTS, PROJECTS, RESERVATIONS, SERVICES, USERS, SqlRows, SqlWorkspaces
from gpupool.store.usage.capacity import SqlCapacity
from gpupool.store.usage.history_samples import SqlMoments
from gpupool.store.usage.usage_rows import SqlUseRows
from gpupool.store.usage.usage_store import SqlUsageBooks
from gpupool.store.work import history, queries, writes
from gpupool.store.work.history import SqlEstimates
from gpupool.store.work.mapping import Records


async def open_store(target: str | Path | PostgresAddress, pool_id: str | None = None) -> SqlStore:
    """Open a database: create a missing one, upgrade an older one (a SQLite file after a backup copy).

    A new SQLite database gets ``pool_id``, the id that its pool had before; None: a new one.

    ``target`` is a path, a ``sqlite:///`` URL, or the address (or URL) of a PostgreSQL database. Raises
    ``GpupoolError``: DATABASE_*, UNSUPPORTED (another database).
    """
    if isinstance(target, str) and is_postgres(target):
        target = PostgresAddress(target)
    if isinstance(target, PostgresAddress):
        return await open_postgres(target)
    path = _path_of(target)
    await asyncio.to_thread(prepare, path, pool_id)
    return await open_database(SqliteDatabase(path))


async def open_postgres(address: PostgresAddress, term: int | None = None) -> SqlStore:
    """Open a PostgreSQL database; ``term`` is that of a control plane that leads and may be replaced."""
    from gpupool.store.backends.postgres import PostgresDatabase
    from gpupool.store.migrations import migrate_postgres

    await asyncio.to_thread(migrate_postgres.prepare, address)
    return await open_database(PostgresDatabase(address, term))


async def open_database(database: Database) -> SqlStore:
    """Return the store of a database with the present schema; close the database if that fails."""
    try:
        return SqlStore(database, await database.read(load_meta))
    except BaseException:
        await database.close()
        raise


def _path_of(target: str | Path) -> Path:
    text = str(target).removeprefix("sqlite:///")
    if "://" in text:
        raise GpupoolError(
            ErrorCode.UNSUPPORTED,
            f"The database {text.partition('://')[0]}:// is not supported.",
            "Use the path of a SQLite file, or postgresql://USER@HOST/DATABASE.",
        )
    return Path(text).expanduser().absolute()


class SqlStore:
    """The pool's data in a SQL database. Implements ``Store``; errors are ``GpupoolError``."""

    def __init__(self, database: Database, meta: dict[str, str]) -> None:
        self._database = database
        self.usage_books = SqlUsageBooks(database)
        self.moments = SqlMoments(database)
        self.capacity = SqlCapacity(database)
        self.use_rows = SqlUseRows(database)
        self.sessions = SqlSessions(database)
        self.joins = SqlJoins(database)
        self.tokens = SqlTokens(database)
        self.projects = SqlRows(database, PROJECTS)
        self.departments = SqlRows(database, DEPARTMENTS)
        self.users = SqlRows(database, USERS)
        self.reservations = SqlRows(database, RESERVATIONS)
        self.workspaces = SqlWorkspaces(database)
        self.services = SqlRows(database, SERVICES)
        self.documents = SqlDocuments(database)
        self.estimates = SqlEstimates(database)
        self.records = Records()
        self.pool_id = meta["pool_id"]
        self.backups = SqlBackups(database, self.pool_id)

    known = read_method(queries.known)
    lease_holder = read_method(queries.lease_holder)
    raise_epochs = write_method(database_copy.raise_epochs)
    load_live = read_method(queries.live_state)

    async def commit(self, changes: ChangeSet) -> int:
        """Write all changes or none; return the id of the last event written (0 if none was).

        Raises STALE_WRITE (a version, a lease or a GPU's capacity conflicts), NAME_TAKEN, DATABASE_UNWRITABLE. A
        cancelled caller cannot know whether the changes were written.
        """
        return await self._database.write(lambda conn: writes.apply(conn, changes)) if changes else 0

    get_workload = read_method(queries.workload_by_ref)
    by_request_id = read_method(queries.workload_by_request)
    count_workloads = read_method(queries.count_workloads)
    list_workloads = read_method(queries.workloads)
    replicas_of = read_method(queries.replicas_of)
    leases_of = read_method(queries.leases_of)
    list_events = read_method(events.listing)
    list_audit = read_method(events.audit)
    runtime_history = read_method(history.runtime_history)
    past_leases = read_method(history.past_leases)
    past_runs = read_method(history.past_runs)
    delete_finished_before = write_method(history.forget_finished)
    save_nodes = write_method(nodes.save_nodes)
    delete_node = write_method(nodes.delete_node)

    async def close(self) -> None:
        """Close the database."""
        await self._database.close()
