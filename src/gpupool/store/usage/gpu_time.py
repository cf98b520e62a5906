"""GPU time directly from leases, requests and measurements: the part of each that lies in a time.

Measurements are stored by hours. If an hour lies only partly in a time, a lease's part of it counts in proportion. The
database adds everything up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Double,
    FromClause,
    Subquery,
    and_,
    bindparam,
    case,
    cast,
    func,
    or_,
    select,
    union_all,
)
from sqlalchemy import literal as value

from gpupool.domain.units import WHOLE_GPU
from gpupool.domain.usage import UsageFilter
from gpupool.domain.work.workload import WorkloadKind
from gpupool.services.ports.usage import Dim, TimeQuery, TimeRow
from gpupool.store.schema import tables as t
from gpupool.store.schema.usage_tables import (
    DAY_S,
    FORTNIGHT_S,
    LONG_HELD,
    LONG_REQUESTED,
    LONGER_HELD,
    LONGER_REQUESTED,
    gpu_models,
    replica_use,
)

# Fields of ``TimeRow``, in its order.
AMOUNTS = ("allocated_s", "used_s", "idle_s", "measured_s", "requested_s", "leases")
_PLACE = {name: place for place, name in enumerate(AMOUNTS)}
HOUR_S = 3600
Key = tuple[str, ...]
Names = tuple[str, ...]
SINCE, UNTIL, NOW, FIRST_HOUR = (bindparam(name, type_=Double) for name in ("since", "until", "now", "first_hour"))

_l = t.leases.c
_s = t.lease_shares.c
_w = t.workloads.c
_u = replica_use.c
_model = func.coalesce(gpu_models.c.model, "")
_OF_LEASE: dict[Dim, ColumnElement[Any]] = {
    Dim.PROJECT: _l.project,
    Dim.USER: _l.user_name,
    Dim.NODE: _l.node,
    Dim.MODEL: _model,
    Dim.WORKLOAD: _l.workload,
}
_OF_REQUEST: dict[Dim, ColumnElement[Any]] = {
    Dim.PROJECT: _w.project,
    Dim.USER: _w.user_name,
    Dim.NODE: value(""),
    Dim.MODEL: value(""),
    Dim.WORKLOAD: _w.id,
}


@dataclass(slots=True)
class Sums:
    """Amounts by step and key, added up from several sources. ``fold`` combines keys."""

    found: dict[tuple[int, Key], list[float]] = field(default_factory=dict)
    fold: Callable[[Key], Key] | None = None

    def add(self, step: int, key: Key, names: Iterable[str], amounts: Sequence[float]) -> None:
        """Add some of ``AMOUNTS``."""
        key = key if self.fold is None else self.fold(key)
        cell = self.found.setdefault((step, key), [0.0] * len(AMOUNTS))
        for name, amount in zip(names, amounts, strict=True):
            cell[_PLACE[name]] += amount

    def rows(self) -> list[TimeRow]:
        """Return all amounts, by step and key."""
        return [
            TimeRow(step, key, held, used, idle, measured, requested, int(leases))
            for (step, key), (held, used, idle, measured, requested, leases) in sorted(self.found.items())
        ]


def add_leases(conn: Connection, sums: Sums, query: TimeQuery, step: int, span: tuple[float, float]) -> None:
    """Add held and measured GPU time of a time that lies in one step of the query."""
    for names, statement in (_held(query.dims, query.scope), _measured(query.dims, query.scope)):
        _add(conn, sums, query, step, span, (names, statement))


def add_requests(conn: Connection, sums: Sums, query: TimeQuery, step: int, span: tuple[float, float]) -> None:
    """Add requested GPU time of a time that lies in one step of the query."""
    _add(conn, sums, query, step, span, _asked_for(query.dims, query.scope))


def _add(
    conn: Connection, sums: Sums, query: TimeQuery, step: int, span: tuple[float, float], what: tuple[Names, Any]
) -> None:
    names, statement = what
    width, (since, until) = len(query.dims), span
    moments = {"since": since, "until": until, "now": query.now, "first_hour": since // HOUR_S * HOUR_S}
    for row in conn.execute(statement, moments):
        sums.add(step, tuple(row[:width]), names, row[width:])


# Statements are cached per set of columns: building one takes longer than its execution.


@lru_cache(maxsize=64)
def _held(dims: tuple[Dim, ...], scope: UsageFilter) -> tuple[Names, Any]:
    """Select GPU seconds held, and leases granted; a lease over several models counts for its first one."""
    held = _leases_in()
    granted = and_(_l.granted_at >= SINCE, _l.granted_at < UNTIL, func.coalesce(_s.position, 0) == 0)
    seconds = _part(_l.granted_at, _l.released_at) * func.coalesce(_s.permille, 0)
    sums = (func.sum(seconds) / WHOLE_GPU, func.sum(case((granted, 1), else_=0)))
    return ("allocated_s", "leases"), _of_leases(dims, scope, sums, t.leases.join(held, held.c.epoch == _l.epoch))


@lru_cache(maxsize=64)
def _measured(dims: tuple[Dim, ...], scope: UsageFilter) -> tuple[Names, Any]:
    """Select measurements of leases; replicas without measurements are excluded.

    A program on the GPUs of another's lease has its own rows without a lease: its use is also in that lease's rows.
    """
    same = and_(_l.workload == _u.workload, _l.replica_index == _u.replica_index, _l.attempt == _u.attempt)
    begin, end = _larger(_l.granted_at, _u.at), _smaller(func.coalesce(_l.released_at, NOW), _u.at + HOUR_S)
    in_hour = _seconds(begin, _smaller(end, NOW))
    seconds = _seconds(_larger(begin, SINCE), _smaller(_smaller(end, NOW), UNTIL))
    part = case((in_hour > 0, seconds / in_hour), else_=0.0) * _s.permille
    whole = case((_l.permille > 0, _l.permille), else_=1)
    sums = (
        func.sum(_u.busy_s * part / whole),
        func.sum(_u.idle_s * part) / WHOLE_GPU,
        func.sum(_u.samples * part) / WHOLE_GPU,
    )
    hours = (_u.step_s == HOUR_S, _u.at >= FIRST_HOUR, _u.at < UNTIL, or_(_u.busy_s > 0, _u.idle_s > 0))
    statement = _of_leases(dims, scope, sums, replica_use.join(t.leases, same))
    return ("used_s", "idle_s", "measured_s"), statement.where(*hours, _s.permille.is_not(None))


def _of_leases(
    dims: tuple[Dim, ...], scope: UsageFilter, sums: Sequence[ColumnElement[Any]], leases: FromClause
) -> Any:
    shares = leases.outerjoin(t.lease_shares, _s.epoch == _l.epoch)
    keys = [_OF_LEASE[dim] for dim in dims]
    wanted = {_l.project: scope.project, _l.user_name: scope.user, _l.node: scope.node, _model: scope.model}
    return (
        select(*keys, *sums)
        .select_from(shares.outerjoin(gpu_models, gpu_models.c.gpu_uuid == _s.gpu_uuid))
        .where(*(column == name for column, name in wanted.items() if name is not None))
        .group_by(*keys)
        .having(func.count() > 0)
    )


def _leases_in() -> Subquery:
    """Select the leases held in a time, and those that ended at once; each kind from its own index."""
    began, later = _l.granted_at, _l.released_at >= SINCE
    kinds = (
        and_(later, _l.released_at < UNTIL + DAY_S, _l.released_at - began <= DAY_S),
        and_(LONG_HELD, began >= SINCE - FORTNIGHT_S, later),
        and_(LONGER_HELD, later),
        _l.released_at.is_(None),
    )
    return union_all(*(select(_l.epoch).where(began < UNTIL, kind) for kind in kinds)).subquery("held")


def leases_held_at(conn: Connection, moment: float) -> list[tuple[str, str, int]]:
    """Return leases granted before a time and not released by then, by project and user."""
    held = _leases_in()
    statement = select(_l.project, _l.user_name, func.count()).join_from(t.leases, held, held.c.epoch == _l.epoch)
    statement = statement.where(or_(_l.released_at.is_(None), _l.released_at > SINCE))
    moments = {"since": moment, "until": moment}
    found = conn.execute(statement.group_by(_l.project, _l.user_name), moments)
    return [(project, user, count) for project, user, count in found]


@lru_cache(maxsize=64)
def _asked_for(dims: tuple[Dim, ...], scope: UsageFilter) -> tuple[Names, Any]:
    """Select requests from submission to end: the GPUs of all replicas that may run together."""
    began, later = _w.created_at, _w.finished_at > SINCE
    kinds = (
        and_(later, _w.finished_at < UNTIL + DAY_S, _w.finished_at - began <= DAY_S),
        and_(LONG_REQUESTED, began >= SINCE - FORTNIGHT_S, later),
        and_(LONGER_REQUESTED, later),
        t.NOT_ENDED,  # nearly all of this comes from an index: no row is read
    )
    own = [_w.kind != WorkloadKind.EXEC.value, began < UNTIL]
    wanted = {_w.project: scope.project, _w.user_name: scope.user}
    own += [column == name for column, name in wanted.items() if name is not None]
    keys = [_OF_REQUEST[dim].label(f"key_{dim}") for dim in dims]
    asked = (_part(_w.created_at, _w.finished_at) * _asked()).label("asked")
    found = union_all(*(select(*keys, asked).where(*own, kind) for kind in kinds)).subquery("requests")
    names = [found.c[f"key_{dim}"] for dim in dims]
    total = func.sum(found.c.asked) / WHOLE_GPU
    return ("requested_s",), select(*names, total).group_by(*names).having(func.count() > 0)


def _asked() -> ColumnElement[int]:
    """Select thousandths of GPUs; memory requests count as on the largest GPU that the pool ever had."""
    its = t.workloads.alias("its")
    spec = its.c.spec
    largest = select(func.coalesce(func.max(gpu_models.c.memory_mib), 1)).scalar_subquery()
    memory = _number(spec["gpus", "memory_mib"])
    needed = (memory * WHOLE_GPU + largest - 1) // largest
    part = case((memory.is_(None), _number(spec["gpus", "permille"])), (needed < WHOLE_GPU, needed), else_=WHOLE_GPU)
    together, all_of_it = _number(spec["parallelism"]), _number(spec["completions"])
    width: ColumnElement[int] = case((together < all_of_it, together), else_=all_of_it)
    count = _number(spec["gpus", "count"])
    looked_up = select(count * part * width).where(its.c.id == _w.id).correlate(t.workloads).scalar_subquery()
    return func.coalesce(_w.asked_permille, looked_up)


def _number(found: ColumnElement[Any]) -> ColumnElement[int]:
    """Cast a number of a document to 64 bits: a product of such numbers may exceed 32 bits."""
    number: ColumnElement[int] = cast(found.as_integer(), BigInteger)
    return number


# --- parts of a time ------------------------------------------------------------------------------------------------


def _part(begin: ColumnElement[Any], end: ColumnElement[Any]) -> ColumnElement[Any]:
    """Select the seconds that lie in the time; an unfinished row lasts until now."""
    return _seconds(_larger(begin, SINCE), _smaller(func.coalesce(end, NOW), UNTIL))


def _seconds(begin: ColumnElement[Any], end: ColumnElement[Any]) -> ColumnElement[Any]:
    return case((end > begin, end - begin), else_=0.0)


def _larger(one: ColumnElement[Any], other: ColumnElement[Any]) -> ColumnElement[Any]:
    return case((one > other, one), else_=other)


def _smaller(one: ColumnElement[Any], other: ColumnElement[Any]) -> ColumnElement[Any]:
    return case((one < other, one), else_=other)
