"""Reading workloads, replicas, leases and events: each function is one or a few statements on one snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from sqlalchemy import ColumnElement, Connection, Select, case, func, or_, select, tuple_

from gpupool.domain.events import Event
from gpupool.domain.gpu import GpuShare
from gpupool.domain.ids import Epoch, WorkloadId, is_workload_id
from gpupool.domain.workload import Lease, Replica, Workload, WorkloadState
from gpupool.services.ports import EventFilter, LiveState, WorkloadFilter
from gpupool.store import access, bookings, departments, mapping
from gpupool.store import tables as t
from gpupool.store.columns import plain_text

LISTING_LIMIT = 10_000  # rows one call may ask for
EPOCH_FLOOR = "epoch_floor"  # its name in the table ``meta``

_w = t.workloads.c
_by_replica = select(t.replicas).order_by(t.replicas.c.workload, t.replicas.c.replica_index)
_unreleased = t.leases.c.released_at.is_(None)


def live_state(conn: Connection) -> LiveState:
    """Workloads that have not ended (or still hold a lease), all their replicas, and what is leased."""
    holds = _w.id.in_(select(t.leases.c.workload).where(_unreleased))
    not_ended = _w.id.in_(select(_w.id).where(t.NOT_ENDED))
    wanted = select(t.workloads).where(or_(not_ended, holds)).order_by(_w.created_at, _w.id)
    live = select(_w.id).where(t.NOT_ENDED).union(select(t.leases.c.workload).where(_unreleased))
    replicas = _by_replica.where(t.replicas.c.workload.in_(live))
    return LiveState(
        workloads=tuple(_workloads(conn, wanted)),
        replicas=tuple(map(mapping.replica_of, conn.execute(replicas).mappings().all())),
        leases=tuple(_leases(conn, _unreleased)),
        projects=tuple(access.projects(conn)),
        departments=tuple(departments.departments(conn)),
        users=tuple(access.users(conn)),
        bookings=tuple(bookings.bookings(conn)),
        nodes=tuple(access.nodes(conn)),
        last_epoch=Epoch(last_epoch(conn)),
        last_event_id=conn.execute(select(func.max(t.events.c.id))).scalar() or 0,
    )


def last_epoch(conn: Connection) -> int:
    """The highest epoch that has been granted, or counts as such since a copy of the database was put back."""
    granted = conn.execute(select(func.max(t.leases.c.epoch))).scalar() or 0
    return max(granted, int(access.meta(conn).get(EPOCH_FLOOR, "0")))


def workload_by_ref(conn: Connection, ref: str, user: str | None) -> Workload | None:
    """By id (deleted ones too), or by name: the newest not deleted one, the user's own first."""
    if is_workload_id(ref):
        return _first(conn, select(t.workloads).where(_w.id == ref))
    named = select(t.workloads).where(_w.name == ref, _w.deleted_at.is_(None))
    own_first = case((_w.user_name == user, 0), else_=1)
    return _first(conn, named.order_by(own_first, _w.created_at.desc(), _w.id.desc()).limit(1))


def workload_by_request(conn: Connection, request_id: str) -> Workload | None:
    """The workload a request made."""
    return _first(conn, select(t.workloads).where(_w.request_id == request_id))


def workloads(conn: Connection, wanted: WorkloadFilter) -> list[Workload]:
    """Newest first. States are asked one by one: each answer then comes sorted and bounded out of an index."""
    states: Iterable[WorkloadState | None] = dict.fromkeys(wanted.states) or (None,)
    limit = _bounded(wanted.limit)
    found = [w for state in states for w in _workloads(conn, _listing(wanted, state).limit(limit))]
    if len(wanted.states) > 1:
        found.sort(key=lambda w: (w.created_at, w.id), reverse=True)
    return found[:limit]


def _listing(wanted: WorkloadFilter, state: WorkloadState | None) -> Select[tuple[object, ...]]:
    conditions: list[ColumnElement[bool]] = [_has_label(label, value) for label, value in wanted.labels]
    if state is not None:
        conditions.append(_w.state == state.value)
    if wanted.project is not None:
        conditions.append(_w.project == wanted.project)
    if wanted.user is not None:
        conditions.append(_w.user_name == wanted.user)
    if wanted.name is not None:
        conditions.append(_w.name == wanted.name)
    if not wanted.include_deleted:
        conditions.append(_w.deleted_at.is_(None))
    if wanted.before is not None:
        conditions.append(tuple_(_w.created_at, _w.id) < wanted.before)
    return select(t.workloads).where(*conditions).order_by(_w.created_at.desc(), _w.id.desc())


def _has_label(label: str, value: str) -> ColumnElement[bool]:
    labels = t.workload_labels.c
    return _w.id.in_(
        select(labels.workload).where(labels.label == plain_text(label), labels.value == plain_text(value))
    )


def replicas_of(conn: Connection, workload: WorkloadId) -> list[Replica]:
    """All replicas of a workload by index."""
    statement = _by_replica.where(t.replicas.c.workload == workload)
    return [mapping.replica_of(row) for row in conn.execute(statement).mappings().all()]


def leases_of(conn: Connection, workload: WorkloadId) -> list[Lease]:
    """All leases a workload has held, oldest first."""
    return _leases(conn, t.leases.c.workload == workload)


def events(conn: Connection, wanted: EventFilter) -> list[Event]:
    """Events oldest first; with ``newest`` the last ones instead of the next ones."""
    e = t.events.c
    statement = select(t.events).where(e.id > wanted.after_id)
    if wanted.workload is not None:
        statement = statement.where(e.workload == wanted.workload)
    if wanted.reasons:
        statement = statement.where(e.reason.in_([reason.value for reason in wanted.reasons]))
    statement = statement.order_by(e.id.desc() if wanted.newest else e.id).limit(_bounded(wanted.limit))
    found = [mapping.event_of(row) for row in conn.execute(statement).mappings().all()]
    return found[::-1] if wanted.newest else found


def _workloads(conn: Connection, statement: Select[tuple[object, ...]]) -> list[Workload]:
    return [mapping.workload_of(row) for row in conn.execute(statement).mappings().all()]


def _first(conn: Connection, statement: Select[tuple[object, ...]]) -> Workload | None:
    row = conn.execute(statement).mappings().first()
    return None if row is None else mapping.workload_of(row)


def _leases(conn: Connection, condition: ColumnElement[bool]) -> list[Lease]:
    shares = _shares(conn, condition)
    statement = select(t.leases).where(condition).order_by(t.leases.c.epoch)
    return [mapping.lease_of(row, shares.get(row["epoch"], ())) for row in conn.execute(statement).mappings().all()]


def _shares(conn: Connection, condition: ColumnElement[bool]) -> dict[int, Sequence[GpuShare]]:
    s = t.lease_shares.c
    statement = select(t.lease_shares).join(t.leases).where(condition).order_by(s.epoch, s.position)
    by_epoch = groupby(conn.execute(statement).mappings().all(), key=lambda row: row["epoch"])
    return {epoch: [mapping.share_of(row) for row in rows] for epoch, rows in by_epoch}


def _bounded(limit: int) -> int:
    return max(0, min(limit, LISTING_LIMIT))
