"""Rows of what was measured: added to, read, dropped."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, case, delete, func, select
from sqlalchemy.dialects import postgresql, sqlite

from gpupool.domain.ids import WorkloadId
from gpupool.domain.telemetry import GpuUse, NodeUse, ReplicaUse, Step, Uses
from gpupool.store import access
from gpupool.store.database import Database
from gpupool.store.usage_tables import gpu_use, node_use, replica_use

WRITTEN = "looks_written"  # its name in the table ``meta``
_SUMMED = frozenset({"busy_s", "idle_s", "cpu_s", "energy_j", "read_bytes", "written_bytes", "samples"})
_HIGHEST = frozenset({"utilisation_max", "memory_max_mib", "temperature_max_c", "gpu_memory_max_mib"})
_MEANS = frozenset({"memory_mean_mib", "gpu_memory_mean_mib", "sm_clock_mean_mhz"})
_NAMES = {"step": "step_s", "index": "replica_index"}  # fields that have another name as columns


Rows = list[tuple[Table, list[dict[str, Any]]]]


def rows_of(uses: Uses) -> Rows:
    """By table, what is to be added: rows of minutes, and the same to their hours. Made before a transaction begins."""
    found: Rows = []
    for table, kind, rows in (
        (gpu_use, GpuUse, uses.gpus),
        (replica_use, ReplicaUse, uses.replicas),
        (node_use, NodeUse, uses.nodes),
    ):
        names = [field.name for field in fields(kind)]
        columns, values = [_NAMES.get(name, name) for name in names], attrgetter(*names)
        minutes = [dict(zip(columns, values(row), strict=True)) for row in rows]
        hours = [row | {"step_s": int(Step.HOUR), "at": row["at"] // Step.HOUR * Step.HOUR} for row in minutes]
        if rows:
            found.append((table, [*minutes, *hours]))
    return found


def save(conn: Connection, rows: Rows, numbers: Mapping[str, int]) -> None:
    """Add rows to those there are; remember how far they go."""
    for table, added in rows:
        conn.execute(_adding(conn, table), added)
    access.save_meta(conn, WRITTEN, json.dumps(written(conn) | dict(numbers)))


def _adding(conn: Connection, table: Table) -> Any:
    insert: Any = postgresql.insert if conn.dialect.name == "postgresql" else sqlite.insert
    statement = insert(table)
    keys = [column.name for column in table.primary_key]
    changed = {
        column.name: _together(table, column.name, statement.excluded[column.name])
        for column in table.columns
        if column.name not in keys
    }
    return statement.on_conflict_do_update(index_elements=keys, set_=changed)


def _together(table: Table, name: str, new: ColumnElement[Any]) -> ColumnElement[Any]:
    """What a column becomes when another row is added to one: sums, maxima, means by the seconds they are of."""
    old = table.c[name]
    if name in _SUMMED:
        both = old + new
    elif name in _HIGHEST:
        both = case((old > new, old), else_=new)
    elif name in _MEANS:
        samples, more = table.c.samples, _excluded_samples(new)
        both = (old * samples + new * more) / func.nullif(samples + more, 0)
    else:
        return new  # the node of a GPU that has moved
    return func.coalesce(both, old, new)


def _excluded_samples(new: ColumnElement[Any]) -> ColumnElement[Any]:
    row: Any = new.table
    found: ColumnElement[Any] = row.c.samples
    return found


def written(conn: Connection) -> dict[str, int]:
    """By node the number of the last look that is in the rows."""
    found: dict[str, int] = json.loads(access.meta(conn).get(WRITTEN, "{}"))
    return found


def of_gpu(conn: Connection, uuid: str, step: Step, since: float, until: float) -> list[GpuUse]:
    """The rows of a GPU that begin between two times, by time."""
    return _rows(conn, GpuUse, gpu_use, [gpu_use.c.gpu_uuid == uuid], (step, since, until))


def of_replica(
    conn: Connection, replica: tuple[WorkloadId, int], step: Step, since: float, until: float
) -> list[ReplicaUse]:
    """The rows of a replica, all its attempts, that begin between two times, by time."""
    workload, index = replica
    whose = [replica_use.c.workload == workload, replica_use.c.replica_index == index]
    return _rows(conn, ReplicaUse, replica_use, whose, (step, since, until))


def of_node(conn: Connection, node: str, step: Step, since: float, until: float) -> list[NodeUse]:
    """The rows of a node that begin between two times, by time."""
    return _rows(conn, NodeUse, node_use, [node_use.c.node == node], (step, since, until))


def _rows(
    conn: Connection, kind: Any, table: Table, whose: Sequence[ColumnElement[bool]], when: tuple[Step, float, float]
) -> list[Any]:
    step, since, until = when
    columns = [table.c[_NAMES.get(field.name, field.name)] for field in fields(kind)]
    during = (table.c.step_s == int(step), table.c.at >= since, table.c.at < until)
    statement = select(*columns).where(*whose, *during).order_by(table.c.at)
    return [kind(step, *row[1:]) for row in conn.execute(statement)]


def forget(conn: Connection, step: Step, before: float, limit: int) -> int:
    """Drop rows that begin before a time, the oldest first, at most about so many of a kind; how many those were."""
    gone = sum(_forget(conn, table, step, before, limit) for table in (gpu_use, replica_use))
    for node in written(conn):
        old = (node_use.c.node == node, node_use.c.step_s == int(step), node_use.c.at < before)
        gone += conn.execute(delete(node_use).where(*old)).rowcount
    return gone


def _forget(conn: Connection, table: Table, step: Step, before: float, limit: int) -> int:
    """All of the steps that the oldest rows are of: an index has those."""
    old = (table.c.step_s == int(step), table.c.at < before)
    oldest = select(table.c.at).where(*old).order_by(table.c.at).limit(limit).subquery()
    last = conn.execute(select(func.max(oldest.c.at))).scalar()
    if last is None:
        return 0
    return conn.execute(delete(table).where(table.c.step_s == int(step), table.c.at <= last)).rowcount


class SqlUseRows:
    """``services.use_rows.UseRows`` over a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def save(self, uses: Uses, numbers: Mapping[str, int]) -> None:
        """Add rows of minutes, and to those of their hours; ``numbers`` of looks by node say how far they go."""
        rows = await asyncio.to_thread(rows_of, uses)
        await self._database.write(lambda conn: save(conn, rows, numbers))

    async def written(self) -> Mapping[str, int]:
        """By node the number of the last look that is in the rows."""
        return await self._database.read(written)

    async def of_gpu(self, uuid: str, step: Step, since: float, until: float) -> Sequence[GpuUse]:
        """The rows of a GPU that begin between two times, by time."""
        return await self._database.read(lambda conn: of_gpu(conn, uuid, step, since, until))

    async def of_replica(
        self, workload: WorkloadId, index: int, step: Step, since: float, until: float
    ) -> Sequence[ReplicaUse]:
        """The rows of a replica, all its attempts, that begin between two times, by time."""
        return await self._database.read(lambda conn: of_replica(conn, (workload, index), step, since, until))

    async def of_node(self, node: str, step: Step, since: float, until: float) -> Sequence[NodeUse]:
        """The rows of a node that begin between two times, by time."""
        return await self._database.read(lambda conn: of_node(conn, node, step, since, until))

    async def forget(self, step: Step, before: float, limit: int) -> int:
        """Drop rows that begin before a time, at most about so many of a kind; how many those were."""
        return await self._database.write(lambda conn: forget(conn, step, before, limit))
