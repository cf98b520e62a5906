"""Reports of standby heads in the database: each writes its own, outside of any term, over its own connection."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psycopg
from psycopg.types.json import Json

from gpupool.domain.errors import GpupoolError
from gpupool.domain.nodes.heads import Head, HeadReport
from gpupool.store.backends import errors, postgres
from gpupool.store.backends.address import PostgresAddress
from gpupool.store.backends.leadership import HEADS
from gpupool.store.migrations.migrate import REVISIONS

_CLOCK = "SELECT extract(epoch FROM clock_timestamp())::float8"
_TABLES = (
    "SELECT count(*), count(*) FILTER (WHERE tablename = 'alembic_version')"
    " FROM pg_tables WHERE schemaname = current_schema()"
)
_REVISION = "SELECT version_num FROM alembic_version"
_ADDRESSES = "SELECT node, address FROM members ORDER BY node"
_NODES = "SELECT name FROM nodes WHERE state <> 'down' ORDER BY name"
_REPORTS = (
    "SELECT heads.name, (extract(epoch FROM clock_timestamp()) - reported_at)::float8, faults"
    " FROM heads LEFT JOIN head_reports USING (name) ORDER BY 1"
)
_WRITE = (
    "INSERT INTO head_reports SELECT %s, extract(epoch FROM clock_timestamp()), %s WHERE EXISTS"
    " (SELECT 1 FROM heads WHERE name = %s)"
    " ON CONFLICT (name) DO UPDATE SET reported_at = excluded.reported_at, faults = excluded.faults"
)


@dataclass(frozen=True, slots=True)
class DatabaseView:
    """The data that a standby head reads. ``ahead_s``: how far this machine's clock is ahead of the database's.

    ``addresses`` are those of all members, by name; ``nodes`` are the nodes that are not down.
    """

    ahead_s: float
    heads: tuple[Head, ...]
    addresses: dict[str, str]
    nodes: tuple[str, ...]


def probe(address: PostgresAddress, name: str, judge: Callable[[DatabaseView], Sequence[str]]) -> list[str]:
    """Open a new connection, read the data, pass it to ``judge``, record its faults and return them.

    Faults of the database itself, of the password and of permissions are returned, too.
    """
    try:
        with postgres.connect(address) as raw:
            if (unusable := _schema_fault(raw, address)) is not None:
                return [unusable]
            found = list(judge(_read(raw)))
            raw.execute(_WRITE, (name, Json(found), name))
            return found
    except GpupoolError as error:
        return [error.message]
    except psycopg.Error as error:
        return [errors.translate(error, address).message]


def read_reports(address: PostgresAddress) -> dict[str, HeadReport | None]:
    """Return all heads by name, each with its last report if there is one. Raises ``GpupoolError``."""
    try:
        with postgres.connect(address) as raw:
            rows = raw.execute(_REPORTS).fetchall()
    except psycopg.Error as error:
        raise errors.translate(error, address) from error
    return {name: None if age is None else HeadReport(name, age, tuple(found)) for name, age, found in rows}


def check_usable(address: PostgresAddress) -> None:
    """Raise ``GpupoolError`` unless this machine can connect and write, and knows the schema."""
    try:
        with postgres.connect(address) as raw:
            if (unusable := _schema_fault(raw, address)) is not None:
                raise errors.foreign(address, unusable)
            raw.execute(_WRITE, ("", Json([]), ""))  # writes nothing, but needs the permission to write
    except psycopg.Error as error:
        raise errors.translate(error, address) from error


def _schema_fault(raw: psycopg.Connection[tuple[object, ...]], address: PostgresAddress) -> str | None:
    (_, ours) = raw.execute(_TABLES).fetchone() or (0, 0)
    row = raw.execute(_REVISION).fetchone() if ours else None
    if row is None:
        return f"The database {address} does not belong to the pool: it has no schema of gpupool."
    if str(row[0]) not in REVISIONS:
        return f"The database {address} has schema {row[0]}; this gpupool knows up to {REVISIONS[-1]}: update it."
    return None


def _read(raw: psycopg.Connection[tuple[object, ...]]) -> DatabaseView:
    before = time.time()
    row = raw.execute(_CLOCK).fetchone()
    after = time.time()
    there = float(row[0]) if row is not None else before  # type: ignore[arg-type]
    # The database read its clock between the two local times: only a difference beyond that interval is certain.
    ahead_s = before - there if there < before else after - there if there > after else 0.0
    return DatabaseView(
        ahead_s,
        tuple(Head(*row) for row in raw.execute(HEADS).fetchall()),  # type: ignore[arg-type]
        {str(node): str(where) for node, where in raw.execute(_ADDRESSES).fetchall()},
        tuple(str(name) for (name,) in raw.execute(_NODES).fetchall()),
    )
