"""Rows of measurements: adding, reading and deleting."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, case, delete, func, select

from gpupool.domain.ids import WorkloadId
from gpupool.domain.nodes.telemetry import GpuRollup, NodeRollup, ReplicaRollup, Rollups, RollupStep
from gpupool.domain.work.efficiency import MeasuredUse
from gpupool.store.backends.database import Database, insert_or
from gpupool.store.pool.meta import load_meta, save_meta
from gpupool.store.schema.usage_tables import gpu_use, node_use, replica_use

WRITTEN = "looks_written"  # key in the table ``meta``
_SUMMED = frozenset({"busy_s", "idle_s", "cpu_s", "energy_j", "read_bytes", "written_bytes", "samples"})
_HIGHEST = frozenset({"utilisation_max", "memory_max_mib", "temperature_max_c", "gpu_memory_max_mib"})
_MEANS = frozenset({"memory_mean_mib", "gpu_memory_mean_mib", "sm_clock_mean_mhz"})
_NAMES = {"step": "step_s", "index": "replica_index"}  # fields with another column name


Rows = list[tuple[Table, list[dict[str, Any]]]]


def rows_of(uses: Rollups) -> Rows:
    """Return the rows to add by table: minutes, and the same for their hours. Built before a transaction begins."""
    found: Rows = []
    for table, kind, rows in (
        (gpu_use, GpuRollup, uses.gpus),
        (replica_use, ReplicaRollup, uses.replicas),
        (node_use, NodeRollup, uses.nodes),
    ):
        names = [field.name for field in fields(kind)]
        columns, values = [_NAMES.get(name, name) for name in names], attrgetter(*names)
        minutes = [dict(zip(columns, values(row), strict=True)) for row in rows]
        hours = [
            row | {"step_s": int(RollupStep.HOUR), "at": row["at"] // RollupStep.HOUR * RollupStep.HOUR}
            for row in minutes
        ]
        if rows:
            found.append((table, [*minutes, *hours]))
    return found


def save(conn: Connection, rows: Rows, numbers: Mapping[str, int]) -> None:
    """Add rows to existing ones; store how far they go."""
    for table, added in rows:
        conn.execute(_adding(conn, table), added)
    save_meta(conn, WRITTEN, json.dumps(written(conn) | dict(numbers)))


def _adding(conn: Connection, table: Table) -> Any:
    statement = insert_or(conn, table)
    keys = [column.name for column in table.primary_key]
    changed = {
        column.name: _together(table, column.name, statement.excluded[column.name])
        for column in table.columns
        if column.name not in keys
    }
    return statement.on_conflict_do_update(index_elements=keys, set_=changed)


def _together(table: Table, name: str, new: ColumnElement[Any]) -> ColumnElement[Any]:
    """Combine a column of two rows: sums, maxima, or means weighted by seconds."""
    old = table.c[name]
    if name in _SUMMED:
        both = old + new
    elif name in _HIGHEST:
        both = case((old > new, old), else_=new)
    elif name in _MEANS:
        samples, more = table.c.samples, _excluded_samples(new)
        both = (old * samples + new * more) / func.nullif(samples + more, 0)
    else:
        return new  # the node of a GPU that was moved
    return func.coalesce(both, old, new)


def _excluded_samples(new: ColumnElement[Any]) -> ColumnElement[Any]:
    row: Any = new.table
    found: ColumnElement[Any] = row.c.samples
    return found


def written(conn: Connection) -> dict[str, int]:
    """Return the number of the last stored sample, by node."""
    found: dict[str, int] = json.loads(load_meta(conn).get(WRITTEN, "{}"))
    return found


def of_gpu(conn: Connection, uuid: str, step: RollupStep, since: float, until: float) -> list[GpuRollup]:
    """Return the rows of a GPU that begin between two times, by time."""
    return _rows(conn, GpuRollup, gpu_use, [gpu_use.c.gpu_uuid == uuid], (step, since, until))


def of_replica(
    conn: Connection, replica: tuple[WorkloadId, int], step: RollupStep, since: float, until: float
) -> list[ReplicaRollup]:
    """Return the rows of a replica, all its attempts, that begin between two times, by time."""
    workload, index = replica
    whose = [replica_use.c.workload == workload, replica_use.c.replica_index == index]
    return _rows(conn, ReplicaRollup, replica_use, whose, (step, since, until))


def total_of(conn: Connection, workloads: Sequence[WorkloadId]) -> dict[WorkloadId, MeasuredUse]:
    """Return the measured use of all replicas and attempts of each workload with stored samples, from hours."""
    use = replica_use.c
    sums = (func.sum(use.samples), func.sum(use.busy_s), func.sum(use.idle_s), func.sum(use.cpu_s))
    highest = (func.max(use.gpu_memory_max_mib), func.max(use.memory_max_mib))
    wanted = (use.workload.in_(workloads), use.step_s == int(RollupStep.HOUR))
    statement = select(use.workload, *sums, *highest).where(*wanted).group_by(use.workload)
    return {WorkloadId(row[0]): MeasuredUse(*row[1:]) for row in conn.execute(statement)}


def of_node(conn: Connection, node: str, step: RollupStep, since: float, until: float) -> list[NodeRollup]:
    """Return the rows of a node that begin between two times, by time."""
    return _rows(conn, NodeRollup, node_use, [node_use.c.node == node], (step, since, until))


def _rows(
    conn: Connection,
    kind: Any,
    table: Table,
    whose: Sequence[ColumnElement[bool]],
    when: tuple[RollupStep, float, float],
) -> list[Any]:
    step, since, until = when
    columns = [table.c[_NAMES.get(field.name, field.name)] for field in fields(kind)]
    during = (table.c.step_s == int(step), table.c.at >= since, table.c.at < until)
    statement = select(*columns).where(*whose, *during).order_by(table.c.at)
    return [kind(step, *row[1:]) for row in conn.execute(statement)]


def forget(conn: Connection, step: RollupStep, before: float, limit: int) -> int:
    """Delete rows that begin before a time, oldest first, about ``limit`` of a kind at most; return their number."""
    gone = sum(_forget(conn, table, step, before, limit) for table in (gpu_use, replica_use))
    for node in written(conn):
        old = (node_use.c.node == node, node_use.c.step_s == int(step), node_use.c.at < before)
        gone += conn.execute(delete(node_use).where(*old)).rowcount
    return gone


def _forget(conn: Connection, table: Table, step: RollupStep, before: float, limit: int) -> int:
    """Delete all steps of the oldest rows, which an index finds."""
    old = (table.c.step_s == int(step), table.c.at < before)
    oldest = select(table.c.at).where(*old).order_by(table.c.at).limit(limit).subquery()
    last = conn.execute(select(func.max(oldest.c.at))).scalar()
    if last is None:
        return 0
    return conn.execute(delete(table).where(table.c.step_s == int(step), table.c.at <= last)).rowcount


class SqlUseRows:
    """Implements ``services.ports.usage.SampleStore`` over a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def save(self, uses: Rollups, numbers: Mapping[str, int]) -> None:
        """Add rows of minutes, also to their hours; ``numbers`` are those of the last samples by node."""
        rows = await asyncio.to_thread(rows_of, uses)
        await self._database.write(lambda conn: save(conn, rows, numbers))

    async def written(self) -> Mapping[str, int]:
        """Return the number of the last stored sample, by node."""
        return await self._database.read(written)

    async def of_gpu(self, uuid: str, step: RollupStep, since: float, until: float) -> Sequence[GpuRollup]:
        """Return the rows of a GPU that begin between two times, by time."""
        return await self._database.read(lambda conn: of_gpu(conn, uuid, step, since, until))

    async def of_replica(
        self, workload: WorkloadId, index: int, step: RollupStep, since: float, until: float
    ) -> Sequence[ReplicaRollup]:
        """Return the rows of a replica, all its attempts, that begin between two times, by time."""
        return await self._database.read(lambda conn: of_replica(conn, (workload, index), step, since, until))

    async def total_of(self, workloads: Sequence[WorkloadId]) -> Mapping[WorkloadId, MeasuredUse]:
        """Return the measured use of all replicas and attempts of each workload with stored samples."""
        return await self._database.read(lambda conn: total_of(conn, workloads))

    async def of_node(self, node: str, step: RollupStep, since: float, until: float) -> Sequence[NodeRollup]:
        """Return the rows of a node that begin between two times, by time."""
        return await self._database.read(lambda conn: of_node(conn, node, step, since, until))

    async def forget(self, step: RollupStep, before: float, limit: int) -> int:
        """Delete rows that begin before a time, about ``limit`` of a kind at most; return their number."""
        return await self._database.write(lambda conn: forget(conn, step, before, limit))
