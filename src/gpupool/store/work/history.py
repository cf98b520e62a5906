"""Past work: run times, decayed usage, estimated starts, and the deletion of old history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from sqlalchemy import ColumnElement, Connection, delete, exists, or_, select

from gpupool.domain.events import Reason
from gpupool.domain.ids import WorkloadId
from gpupool.domain.work.workload import ReplicaState, WorkloadKind
from gpupool.services.ports.store import PastLease, StartEstimate
from gpupool.store.backends.database import Database, read_method, upsert, write_method
from gpupool.store.schema import tables as t

ROWS_PER_DELETE = 500
MAX_ESTIMATES = 10_000  # that one call may return

_w = t.workloads.c
_r = t.replicas.c
_l = t.leases.c
_e = t.start_estimates.c
_past_lease = (_l.project, _l.user_name, _l.permille, _l.granted_at, _l.released_at)


def runtime_history(conn: Connection, project: str | None, user: str | None, limit: int = 200) -> list[float]:
    """Return the run times of the latest finished replicas in seconds; ``project`` or ``user`` None: of all.

    Programs on other workloads' GPUs (EXEC) are excluded: they free nothing when they end.
    """
    own = [_w.kind != WorkloadKind.EXEC.value]
    own += [_w.project == project] if project is not None else []
    own += [_w.user_name == user] if user is not None else []
    ended = select(_w.id).where(*own, _w.finished_at.is_not(None)).order_by(_w.finished_at.desc()).limit(limit)
    live = select(_w.id).where(*own, t.NOT_ENDED)
    ran = (
        select(_r.finished_at - _r.started_at)
        .where(or_(_r.workload.in_(ended), _r.workload.in_(live)))
        .where(_r.started_at.is_not(None), _r.finished_at.is_not(None))
        .order_by(_r.finished_at.desc())
        .limit(limit)
    )
    return [max(0.0, s) for s in conn.execute(ran).scalars()]


def past_leases(conn: Connection, since: float) -> list[PastLease]:
    """Return leases released since a time, in order of their release."""
    statement = select(*_past_lease).where(_l.released_at > since).order_by(_l.released_at, _l.epoch)
    return [PastLease(*row) for row in conn.execute(statement)]


def past_runs(conn: Connection, limit: int) -> list[PastLease]:
    """Return the latest leases whose replicas succeeded or reached their time limit, oldest first."""
    same = (_r.workload == _l.workload) & (_r.replica_index == _l.replica_index) & (_r.attempt == _l.attempt)
    own_end = or_(_r.state == ReplicaState.SUCCEEDED.value, _r.reason == Reason.TIME_LIMIT.value)
    statement = (
        select(*_past_lease)
        .join_from(t.leases, t.replicas, same)
        .where(_l.released_at.is_not(None), own_end)
        .order_by(_l.released_at.desc())
        .limit(limit)
    )
    return [PastLease(*row) for row in conn.execute(statement)][::-1]


def forget_finished(conn: Connection, finished_before: float, limit: int = 1000) -> list[WorkloadId]:
    """Delete workloads that ended before a time, oldest first, with their replicas, labels and events.

    Workloads that hold a lease, or that a live one depends on, stay; leases stay for accounting.
    """
    holds = exists().where(_l.workload == _w.id, _l.released_at.is_(None))
    old = select(_w.id).where(_w.finished_at < finished_before, ~_not_ended(), ~holds).order_by(_w.finished_at)
    awaited = _awaited(conn)
    found = conn.execute(old.limit(limit + len(awaited))).scalars().all()
    gone = [WorkloadId(key) for key in found if key not in awaited][:limit]
    for start in range(0, len(gone), ROWS_PER_DELETE):
        chunk = gone[start : start + ROWS_PER_DELETE]
        conn.execute(delete(t.events).where(t.events.c.workload.in_(chunk)))
        conn.execute(delete(t.workloads).where(_w.id.in_(chunk)))
    return gone


def _not_ended() -> ColumnElement[bool]:
    return _w.id.in_(select(_w.id).where(t.NOT_ENDED))


def _awaited(conn: Connection) -> set[str]:
    waiting = select(_w.dependencies).where(t.NOT_ENDED, _w.dependencies.is_not(None))
    return {dependency["workload"] for found in conn.execute(waiting).scalars() for dependency in found}


def _save(conn: Connection, estimates: Sequence[StartEstimate]) -> None:
    """Insert or replace, by workload."""
    for estimate in estimates:
        upsert(conn, t.start_estimates, asdict(estimate))


def _drop(conn: Connection, workloads: Sequence[WorkloadId]) -> None:
    """Delete estimates that can no longer be confirmed."""
    conn.execute(delete(t.start_estimates).where(_e.workload.in_(workloads)))


def _newest(conn: Connection, limit: int, *, settled: bool) -> list[StartEstimate]:
    """Return estimates, newest first: those with a known outcome (``settled``), or those without."""
    state = _e.actual_s.is_not(None) if settled else _e.actual_s.is_(None)
    statement = select(t.start_estimates).where(state).order_by(_e.made_at.desc(), _e.workload)
    return [StartEstimate(**row) for row in conn.execute(statement.limit(min(limit, MAX_ESTIMATES))).mappings()]


def _forget(conn: Connection, before: float, most: int) -> int:
    """Delete estimates from before a time, and all but the newest ``most``; return their number."""
    kept = select(_e.workload).order_by(_e.made_at.desc(), _e.workload).limit(most)
    old = delete(t.start_estimates).where((_e.made_at < before) | _e.workload.not_in(kept))
    return int(conn.execute(old).rowcount)


class SqlEstimates:
    """Estimated starts and their outcomes: a bounded table, one row per workload. Implements ``EstimateStore``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    save = write_method(_save)
    drop = write_method(_drop)
    newest = read_method(_newest)
    forget = write_method(_forget)
