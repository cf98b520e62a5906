"""Single values of the pool by name, in the table ``meta``."""

from __future__ import annotations

from sqlalchemy import Connection, select

from gpupool.domain.events import Event
from gpupool.services.ports.store import DocumentName
from gpupool.store.backends.database import Database, upsert
from gpupool.store.events import write_with_events
from gpupool.store.schema import tables as t


def load_meta(conn: Connection) -> dict[str, str]:
    """Return all values; every pool has ``pool_id`` and ``created_at``."""
    return {row.name: row.value for row in conn.execute(select(t.meta))}


def save_meta(conn: Connection, name: str, value: str) -> None:
    """Insert or replace a value."""
    upsert(conn, t.meta, {"name": name, "value": value})


class SqlDocuments:
    """Documents of settings; implements ``DocumentStore``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load(self, name: DocumentName) -> str | None:
        """Return a document as it was saved; None if it was not."""
        return (await self._database.read(load_meta)).get(name)

    async def save(self, name: DocumentName, document: str, event: Event) -> None:
        """Insert or replace a document."""
        await write_with_events(self._database, (event,), lambda conn: save_meta(conn, name, document))
