"""The pool's GPU capacity over time: one row for each period in which a GPU had one status."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from sqlalchemy import Connection, delete, insert, or_, select, update

from gpupool.domain.nodes.capacity import CapacityChange, CapacitySeconds, CapacityStatus, GpuCapacity
from gpupool.store.backends.database import Database
from gpupool.store.schema.usage_tables import gpu_capacity

_c = gpu_capacity.c
_open = _c.until_at.is_(None)
Times = npt.NDArray[np.float64]


class SqlCapacity:
    """Implements ``services.ports.usage.CapacityStore``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def present(self) -> Sequence[GpuCapacity]:
        """Return the last recorded status of the GPUs."""
        return await self._database.read(_present)

    async def record(self, changes: Sequence[CapacityChange]) -> None:
        """Write changes; a GPU's former status ends when its new one begins."""
        await self._database.write(lambda conn: record(conn, changes))

    async def between(self, edges: Sequence[float]) -> Sequence[CapacitySeconds]:
        """Return the capacity between neighbouring ``edges``, which ascend."""
        return await self._database.read(lambda conn: between(conn, edges))

    async def available_at(self, times: Sequence[float]) -> Sequence[int]:
        """Return how many GPUs could be allocated at each time."""
        return await self._database.read(lambda conn: available_at(conn, times))

    async def forget_before(self, time: float) -> None:
        """Delete rows that ended before a time."""
        await self._database.write(lambda conn: conn.execute(delete(gpu_capacity).where(_c.until_at < time)))


def _present(conn: Connection) -> list[GpuCapacity]:
    rows = conn.execute(select(_c.gpu_uuid, _c.node, _c.model, _c.status).where(_open))
    return [GpuCapacity(uuid, node, model, CapacityStatus(status)) for uuid, node, model, status in rows]


def record(conn: Connection, changes: Sequence[CapacityChange]) -> None:
    """Write changes in one transaction."""
    for change in changes:
        conn.execute(update(gpu_capacity).where(_open, _c.gpu_uuid == change.gpu_uuid).values(until_at=change.at))
        if change.now is not None:
            conn.execute(
                insert(gpu_capacity).values(
                    gpu_uuid=change.gpu_uuid,
                    node=change.now.node,
                    model=change.now.model,
                    status=change.now.status.value,
                    since_at=change.at,
                )
            )


def between(conn: Connection, edges: Sequence[float]) -> list[CapacitySeconds]:
    """Return the capacity between neighbouring edges."""
    since, until, available = _intervals(conn, edges[0], edges[-1])
    at = np.asarray(edges, np.float64)
    present_s = np.diff(_passed(since, until, at))
    available_s = np.diff(_passed(since[available], until[available], at))
    return [CapacitySeconds(*pair) for pair in zip(present_s.tolist(), available_s.tolist(), strict=True)]


def _passed(since: Times, until: Times, at: Times) -> Times:
    """Return how many seconds of all periods lie before each time: those begun minus those ended by then."""
    return _seconds_after(np.sort(since), at) - _seconds_after(np.sort(until), at)


def _seconds_after(begins: Times, at: Times) -> Times:
    """Return the sum of ``time - begin`` over the begins before each time."""
    count = np.searchsorted(begins, at, side="right")
    sums = np.concatenate([[0.0], np.cumsum(begins - (at[0] if len(at) else 0.0))])
    return np.asarray(count * (at - at[0]) - sums[count])


def available_at(conn: Connection, times: Sequence[float]) -> list[int]:
    """Return how many GPUs could be allocated at each time."""
    if not times:
        return []
    since, until, available = _intervals(conn, min(times), max(times))
    begins, ends = np.sort(since[available]), np.sort(until[available])
    at = np.asarray(times, np.float64)
    counts = np.searchsorted(begins, at, side="right") - np.searchsorted(ends, at, side="right")
    return [int(count) for count in counts.tolist()]


def _intervals(conn: Connection, first: float, last: float) -> tuple[Times, Times, npt.NDArray[np.bool_]]:
    """Return begin, end (infinite: until now) and availability of all periods in a time."""
    touching = (_c.since_at <= last) & or_(_open, _c.until_at > first)
    rows = conn.execute(select(_c.since_at, _c.until_at, _c.status).where(touching)).all()
    since = np.array([max(row.since_at, first) for row in rows], np.float64)
    until = np.array([np.inf if row.until_at is None else row.until_at for row in rows], np.float64)
    return since, until, np.array([row.status == CapacityStatus.AVAILABLE for row in rows], np.bool_)
