"""``PastMoments`` over a database: begins and ends between two moments are counted there, and summed here."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np
from sqlalchemy import ColumnElement, Connection, Integer, Select, and_, case, func, literal, or_, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from gpupool.domain.units import WHOLE_GPU
from gpupool.domain.work.workload import WorkloadKind
from gpupool.services.ports.usage import AllocationSeries, Moments
from gpupool.store.backends.database import Database
from gpupool.store.schema import tables as t

_w = t.workloads.c
_l = t.leases.c
_s = t.lease_shares.c


class SqlMoments:
    """The state of the pool at past moments; implements ``PastMoments``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def waiting(self, moments: Moments) -> list[int]:
        """Return how many workloads waited for their first start at each moment."""
        return await self._database.read(lambda conn: waiting(conn, moments))

    async def held(self, moments: Moments) -> AllocationSeries:
        """Return the held and the fragmented GPUs at each moment."""
        return await self._database.read(lambda conn: held(conn, moments))


def waiting(conn: Connection, moments: Moments) -> list[int]:
    """Count the workloads that were submitted by a moment and had neither started nor ended."""
    left = func.coalesce(_w.started_at, _w.finished_at)
    own = _w.kind != WorkloadKind.EXEC.value
    first, last = moments.first, moments.last
    # Each of the three is read from an index; submissions before the first moment are in the last two.
    submitted = and_(own, _w.created_at > first, _w.created_at <= last)
    before = and_(own, _w.created_at <= first, or_(left.is_(None), left > first))
    ended_later = and_(before, _w.finished_at > first)
    not_ended = and_(before, _w.id.in_(select(_w.id).where(t.NOT_ENDED)))
    changes = [0] * (moments.count + 1)
    for found in (submitted, ended_later, not_ended):
        begin, end = _index(_w.created_at, moments), _index(left, moments)
        statement = select(begin, end, func.count()).where(found, begin < end).group_by(begin, end)
        for since, until, count in conn.execute(statement):
            changes[since] += count
            changes[until] -= count
    return list(accumulate(changes[:-1]))


def held(conn: Connection, moments: Moments) -> AllocationSeries:
    """Return the leased and the free thousandths of the same GPUs at each moment."""
    permille = np.zeros(moments.count + 1, dtype=np.int64)
    begin, end = _index(_l.granted_at, moments), _index(_l.released_at, moments)
    touching = and_(_l.granted_at <= moments.last, or_(_l.released_at.is_(None), _l.released_at > moments.first))
    totals = select(begin, end, func.sum(_l.permille)).where(touching, begin < end).group_by(begin, end)
    for since, until, amount in conn.execute(totals):
        permille[since] += amount
        permille[until] -= amount
    part = _s.permille < WHOLE_GPU
    parts = select(_s.gpu_uuid, begin, end, _s.permille).select_from(t.leases.join(t.lease_shares))
    on_gpus = _on_gpus(conn, parts.where(touching, part, begin < end), moments.count)
    partly = (on_gpus > 0) & (on_gpus < WHOLE_GPU)
    return AllocationSeries(
        held=tuple(np.cumsum(permille)[:-1].tolist()),
        pieces=tuple(((WHOLE_GPU - on_gpus) * partly).sum(axis=0).tolist()),
        partly=tuple(partly.sum(axis=0).tolist()),
    )


def _on_gpus(conn: Connection, parts: Select[Any], count: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Return the thousandths held of each GPU with slices, at each moment: [GPU, moment]."""
    numbers: dict[str, int] = {}
    rows = [
        (numbers.setdefault(gpu, len(numbers)), begin, end, permille)
        for gpu, begin, end, permille in conn.execute(parts)
    ]
    changes = np.zeros((len(numbers), count + 1), dtype=np.int64)
    if rows:
        gpus, begins, ends, amounts = np.array(rows, dtype=np.int64).T
        np.add.at(changes, (gpus, begins), amounts)
        np.add.at(changes, (gpus, ends), -amounts)
    return np.asarray(np.cumsum(changes, axis=1)[:, :-1])


class _whole_part(FunctionElement[int]):  # noqa: N801 - a function of the database, written as such
    """A number without its fraction: a cast truncates in SQLite, but rounds in PostgreSQL."""

    type = Integer()
    inherit_cache = True


@compiles(_whole_part)
def _truncated(element: Any, compiler: Any, **options: Any) -> str:
    return f"CAST(trunc({compiler.process(element.clauses, **options)}) AS INTEGER)"


@compiles(_whole_part, "sqlite")
def _cast(element: Any, compiler: Any, **options: Any) -> str:
    return f"CAST({compiler.process(element.clauses, **options)} AS INTEGER)"


def _index(at: ColumnElement[float | None] | ColumnElement[float], moments: Moments) -> ColumnElement[int]:
    """Select the number of the first moment not before ``at``; one past the last for none, and for NULL."""
    steps = (at - moments.first) / moments.step_s
    whole = _whole_part(steps)
    number = case((steps <= 0, 0), (steps > moments.count - 1, moments.count), (steps > whole, whole + 1), else_=whole)
    return func.coalesce(case((at.is_(None), literal(moments.count)), else_=number), moments.count)
