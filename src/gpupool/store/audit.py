"""Looking back at events: by who, why, what and when, the newest first, each answer out of an index.

Most events are the pool's own routine (work granted, started, ended). What is rare is in partial indexes, which cost
the routine nothing; what is common is met soon on the way back through time.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, TextClause, and_, or_, select

from gpupool.domain.events import Event, Reason
from gpupool.services.ports import AuditFilter
from gpupool.store import mapping
from gpupool.store import tables as t
from gpupool.store.columns import plain_text

MOST_ROWS = 10_000  # that one call may ask for
POOL = "pool"
ROUTINE = frozenset({Reason.SUBMITTED, Reason.GRANTED, Reason.STARTED, Reason.EXITED, Reason.RELEASED})

_e = t.events.c
_Condition = ColumnElement[bool] | TextClause


def audit(conn: Connection, wanted: AuditFilter) -> list[Event]:
    """Newest first, at most ``limit``. Reasons are asked one by one where an index has them: each answer is bounded."""
    limit = max(0, min(wanted.limit, MOST_ROWS))
    if not wanted.reasons or wanted.workload or wanted.target or ROUTINE & set(wanted.reasons):
        return _read(conn, wanted, _reasons(wanted.reasons), limit)
    found = [
        e
        for reason in set(wanted.reasons)
        for e in _read(conn, wanted, [_e.reason == reason.value, t.NOT_ROUTINE], limit)
    ]
    return sorted(found, key=lambda event: (event.at, event.id), reverse=True)[:limit]


def _reasons(reasons: tuple[Reason, ...]) -> list[_Condition]:
    return [_e.reason.in_([reason.value for reason in reasons])] if reasons else []


def _read(conn: Connection, wanted: AuditFilter, why: list[_Condition], limit: int) -> list[Event]:
    statement = select(t.events).where(*_conditions(wanted), *why).order_by(_e.at.desc(), _e.id.desc()).limit(limit)
    return [mapping.event_of(row) for row in conn.execute(statement).mappings().all()]


def _conditions(wanted: AuditFilter) -> list[_Condition]:
    conditions: list[_Condition] = []
    if wanted.workload is not None:
        conditions.append(_e.workload == wanted.workload)
    if wanted.target is not None:
        conditions += [_e.target == plain_text(wanted.target), t.HAS_TARGET]
    if wanted.actor is not None:
        conditions.append(_e.actor == plain_text(wanted.actor))
    if wanted.actor not in {None, POOL}:
        conditions.append(t.BY_SOMEBODY)
    if wanted.since is not None:
        conditions.append(_e.at >= wanted.since)
    if wanted.until is not None:
        conditions.append(_e.at < wanted.until)
    if wanted.before is not None:
        at, last = wanted.before
        conditions.append(and_(_e.at <= at, or_(_e.at < at, _e.id < last)))
    return conditions
