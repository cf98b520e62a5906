"""``UsageBooks`` over a database."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, func, select

from gpupool.domain.events import Event
from gpupool.domain.usage import Scope
from gpupool.domain.workload import WorkloadKind
from gpupool.services.usage_books import TimeQuery, TimeRow, Wait
from gpupool.store import access, gpu_hours, gpu_time, summing, writes
from gpupool.store import tables as t
from gpupool.store.database import Database

RATES = "cost_rates"  # their name in the table ``meta``
NAMES_PER_QUERY = 500

_w = t.workloads.c


class SqlUsageBooks:
    """What was held, from leases and sums of them; the methods are those of ``UsageBooks``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def gpu_time(self, query: TimeQuery) -> Sequence[TimeRow]:
        """GPU time, exactly; nothing for what was not held at all."""
        return await self._database.read(lambda conn: gpu_hours.gpu_time(conn, query))

    async def leases_held_at(self, moment: float) -> Sequence[tuple[str, str, int]]:
        """How many leases each user held in each project at a time."""
        return await self._database.read(lambda conn: gpu_time.leases_held_at(conn, moment))

    async def names_of(self, workloads: Sequence[str]) -> dict[str, tuple[str, str, str]]:
        """Name, project and user of workloads by id; the name of one whose history is gone is empty."""
        return await self._database.read(lambda conn: _names(conn, workloads))

    async def waits(self, since: float, until: float, scope: Scope) -> Sequence[Wait]:
        """Workloads submitted between two times that want GPUs of their own, oldest first."""
        return await self._database.read(lambda conn: _waits(conn, since, until, scope))

    async def load_rates(self) -> str | None:
        """The cost rates as they were saved."""
        return (await self._database.read(access.meta)).get(RATES)

    async def save_rates(self, document: str, event: Event) -> None:
        """Insert or replace."""

        def both(conn: Connection) -> None:
            access.save_meta(conn, RATES, document)
            writes.append_events(conn, (event,))

        await self._database.write(both)

    async def sum_next(self, until: float) -> bool:
        """Sum the next hours that are over, a day's at most; False when there are none left before ``until``.

        The sums are made beside the writer, who only has to put them down.
        """
        chunk = await self._database.read(lambda conn: summing.sum_up(conn, until))
        return chunk is not None and await self._database.write(lambda conn: summing.write(conn, chunk))

    async def summed_until(self) -> float:
        """How far hours are summed; 0 when none are."""
        return (await self._database.read(gpu_hours.load_marks)).until

    async def reopen(self, now: float) -> bool:
        """Forget sums of hours that are not over after all: the clock was set back. Whether there were any."""
        return await self._database.write(lambda conn: summing.reopen(conn, now))


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


def _waits(conn: Connection, since: float, until: float, scope: Scope) -> list[Wait]:
    statement = (
        select(_w.project, _w.user_name, _w.created_at, _w.started_at, _w.finished_at)
        .where(_w.created_at >= since, _w.created_at < until, _w.kind != WorkloadKind.EXEC.value)
        .order_by(_w.created_at)
    )
    if scope.project is not None:
        statement = statement.where(_w.project == scope.project)
    if scope.user is not None:
        statement = statement.where(_w.user_name == scope.user)
    return [Wait._make(row) for row in conn.execute(statement)]
