"""What was foretold of starts and what came of it: a bounded table, one row per workload."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, RowMapping, delete, select

from gpupool.domain.ids import WorkloadId
from gpupool.services.ports import StartEstimate
from gpupool.store import tables as t
from gpupool.store.database import upsert

_e = t.start_estimates.c
MOST_READ = 10_000


def save(conn: Connection, estimates: Sequence[StartEstimate]) -> None:
    """Insert or replace, by workload."""
    for estimate in estimates:
        upsert(
            conn,
            t.start_estimates,
            {
                "workload": estimate.workload,
                "project": estimate.project,
                "made_at": estimate.made_at,
                "predicted_s": estimate.predicted_s,
                "actual_s": estimate.actual_s,
            },
        )


def drop(conn: Connection, workloads: Sequence[WorkloadId]) -> None:
    """Forget those that nothing can come of any more."""
    conn.execute(delete(t.start_estimates).where(_e.workload.in_(workloads)))


def newest(conn: Connection, limit: int, *, settled: bool) -> list[StartEstimate]:
    """The newest first: those of which it is known what came of them, or those of which it is not."""
    state = _e.actual_s.is_not(None) if settled else _e.actual_s.is_(None)
    statement = select(t.start_estimates).where(state).order_by(_e.made_at.desc(), _e.workload)
    return [_of(row) for row in conn.execute(statement.limit(min(limit, MOST_READ))).mappings()]


def forget(conn: Connection, before: float, most: int) -> int:
    """Drop what was made before a time, and all but the newest ``most``; how many those were."""
    kept = select(_e.workload).order_by(_e.made_at.desc(), _e.workload).limit(most)
    old = delete(t.start_estimates).where((_e.made_at < before) | _e.workload.not_in(kept))
    return int(conn.execute(old).rowcount)


def _of(row: RowMapping) -> StartEstimate:
    return StartEstimate(
        WorkloadId(row["workload"]), row["project"], row["made_at"], row["predicted_s"], row["actual_s"]
    )
