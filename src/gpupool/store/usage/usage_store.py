"""GPU time and wait times over a database."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, func, select

from gpupool.domain.units import WHOLE_GPU
from gpupool.domain.usage import UsageFilter
from gpupool.services.ports.usage import Loss, TimeQuery, TimeRow, Waits
from gpupool.store.backends.database import Database
from gpupool.store.schema import tables as t
from gpupool.store.usage import gpu_hours, gpu_time, rollup, wait_days

NAMES_PER_QUERY = 500

_w = t.workloads.c


class SqlUsageBooks:
    """GPU time from leases and their sums; implements ``UsageBooks``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def gpu_time(self, query: TimeQuery) -> Sequence[TimeRow]:
        """Return exact GPU time; no rows for keys without any."""
        return await self._database.read(lambda conn: gpu_hours.gpu_time(conn, query))

    async def leases_held_at(self, moment: float) -> Sequence[tuple[str, str, int]]:
        """Return how many leases each user held in each project at a time."""
        return await self._database.read(lambda conn: gpu_time.leases_held_at(conn, moment))

    async def names_of(self, workloads: Sequence[str]) -> dict[str, tuple[str, str, str]]:
        """Return name, project and user of workloads by id; the name is empty if the history is deleted."""
        return await self._database.read(lambda conn: _names(conn, workloads))

    async def waits(self, since: float, until: float, scope: UsageFilter) -> Waits:
        """Return the waits of workloads with their own GPUs, submitted between two times."""
        return await self._database.read(lambda conn: wait_days.read(conn, since, until, scope))

    async def losses(self, since: float, until: float, scope: UsageFilter) -> Sequence[Loss]:
        """Return the ends between two times that lost work; ``scope`` filters by project, user and node."""
        return await self._database.read(lambda conn: _losses(conn, since, until, scope))

    async def sum_next(self, until: float) -> bool:
        """Sum the next hours that are over, at most a day; return False if none are left before ``until``.

        The sums are computed concurrently with the writer, which only stores them. Waits are stored by days.
        """
        stored = await self._database.write(lambda conn: wait_days.store_next(conn, until))
        chunk = await self._database.read(lambda conn: rollup.sum_up(conn, until))
        if chunk is None:
            return stored
        return await self._database.write(lambda conn: rollup.write(conn, chunk))

    async def summed_until(self) -> float:
        """Return the end of the summed hours; 0 if there are none."""
        return (await self._database.read(gpu_hours.load_marks)).until

    async def reopen(self, now: float) -> bool:
        """Delete sums of hours that are not over because the clock was set back; return whether there were any."""
        return await self._database.write(lambda conn: rollup.reopen(conn, now) | wait_days.reopen(conn, now))


def _names(conn: Connection, workloads: Sequence[str]) -> dict[str, tuple[str, str, str]]:
    found: dict[str, tuple[str, str, str]] = {}
    for start in range(0, len(workloads), NAMES_PER_QUERY):
        chunk = workloads[start : start + NAMES_PER_QUERY]
        held = select(t.leases.c.workload, func.max(t.leases.c.project), func.max(t.leases.c.user_name))
        held = held.where(t.leases.c.workload.in_(chunk)).group_by(t.leases.c.workload)
        found |= {key: ("", project, user) for key, project, user in conn.execute(held)}
        known = select(_w.id, _w.name, _w.project, _w.user_name).where(_w.id.in_(chunk))
        found |= {key: (name, project, user) for key, name, project, user in conn.execute(known)}
    return found


def _losses(conn: Connection, since: float, until: float, scope: UsageFilter) -> list[Loss]:
    held = t.leases.c
    lost = (held.project, held.user_name, held.lost_s * held.permille / WHOLE_GPU)
    statement = select(*lost).where(t.LOST_WORK, held.released_at >= since, held.released_at < until)
    for column, name in ((held.project, scope.project), (held.user_name, scope.user), (held.node, scope.node)):
        if name is not None:
            statement = statement.where(column == name)
    return [Loss._make(row) for row in conn.execute(statement)]
