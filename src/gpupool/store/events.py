"""Events in the database: appending, listing in order, and audit queries, each answered from an index.

Most events are routine of the pool (grants, starts, ends). Rare events are in partial indexes, which cost the routine
nothing; frequent ones are found soon when reading backwards in time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy import ColumnElement, Connection, RowMapping, TextClause, and_, func, insert, or_, select

from gpupool.domain.decode import decode
from gpupool.domain.events import Event, Reason
from gpupool.services.ports.store import AuditFilter, EventFilter, SeenBy
from gpupool.store.backends.database import Database, insert_all
from gpupool.store.schema import tables as t
from gpupool.store.schema.columns import Columns, plain_text

MAX_ROWS = 10_000  # that one call may return
POOL = "pool"
ROUTINE = frozenset({Reason.SUBMITTED, Reason.GRANTED, Reason.STARTED, Reason.EXITED, Reason.RELEASED})

_e = t.events.c
_Condition = ColumnElement[bool] | TextClause
_insert_event = insert(t.events)


def append_events(conn: Connection, events: Sequence[Event]) -> int:
    """Write events in order; return the id of the last, 0 for none."""
    if len(events) == 1:
        key = conn.execute(_insert_event, _row_of(events[0])).inserted_primary_key
        return int(key[0]) if key else 0
    insert_all(conn, _insert_event, [_row_of(event) for event in events])
    return conn.execute(select(func.max(_e.id))).scalar_one() if events else 0


async def write_with_events(database: Database, events: Sequence[Event], work: Callable[[Connection], object]) -> None:
    """Run ``work`` and append the events, in one transaction."""

    def both(conn: Connection) -> None:
        work(conn)
        append_events(conn, events)

    await database.write(both)


def _row_of(event: Event) -> Columns:
    """Return the row of ``events``; the database assigns the id."""
    return {
        "at": event.at,
        "actor": plain_text(event.actor),
        "reason": event.reason.value,
        "message": plain_text(event.message),
        "workload": event.workload,
        "replica_index": event.index,
        "target": plain_text(event.target),
    }


def _event_of(row: RowMapping) -> Event:
    return decode(Event, {**row, "index": row["replica_index"]})


def listing(conn: Connection, wanted: EventFilter) -> list[Event]:
    """Return events, oldest first; with ``newest`` the last ones instead of the next ones."""
    statement = select(t.events).where(_e.id > wanted.after_id, *_reasons(wanted.reasons))
    if wanted.workload is not None:
        statement = statement.where(_e.workload == wanted.workload)
    if wanted.seen_by is not None:
        statement = statement.where(visible(wanted.seen_by))
    statement = statement.order_by(_e.id.desc() if wanted.newest else _e.id).limit(_bounded(wanted.limit))
    found = [_event_of(row) for row in conn.execute(statement).mappings().all()]
    return found[::-1] if wanted.newest else found


def audit(conn: Connection, wanted: AuditFilter) -> list[Event]:
    """Return events, newest first, at most ``limit``. Indexed reasons are queried one by one, so each is bounded."""
    limit = _bounded(wanted.limit)
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
    return [_event_of(row) for row in conn.execute(statement).mappings().all()]


def visible(seen_by: SeenBy) -> ColumnElement[bool]:
    """Return the condition for events that this user may see."""
    user, w = plain_text(seen_by.user), t.workloads.c
    own = select(w.id).where(or_(w.user_name == user, w.project.in_(seen_by.projects)))
    of_nodes = and_(_e.actor == POOL, _e.target.startswith("node "))
    return or_(_e.actor == user, _e.target == f"user {user}", of_nodes, _e.workload.in_(own))


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
    if wanted.seen_by is not None:
        conditions.append(visible(wanted.seen_by))
    if wanted.before is not None:
        at, last = wanted.before
        conditions.append(and_(_e.at <= at, or_(_e.at < at, _e.id < last)))
    return conditions


def _bounded(limit: int) -> int:
    return max(0, min(limit, MAX_ROWS))
