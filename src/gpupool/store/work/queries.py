"""Queries of workloads, replicas and leases: each is one or a few statements on one snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, case, func, or_, select, tuple_

from gpupool.domain.ids import Epoch, WorkloadId, is_workload_id
from gpupool.domain.nodes.gpu import GpuShare
from gpupool.domain.work.search import NEWEST_FIRST, CommandScope, SearchField, SearchWord, SortKey
from gpupool.domain.work.workload import GpuLease, Replica, Workload, WorkloadState
from gpupool.services.ports.store import LiveState, WorkloadFilter
from gpupool.store.pool.meta import load_meta
from gpupool.store.pool.rows import DEPARTMENTS, NODES, PROJECTS, RESERVATIONS, SERVICES, USERS, WORKSPACES
from gpupool.store.schema import tables as t
from gpupool.store.schema.columns import plain_text
from gpupool.store.work import mapping

LISTING_LIMIT = 10_000  # rows that one call may return
NAMES_PER_QUERY = 500

_w = t.workloads.c
_by_replica = select(t.replicas).order_by(t.replicas.c.workload, t.replicas.c.replica_index)
_unreleased = t.leases.c.released_at.is_(None)


def live_state(conn: Connection) -> LiveState:
    """Return workloads that have not ended (or still hold a lease), all their replicas, and the open leases."""
    holds = _w.id.in_(select(t.leases.c.workload).where(_unreleased))
    not_ended = _w.id.in_(select(_w.id).where(t.NOT_ENDED))
    wanted = select(t.workloads).where(or_(not_ended, holds)).order_by(_w.created_at, _w.id)
    live = select(_w.id).where(t.NOT_ENDED).union(select(t.leases.c.workload).where(_unreleased))
    replicas = _by_replica.where(t.replicas.c.workload.in_(live))
    return LiveState(
        workloads=tuple(_workloads(conn, wanted)),
        replicas=tuple(map(mapping.replica_of, conn.execute(replicas).mappings().all())),
        leases=tuple(_leases(conn, _unreleased)),
        projects=tuple(PROJECTS.all(conn)),
        departments=tuple(DEPARTMENTS.all(conn)),
        users=tuple(USERS.all(conn)),
        reservations=tuple(RESERVATIONS.all(conn)),
        workspaces=tuple(WORKSPACES.all(conn)),
        services=tuple(SERVICES.all(conn)),
        nodes=tuple(NODES.all(conn)),
        last_epoch=Epoch(last_epoch(conn)),
        last_event_id=conn.execute(select(func.max(t.events.c.id))).scalar() or 0,
    )


def last_epoch(conn: Connection) -> int:
    """Return the highest granted epoch, or the higher floor that a restore has set."""
    granted = conn.execute(select(func.max(t.leases.c.epoch))).scalar() or 0
    return max(granted, int(load_meta(conn).get(t.EPOCH_FLOOR, "0")))


def known(conn: Connection, workloads: Sequence[WorkloadId]) -> frozenset[WorkloadId]:
    """Return the workloads with a row or a lease: leases outlive their workload's history."""
    found: set[WorkloadId] = set()
    for start in range(0, len(workloads), NAMES_PER_QUERY):
        chunk = workloads[start : start + NAMES_PER_QUERY]
        found.update(conn.execute(select(_w.id).where(_w.id.in_(chunk))).scalars())
        found.update(conn.execute(select(t.leases.c.workload).where(t.leases.c.workload.in_(chunk))).scalars())
    return frozenset(found)


def lease_holder(conn: Connection, epoch: Epoch) -> tuple[WorkloadId, int, int] | None:
    """Return the workload, index and attempt that an epoch was granted to."""
    lease = t.leases.c
    row = conn.execute(select(lease.workload, lease.replica_index, lease.attempt).where(lease.epoch == epoch)).first()
    return None if row is None else (WorkloadId(row[0]), row[1], row[2])


def workload_by_ref(conn: Connection, ref: str, user: str | None = None) -> Workload | None:
    """Return a workload by id (even a deleted one) or by name: the newest one, the user's own first."""
    if is_workload_id(ref):
        return _first(conn, select(t.workloads).where(_w.id == ref))
    named = select(t.workloads).where(_w.name == ref, _w.deleted_at.is_(None))
    own_first = case((_w.user_name == user, 0), else_=1)
    return _first(conn, named.order_by(own_first, _w.created_at.desc(), _w.id.desc()).limit(1))


def workload_by_request(conn: Connection, request_id: str) -> Workload | None:
    """Return the workload that a request created."""
    return _first(conn, select(t.workloads).where(_w.request_id == request_id))


def workloads(conn: Connection, wanted: WorkloadFilter) -> list[Workload]:
    """Return one page of a listing, by default newest first."""
    limit = max(0, min(wanted.limit, LISTING_LIMIT))
    if wanted.sort != NEWEST_FIRST or wanted.offset:
        return list(_workloads(conn, _listing(wanted).order_by(*_order(wanted)).limit(limit).offset(wanted.offset)))
    # States are queried one by one: each answer then comes sorted and bounded from an index.
    states: Iterable[WorkloadState | None] = dict.fromkeys(wanted.states) or (None,)
    newest = (_w.created_at.desc(), _w.id.desc())
    asked = [replace(wanted, states=() if state is None else (state,)) for state in states]
    found = [w for one in asked for w in _workloads(conn, _listing(one).order_by(*newest).limit(limit))]
    if len(wanted.states) > 1:
        found.sort(key=lambda w: (w.created_at, w.id), reverse=True)
    return found[:limit]


