"""GPU capacity over time, compared with a plain sum over its intervals."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, delete
from store_values import run_async
from test_migrations import make_at

from gpupool.domain.nodes.capacity import (
    CapacityChange,
    CapacitySeconds,
    CapacityStatus,
    GpuCapacity,
    changes_between,
)
from gpupool.store import open_store
from gpupool.store.backends import sqlite
from gpupool.store.schema.usage_tables import gpu_capacity
from gpupool.store.usage.capacity import available_at, between, record

STATUSES = st.none() | st.sampled_from(CapacityStatus)
CHANGES = st.lists(st.tuples(st.integers(0, 50), st.sampled_from("abc"), STATUSES), max_size=12)
EDGES = st.lists(st.integers(0, 60), min_size=2, max_size=6, unique=True).map(sorted)


def gpu(uuid: str, status: CapacityStatus = CapacityStatus.AVAILABLE) -> GpuCapacity:
    return GpuCapacity(uuid, "n", "T4", status)


def status_at(changes: list[CapacityChange], uuid: str, time: float) -> CapacityStatus | None:
    last = [change for change in changes if change.gpu_uuid == uuid and change.at <= time]
    return last[-1].now.status if last and last[-1].now is not None else None


@settings(max_examples=60, deadline=None)
@given(rows=CHANGES, edges=EDGES)
def test_capacity_equals_plain_sum(
    engine: Engine, rows: list[tuple[int, str, CapacityStatus | None]], edges: list[int]
) -> None:
    made = [
        CapacityChange(uuid, float(at), None if status is None else gpu(uuid, status))
        for at, uuid, status in sorted(rows, key=lambda row: row[0])
    ]
    with engine.begin() as conn:
        conn.execute(delete(gpu_capacity))
        for change in made:
            record(conn, [change])
        found = between(conn, [float(edge) for edge in edges])
        counts = available_at(conn, [float(edge) for edge in edges])
    seen = {(uuid, time): status_at(made, uuid, time) for uuid in "abc" for time in range(61)}
    for (begin, end), step in zip(pairwise(edges), found, strict=True):
        held = [status for (_, time), status in seen.items() if begin <= time < end and status is not None]
        available = sum(status is CapacityStatus.AVAILABLE for status in held)
        assert step == CapacitySeconds(pytest.approx(len(held)), pytest.approx(available))
    assert counts == [sum(seen[uuid, edge] is CapacityStatus.AVAILABLE for uuid in "abc") for edge in edges]


def test_changes_transform_one_state_into_the_other() -> None:
    before = {"a": gpu("a"), "b": gpu("b")}
    after = {"b": gpu("b", CapacityStatus.FAILED), "c": gpu("c")}
    found = changes_between(before, after, 5.0)
    assert {change.gpu_uuid: change.now for change in found} == {"a": None, "b": after["b"], "c": after["c"]}
    assert changes_between(after, after, 6.0) == []


def test_capacity_is_stored_and_deleted_in_each_database(target: str) -> None:
    async def run() -> None:
        store = await open_store(target)
        try:
            capacity = store.capacity
            await capacity.record([CapacityChange("a", 10.0, gpu("a")), CapacityChange("b", 10.0, gpu("b"))])
            await capacity.record([CapacityChange("a", 20.0, None)])
            assert [one.gpu_uuid for one in await capacity.present()] == ["b"]
            assert await capacity.between([0.0, 10.0, 30.0]) == [CapacitySeconds(0, 0), CapacitySeconds(30, 30)]
            await capacity.forget_before(25.0)
            assert await capacity.between([0.0, 30.0]) == [CapacitySeconds(20, 20)]
        finally:
            await store.close()

    run_async(run())


def test_older_database_counts_current_gpus_since_first_lease(tmp_path: Path) -> None:
    path = tmp_path / "pool.db"
    make_at(path, "0009")
    engine = sqlite.make_engine(path, foreign_keys=False)
    report = {"name": "n", "gpus": [{"uuid": "GPU-1", "model": "T4"}, {"uuid": "GPU-2", "model": "T4"}]}
    with engine.begin() as conn:
        conn.exec_driver_sql(
            "INSERT INTO nodes (name, state, report, cordon_reason) VALUES ('n', 'up', ?, '')", (json.dumps(report),)
        )
        conn.exec_driver_sql(
            "INSERT INTO leases (epoch, workload, replica_index, attempt, project, user_name, node, cpus, memory_mib,"
            " permille, granted_at) VALUES (1, 'w0000000001', 0, 1, 'default', 'ada', 'n', 0, 0, 1000, 100.0)"
        )
    engine.dispose()

    async def run() -> None:
        store = await open_store(path)
        try:
            assert await store.capacity.between([0.0, 100.0, 110.0]) == [
                CapacitySeconds(0, 0),
                CapacitySeconds(20, 20),
            ]
        finally:
            await store.close()

    run_async(run())
