"""What past work tells: how long it ran, what it used, and when it may be forgotten."""

from __future__ import annotations

import math
from statistics import median

from sqlalchemy import ColumnElement, Connection, delete, exists, or_, select

from gpupool.domain.events import Reason
from gpupool.domain.ids import WorkloadId
from gpupool.domain.workload import ReplicaState, WorkloadKind
from gpupool.services.ports import PastLease, RuntimeHistory
from gpupool.store import tables as t

ROWS_PER_DELETE = 500

_w = t.workloads.c
_r = t.replicas.c
_l = t.leases.c


def runtime_history(conn: Connection, project: str | None, user: str | None, limit: int) -> RuntimeHistory | None:
    """Of the latest finished replicas of the newest finished workloads, and of those of live ones; None: of all.

    Programs on other workloads' GPUs (EXEC) are left out: they free nothing when they end.
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
    seconds = sorted(max(0.0, s) for s in conn.execute(ran).scalars())
    if not seconds:
        return None
    p90, p25, p75 = (seconds[math.ceil(part * len(seconds)) - 1] for part in (0.9, 0.25, 0.75))
    return RuntimeHistory(len(seconds), median(seconds), p90, p25, p75)


def past_runs(conn: Connection, limit: int) -> list[PastLease]:
    """The latest leases under which replicas succeeded or ran for as long as they may, the oldest first."""
    same = (_r.workload == _l.workload) & (_r.replica_index == _l.replica_index) & (_r.attempt == _l.attempt)
    own_end = or_(_r.state == ReplicaState.SUCCEEDED.value, _r.reason == Reason.TIME_LIMIT.value)
    statement = (
        select(_l.project, _l.user_name, _l.permille, _l.granted_at, _l.released_at)
        .join_from(t.leases, t.replicas, same)
        .where(_l.released_at.is_not(None), own_end)
        .order_by(_l.released_at.desc())
        .limit(limit)
    )
    return [PastLease(*row) for row in conn.execute(statement)][::-1]


def forget_finished(conn: Connection, finished_before: float, limit: int) -> list[WorkloadId]:
    """Drop workloads that ended before a time, oldest first, with their replicas, labels and events.

    Those that hold a lease, or that a live workload waits for, stay; leases stay for accounting.
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