def count_workloads(conn: Connection, wanted: WorkloadFilter) -> int:
    """Return the number of workloads on all pages of a listing."""
    return conn.execute(select(func.count()).select_from(t.workloads).where(*_conditions(wanted))).scalar_one()


def _listing(wanted: WorkloadFilter) -> Select[tuple[object, ...]]:
    conditions = _conditions(wanted)
    if wanted.before is not None:
        conditions.append(tuple_(_w.created_at, _w.id) < wanted.before)
    return select(t.workloads).where(*conditions)


def _conditions(wanted: WorkloadFilter) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = [_has_label(label, value) for label, value in wanted.labels]
    if wanted.states:
        conditions.append(_w.state.in_([state.value for state in wanted.states]))
    if wanted.project is not None:
        conditions.append(_w.project == wanted.project)
    if wanted.user is not None:
        conditions.append(_w.user_name == wanted.user)
    if wanted.name is not None:
        conditions.append(_w.name == wanted.name)
    if wanted.kinds:
        conditions.append(_w.kind.in_([kind.value for kind in wanted.kinds]))
    if not wanted.include_deleted:
        conditions.append(_w.deleted_at.is_(None))
    return conditions + [_matches(word, wanted.commands_of) for word in wanted.search]


def _matches(word: SearchWord, commands_of: CommandScope) -> ColumnElement[bool]:
    return or_(*(_contains(field, word.text, commands_of) for field in word.fields))


_SEARCHED: dict[SearchField, ColumnElement[str]] = {
    SearchField.NAME: _w.name,
    SearchField.ID: _w.id,
    SearchField.STATE: _w.state,
    SearchField.KIND: _w.kind,
    SearchField.PROJECT: _w.project,
    SearchField.USER: _w.user_name,
}


def _contains(field: SearchField, text: str, commands_of: CommandScope) -> ColumnElement[bool]:
    text = plain_text(text)
    if field is SearchField.LABEL:
        labels = t.workload_labels.c
        pair = labels.label + "=" + labels.value
        return _w.id.in_(select(labels.workload).where(pair.icontains(text, autoescape=True)))
    if field is not SearchField.COMMAND:
        return _SEARCHED[field].icontains(text, autoescape=True)
    command: ColumnElement[bool] = _w.spec[("program", "argv")].as_string().icontains(text, autoescape=True)
    if commands_of.everybody:
        return command
    return or_(_w.user_name == commands_of.user, _w.project.in_(commands_of.projects)) & command


def _order(wanted: WorkloadFilter) -> Iterable[ColumnElement[object]]:
    columns: dict[SortKey, ColumnElement[Any]] = {
        SortKey.CREATED: _w.created_at,
        SortKey.NAME: func.lower(_w.name),
        SortKey.STATE: _w.state,
        SortKey.PROJECT: _w.project,
        SortKey.USER: _w.user_name,
        SortKey.GPUS: _w.asked_permille,
        SortKey.RAN: func.coalesce(_w.finished_at, wanted.now) - _w.started_at,
        SortKey.ENDED: _w.finished_at,
    }
    column = columns[wanted.sort.key]
    yield (column.desc() if wanted.sort.descending else column.asc()).nulls_last()
    yield _w.created_at.desc()
    yield _w.id.desc()


def _has_label(label: str, value: str) -> ColumnElement[bool]:
    labels = t.workload_labels.c
    return _w.id.in_(
        select(labels.workload).where(labels.label == plain_text(label), labels.value == plain_text(value))
    )


def replicas_of(conn: Connection, workload: WorkloadId) -> list[Replica]:
    """Return all replicas of a workload by index."""
    statement = _by_replica.where(t.replicas.c.workload == workload)
    return [mapping.replica_of(row) for row in conn.execute(statement).mappings().all()]


def leases_of(conn: Connection, workload: WorkloadId) -> list[GpuLease]:
    """Return all leases of a workload, oldest first."""
    return _leases(conn, t.leases.c.workload == workload)


def _workloads(conn: Connection, statement: Select[tuple[object, ...]]) -> list[Workload]:
    return [mapping.workload_of(row) for row in conn.execute(statement).mappings().all()]


def _first(conn: Connection, statement: Select[tuple[object, ...]]) -> Workload | None:
    row = conn.execute(statement).mappings().first()
    return None if row is None else mapping.workload_of(row)


def _leases(conn: Connection, condition: ColumnElement[bool]) -> list[GpuLease]:
    shares = _shares(conn, condition)
    statement = select(t.leases).where(condition).order_by(t.leases.c.epoch)
    return [mapping.lease_of(row, shares.get(row["epoch"], ())) for row in conn.execute(statement).mappings().all()]


def _shares(conn: Connection, condition: ColumnElement[bool]) -> dict[int, Sequence[GpuShare]]:
    s = t.lease_shares.c
    statement = select(t.lease_shares).join(t.leases).where(condition).order_by(s.epoch, s.position)
    by_epoch = groupby(conn.execute(statement).mappings().all(), key=lambda row: row["epoch"])
    return {epoch: [mapping.share_of(row) for row in rows] for epoch, rows in by_epoch}
