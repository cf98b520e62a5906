"""Summing of past hours and days: at most a day at once, written exactly once even after a crash."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, delete, func, insert, literal, select

from gpupool.services.ports.usage import Dim, TimeQuery, TimeRow
from gpupool.store.backends.database import insert_all
from gpupool.store.schema import tables as t
from gpupool.store.schema.usage_tables import gpu_hours
from gpupool.store.usage.gpu_hours import COLUMNS, DAY_S, WEEK_S, Marks, SumFamily, TimeSource, load_marks, save_marks
from gpupool.store.usage.gpu_time import AMOUNTS, HOUR_S, Sums, add_leases, add_requests

_g = gpu_hours.c
_ALL = (Dim.PROJECT, Dim.USER, Dim.NODE, Dim.MODEL)
_KEYS = ("family", "project", "user_name", "node", "model")
_NOBODY = {column.name: "" for column in COLUMNS.values()}


@dataclass(frozen=True, slots=True)
class Chunk:
    """Sums of the hours from ``before.until`` to ``after.until``, and of the day that ends there.

    The day of families ``of_hours`` is the sum of its hours.
    """

    before: Marks
    after: Marks
    rows: tuple[dict[str, Any], ...]
    of_hours: tuple[SumFamily, ...]


def sum_up(conn: Connection, until: float) -> Chunk | None:
    """Return the sums of the next hours that end by ``until``, at most one day; None if all are summed."""
    limit = int(until // HOUR_S) * HOUR_S
    marks = load_marks(conn)
    begin = marks.until or _first_day(conn, limit)
    end = min(limit, begin // DAY_S * DAY_S + DAY_S)
    if begin >= end:
        return None
    kept = [family for family in SumFamily if end > marks.hours_from(family, limit)]
    spans = [(HOUR_S, at, kept) for at in range(begin, end, HOUR_S)] if kept else []
    if end % DAY_S == 0:
        spans.append((DAY_S, end - DAY_S, [family for family in SumFamily if family not in kept]))
    rows = tuple(row for step_s, at, families in spans for row in _rows(conn, step_s, at, families))
    return Chunk(marks, replace(marks, since=marks.since or begin, until=end), rows, tuple(kept))


def _first_day(conn: Connection, limit: int) -> int:
    """Return the beginning of the day of the first lease or request."""
    columns = (t.leases.c.granted_at, t.workloads.c.created_at)
    found = [conn.execute(select(func.min(column))).scalar() for column in columns]
    return int(min((at for at in found if at is not None), default=limit) // DAY_S) * DAY_S


def _rows(conn: Connection, step_s: int, at: int, families: list[SumFamily]) -> Iterator[dict[str, Any]]:
    found, span = Sums(), (at, at + step_s)
    query = TimeQuery(span, _ALL)
    add_leases(conn, found, query, 0, span)
    add_requests(conn, found, query, 0, span)
    for family in families:
        names = [COLUMNS[dim].name for dim in family.dims]
        for row in _of_family(found, family):
            amounts = {name: getattr(row, name) for name in AMOUNTS}
            keys = dict(zip(names, row.keys, strict=True))
            yield {"family": family.value, "step_s": step_s, "at": at, **_NOBODY, **keys, **amounts}


def _of_family(found: Sums, family: SumFamily) -> list[TimeRow]:
    """Return all rows by the family's columns; requests have no node."""
    sums, places = Sums(), [_ALL.index(dim) for dim in family.dims]
    for (step, key), amounts in found.found.items():
        if family is not SumFamily.NODE or key[_ALL.index(Dim.NODE)]:
            sums.add(step, tuple(key[place] for place in places), AMOUNTS, amounts)
    return sums.rows()


def write(conn: Connection, chunk: Chunk) -> bool:
    """Write sums and their range together; return False if another process has written them meanwhile."""
    if load_marks(conn) != chunk.before:
        return False
    until = chunk.after.until
    # Such rows exist only if the clock was set back, or another process filled the table.
    _forget(conn, HOUR_S, chunk.before.until, until)
    if until % DAY_S == 0:
        _forget(conn, DAY_S, until - DAY_S, until)
    insert_all(conn, insert(gpu_hours), chunk.rows)
    if until % DAY_S == 0:
        _sum_sums(conn, HOUR_S, DAY_S, until, chunk.of_hours)
    if until == TimeSource.WEEKS.start(until):
        _forget(conn, WEEK_S, until - WEEK_S, until)
        _sum_sums(conn, DAY_S, WEEK_S, until, tuple(SumFamily))
    for family in SumFamily:
        old = (_g.family == family.value, _g.step_s == HOUR_S, _g.at < chunk.after.hours_from(family))
        conn.execute(delete(gpu_hours).where(*old))
    save_marks(conn, chunk.after)
    return True


def _forget(conn: Connection, step_s: int, since: int, until: int) -> None:
    for family in SumFamily:
        rows = (_g.family == family.value, _g.step_s == step_s, _g.at >= since, _g.at < until)
        conn.execute(delete(gpu_hours).where(*rows))


def _sum_sums(conn: Connection, shorter_s: int, step_s: int, until: int, families: tuple[SumFamily, ...]) -> None:
    """Sum a day, or a week, from its parts: requests of the first part may already be deleted."""
    since = until - step_s
    for family in families:
        parts = (_g.family == family.value, _g.step_s == shorter_s, _g.at >= since, _g.at < until)
        keys, amounts = [_g[name] for name in _KEYS], [func.sum(_g[name]) for name in AMOUNTS]
        found = select(literal(step_s), literal(since), *keys, *amounts).where(*parts).group_by(*keys)
        conn.execute(insert(gpu_hours).from_select(["step_s", "at", *_KEYS, *AMOUNTS], found))


def reopen(conn: Connection, now: float) -> bool:
    """Delete sums of hours that are not over because the clock was set back; return whether there were any."""
    marks = load_marks(conn)
    if marks.until <= now:
        return False
    until = int(now // HOUR_S) * HOUR_S
    save_marks(conn, replace(marks, since=min(marks.since, until), until=until))
    return True
