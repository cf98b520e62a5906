"""Sums of past hours, days and weeks (UTC), so that a year costs little more to query than a day.

Sums exist by project, by user, by project and model, by project, user and model, and by node and model (``SumFamily``);
other queries read the leases. Requests have neither node nor model. An hour is summed when it is over and can no longer
change. A lease that is still held then contributes its part of that hour; the rest is in the following hours.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum, StrEnum
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Integer,
    and_,
    bindparam,
    case,
    column,
    func,
    select,
    values,
)

from gpupool.domain.usage import UsageFilter
from gpupool.services.ports.usage import OTHERS, Dim, TimeQuery, TimeRow
from gpupool.store.pool.meta import load_meta, save_meta
from gpupool.store.schema.usage_tables import gpu_hours
from gpupool.store.usage.gpu_time import AMOUNTS, HOUR_S, Sums, add_leases, add_requests

DAY_S = 86400
WEEK_S = 7 * DAY_S
MONDAY_S = 4 * DAY_S  # 5 January 1970: weeks begin like those of a timeline in UTC
MARKS = "gpu_hours"  # key in the table ``meta``
FEW_SPANS = 8
SPANS_PER_QUERY = 5_000

_g = gpu_hours.c
COLUMNS = {Dim.PROJECT: _g.project, Dim.USER: _g.user_name, Dim.NODE: _g.node, Dim.MODEL: _g.model}


class SumFamily(StrEnum):
    """A set of sums: its key columns, and how long its hours are stored. Days are never deleted."""

    TOTAL = "total"
    USER = "user"
    PROJECT = "project"
    MEMBER = "member"
    NODE = "node"

    @property
    def dims(self) -> tuple[Dim, ...]:
        """Return the key columns that are not empty."""
        return _DIMS[self]

    @property
    def hours_kept_s(self) -> int:
        """Return how long hours are stored; there are many rows of members and models."""
        return (35 if self is SumFamily.MEMBER else 731) * DAY_S


_DIMS = {
    SumFamily.TOTAL: (Dim.PROJECT,),
    SumFamily.USER: (Dim.USER,),
    SumFamily.PROJECT: (Dim.PROJECT, Dim.MODEL),
    SumFamily.MEMBER: (Dim.PROJECT, Dim.USER, Dim.MODEL),
    SumFamily.NODE: (Dim.NODE, Dim.MODEL),
}


class TimeSource(IntEnum):
    """The source of a part of the time: sums of a step in seconds, or the leases and requests themselves."""

    LEASES = 0
    HOURS = HOUR_S
    DAYS = DAY_S
    WEEKS = WEEK_S

    def start(self, at: float) -> int:
        """Return the start of the step that contains a time."""
        origin = MONDAY_S if self is TimeSource.WEEKS else 0
        return int((at - origin) // self * self + origin)


SUMS = (TimeSource.WEEKS, TimeSource.DAYS, TimeSource.HOURS)


@dataclass(frozen=True, slots=True)
class Marks:
    """The range of the sums: all time before ``until``, but hours only from ``since``.

    Hours of users begin at ``users_since`` if that is later: the migration that added them had no older hours.
    """

    since: int = 0
    until: int = 0
    users_since: int = 0

    def hours_from(self, family: SumFamily, now: int | None = None) -> int:
        """Return the beginning of the first stored hour of a family, in whole days."""
        since = max(self.since, self.users_since) if family is SumFamily.USER else self.since
        return max(since, ((self.until if now is None else now) - family.hours_kept_s) // DAY_S * DAY_S)


def load_marks(conn: Connection) -> Marks:
    """Return the range of the sums; empty if there are none."""
    text = load_meta(conn).get(MARKS)
    return Marks(**json.loads(text)) if text else Marks()


def save_marks(conn: Connection, marks: Marks) -> None:
    """Store the range, in the transaction that writes the sums."""
    save_meta(conn, MARKS, json.dumps(asdict(marks)))


@dataclass(frozen=True, slots=True)
class SourceSpan:
    """A part of one step of a query, read from one source."""

    source: TimeSource
    step: int
    since: float
    until: float


def cover(span: SourceSpan, marks: Marks, hours_from: int, sums: Sequence[TimeSource] = SUMS) -> list[SourceSpan]:
    """Split a time into parts, in order: the longest sums that exist, then shorter ones, then leases for the rest."""
    if span.since >= span.until:
        return []
    if not sums:
        return [span]
    length, *shorter = sums
    begin = max(span.since, hours_from if length is TimeSource.HOURS else 0)
    first, last = length.start(begin), length.start(min(span.until, marks.until))
    if first < begin:
        first += length
    if first >= last:
        return cover(span, marks, hours_from, shorter)
    before, after = (SourceSpan(span.source, span.step, *ends) for ends in ((span.since, first), (last, span.until)))
    whole = SourceSpan(length, span.step, first, last)
    return [*cover(before, marks, hours_from, shorter), whole, *cover(after, marks, hours_from, shorter)]


def gpu_time(conn: Connection, query: TimeQuery) -> list[TimeRow]:
    """Return GPU time between edges, from sums where they suffice, from the leases otherwise."""
    family = family_of(query)
    marks = load_marks(conn) if family else Marks()
    hours_from = marks.hours_from(family) if family else 0
    steps = (
        SourceSpan(TimeSource.LEASES, n, *ends)
        for n, ends in enumerate(zip(query.edges, query.edges[1:], strict=False))
    )
    spans = [part for step in steps for part in cover(step, marks, hours_from)]
    found = Sums(fold=None if query.keep is None else query.folded)
    for span in spans:
        if span.source is TimeSource.LEASES:
            add_leases(conn, found, query, span.step, (span.since, span.until))
            if query.asks_for_requests:
                add_requests(conn, found, query, span.step, (span.since, span.until))
    for source in SUMS if family else ():
        _add_sums(conn, found, query, [span for span in spans if span.source is source])
    return found.rows()


def family_of(query: TimeQuery) -> SumFamily | None:
    """Return the sums that can answer a query; None for workloads, or projects on one node."""
    scope = query.scope
    scoped = {Dim.PROJECT: scope.project, Dim.USER: scope.user, Dim.NODE: scope.node, Dim.MODEL: scope.model}
    needed = {*query.dims, *(dim for dim, name in scoped.items() if name is not None)}
    return next((family for family in SumFamily if needed <= set(family.dims)), None)


def _add_sums(conn: Connection, found: Sums, query: TimeQuery, spans: Sequence[SourceSpan]) -> None:
    """Add the stored sums of spans from one source."""
    if len(spans) > FEW_SPANS:
        _add_many_sums(conn, found, query, spans)
        return
    width, statement = len(query.dims), _sums_of(query.dims, query.scope)
    for span in spans:
        times = {"step_s": span.source.value, "since": int(span.since), "until": int(span.until)}
        for row in conn.execute(statement, times):
            found.add(span.step, tuple(row[:width]), AMOUNTS, row[width:])


@lru_cache(maxsize=64)
def _sums_of(dims: tuple[Dim, ...], scope: UsageFilter) -> Any:
    """Return one cached statement per set of columns: building it takes longer than its execution."""
    keys, amounts = [COLUMNS[dim] for dim in dims], [func.sum(_g[name]) for name in AMOUNTS]
    inside = (_g.step_s == bindparam("step_s"), _g.at >= bindparam("since"), _g.at < bindparam("until"))
    statement = select(*keys, *amounts).where(*inside, *_conditions(TimeQuery((), dims, scope)))
    return statement.group_by(*keys).having(func.count() > 0)


def _add_many_sums(conn: Connection, found: Sums, query: TimeQuery, spans: Sequence[SourceSpan]) -> None:
    """Add the same with one statement for many spans, which must be built each time."""
    for start in range(0, len(spans), SPANS_PER_QUERY):
        chunk = [(span.step, int(span.since), int(span.until)) for span in spans[start : start + SPANS_PER_QUERY]]
        times = values(column("step", Integer), column("since", BigInteger), column("until", BigInteger), name="times")
        wanted = times.data(chunk).cte()
        inside = and_(_g.step_s == spans[0].source.value, _g.at >= wanted.c.since, _g.at < wanted.c.until)
        keys = [_key_column(query, dim) for dim in query.dims]
        amounts = [func.sum(_g[name]) for name in AMOUNTS]
        statement = select(wanted.c.step, *keys, *amounts).select_from(wanted.join(gpu_hours, inside))
        statement = statement.where(*_conditions(query)).group_by(wanted.c.step, *keys)
        for step, *rest in conn.execute(statement):
            found.add(step, tuple(rest[: len(keys)]), AMOUNTS, rest[len(keys) :])


def _key_column(query: TimeQuery, dim: Dim) -> ColumnElement[str]:
    """Return a column, or ``OTHERS`` for names that are not kept: fewer rows than names are read."""
    if query.keep is None or query.keep[0] is not dim:
        return COLUMNS[dim]
    return case((COLUMNS[dim].in_(sorted(query.keep[1])), COLUMNS[dim]), else_=OTHERS).label(f"key_{dim}")


def _conditions(query: TimeQuery) -> Iterator[ColumnElement[bool]]:
    yield _g.family == str(family_of(query))
    scope = query.scope
    wanted = {_g.project: scope.project, _g.user_name: scope.user, _g.node: scope.node, _g.model: scope.model}
    yield from (column == name for column, name in wanted.items() if name is not None)
