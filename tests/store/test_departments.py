"""Departments and project weights are read back unchanged; past leases are listed since a time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine
from store_values import COUNTS, LEASES, NAMES, PROJECTS, SENTENCES, event, run_async
from test_round_trip import with_database

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.ids import Epoch
from gpupool.domain.people.access import Department, Project
from gpupool.domain.work.workload import GpuLease
from gpupool.services.ports.store import PastLease
from gpupool.store import open_store
from gpupool.store.pool import rows
from gpupool.store.schema import tables as t
from gpupool.store.work import history, mapping

WEIGHTS = st.floats(0, 1e6)
DEPARTMENTS = st.builds(Department, NAMES, st.none() | COUNTS, WEIGHTS, st.none() | COUNTS, SENTENCES)
SHARED = st.builds(
    replace,
    PROJECTS,
    department=NAMES,
    weight=WEIGHTS,
    model_quotas=st.lists(st.tuples(NAMES, COUNTS), max_size=3).map(tuple),
)
few = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@few
@given(DEPARTMENTS, SHARED)
def test_departments_and_project_weights_are_read_back_unchanged(
    engine: Engine, department: Department, project: Project
) -> None:
    def check(conn: object) -> None:
        rows.DEPARTMENTS.save(conn, department)  # type: ignore[arg-type]
        rows.DEPARTMENTS.save(conn, department)  # type: ignore[arg-type]
        rows.PROJECTS.save(conn, project)  # type: ignore[arg-type]
        assert rows.DEPARTMENTS.all(conn) == [department]  # type: ignore[arg-type]
        assert rows.PROJECTS.all(conn) == [project]  # type: ignore[arg-type]

    with_database(engine, check)


@few
@given(st.lists(LEASES, max_size=4, unique_by=lambda lease: lease.epoch), st.floats(0, 100))
def test_past_leases_are_those_released_since(engine: Engine, leases: list[GpuLease], since: float) -> None:
    numbered = [replace(lease, epoch=Epoch(i + 1), attempt=i) for i, lease in enumerate(leases)]
    ended = [replace(lease, released_at=30.0 * i) for i, lease in enumerate(numbered)]

    def check(conn: object) -> None:
        for lease in ended:
            conn.execute(t.leases.insert(), mapping.lease_row(lease))  # type: ignore[attr-defined]
        assert history.past_leases(conn, since) == [  # type: ignore[arg-type]
            PastLease(lease.project, lease.user, lease.permille, lease.granted_at, lease.released_at or 0.0)
            for lease in ended
            if (lease.released_at or 0.0) > since
        ]

    with_database(engine, check)


def test_department_exists_until_it_is_deleted(target: str) -> None:
    async def main() -> None:
        store = await open_store(target)
        await store.departments.save(Department("research", 6000, 2.0, 8000), event())
        assert (await store.load_live()).departments == (Department("research", 6000, 2.0, 8000),)
        await store.departments.delete("research", event())
        assert (await store.load_live()).departments == ()
        with pytest.raises(GpupoolError) as caught:
            await store.departments.delete("research", event())
        assert caught.value.code is ErrorCode.UNKNOWN_DEPARTMENT
        await store.close()

    run_async(main())
