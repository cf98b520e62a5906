"""Rows of measurements: added up by minute and hour exactly once, and deleted when they are old."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from store_values import run_async, wid

from gpupool.domain.errors import GpupoolError
from gpupool.domain.nodes.telemetry import GpuRollup, NodeRollup, ReplicaRollup, Rollups, RollupStep
from gpupool.domain.work.efficiency import MeasuredUse
from gpupool.store import SqlStore, open_store

MINUTE, HOUR = RollupStep.MINUTE, RollupStep.HOUR
AT = 1_800_000_000  # the beginning of an hour
DAY = 86_400

GPU = GpuRollup(MINUTE, AT, "GPU-1", "n1", 40, 10.0, 60.0, 1000.0, 2000, 4000.0, 50.0, 1500.0)
REPLICA = ReplicaRollup(MINUTE, AT, wid(1), 0, 1, 40, 10.0, 25.0, 100.0, 200, 5.0, 300, 1000, 2000)
NODE = NodeRollup(MINUTE, AT, "n1", 40, 20.0, 500.0, 600)


def with_store(target: str, scenario: Callable[[SqlStore], Awaitable[None]]) -> None:
    async def opened() -> None:
        store = await open_store(target)
        try:
            await scenario(store)
        finally:
            await store.close()

    run_async(opened())


async def gpu(store: SqlStore, step: RollupStep = MINUTE) -> list[GpuRollup]:
    return list(await store.use_rows.of_gpu("GPU-1", step, 0, 1e11))


def test_rows_of_the_same_minute_add_up(target: str) -> None:
    """Computed manually: 10 + 4 busy seconds of 60; (40 x 1000 + 20 x 400) / 60 MiB; the highest of maxima."""

    async def scenario(store: SqlStore) -> None:
        await store.use_rows.save(Rollups((GPU,), (REPLICA,), (NODE,)), {"n1": 40})
        more = GpuRollup(MINUTE, AT, "GPU-1", "n1", 20, 4.0, 90.0, 400.0, 700, 1000.0, 45.0, 1200.0)
        rest = replace(REPLICA, samples=20, busy_s=5.0, idle_s=15.0, gpu_memory_mean_mib=400.0, gpu_memory_max_mib=900)
        node = NodeRollup(MINUTE, AT, "n1", 20, 1.0, 200.0, 900)
        await store.use_rows.save(Rollups((more,), (rest,), (node,)), {"n1": 60, "n2": 7})
        assert await gpu(store) == [
            GpuRollup(MINUTE, AT, "GPU-1", "n1", 60, 14.0, 90.0, 800.0, 2000, 5000.0, 50.0, 1400.0)
        ]
        assert list(await store.use_rows.of_replica(wid(1), 0, MINUTE, 0, 1e11)) == [
            ReplicaRollup(MINUTE, AT, wid(1), 0, 1, 60, 15.0, 40.0, 200.0, 900, 10.0, 300, 2000, 4000)
        ]
        assert list(await store.use_rows.of_node("n1", HOUR, 0, 1e11)) == [
            NodeRollup(HOUR, AT, "n1", 60, 21.0, 400.0, 900)
        ]
        assert await store.use_rows.written() == {"n1": 60, "n2": 7}

    with_store(target, scenario)


def test_total_of_workloads_is_that_of_all_replicas_and_attempts(target: str) -> None:
    async def scenario(store: SqlStore) -> None:
        second = replace(REPLICA, index=1, at=AT + 7200, gpu_memory_max_mib=900, memory_max_mib=100)
        retried = replace(REPLICA, attempt=2, at=AT + 60)
        other = replace(REPLICA, workload=wid(2))
        await store.use_rows.save(Rollups((), (REPLICA, second, retried, other)), {})
        found = await store.use_rows.total_of([wid(1), wid(3)])
        assert found == {wid(1): MeasuredUse(120, 30.0, 75.0, 15.0, 900, 300)}

    with_store(target, scenario)


def test_hour_is_sum_of_its_minutes(target: str) -> None:
    async def scenario(store: SqlStore) -> None:
        minutes = tuple(replace(GPU, at=AT + 60 * n, busy_s=float(n)) for n in range(61))
        await store.use_rows.save(Rollups(minutes[:30]), {})
        await store.use_rows.save(Rollups(minutes[30:]), {})
        hours = await gpu(store, HOUR)
        assert [(row.at, row.samples, row.busy_s) for row in hours] == [(AT, 2400, 1770.0), (AT + 3600, 40, 60.0)]
        assert [row.at for row in await store.use_rows.of_gpu("GPU-1", MINUTE, AT + 60, AT + 180)] == [
            AT + 60,
            AT + 120,
        ]

    with_store(target, scenario)


def test_value_missing_in_one_part_is_taken_from_the_other(target: str) -> None:
    async def scenario(store: SqlStore) -> None:
        silent = replace(GPU, samples=20, energy_j=None, temperature_max_c=None, sm_clock_mean_mhz=None)
        await store.use_rows.save(Rollups((silent,)), {})
        await store.use_rows.save(Rollups((silent,)), {})
        row = (await gpu(store))[0]
        assert (row.samples, row.energy_j, row.temperature_max_c, row.sm_clock_mean_mhz) == (40, None, None, None)
        for part in (GPU, silent):
            await store.use_rows.save(Rollups((part,)), {})
        row = (await gpu(store))[0]
        assert (row.energy_j, row.temperature_max_c, row.sm_clock_mean_mhz) == (4000.0, 50.0, 1500.0)
        unseen = replace(REPLICA, samples=0, gpu_memory_mean_mib=0.0)
        await store.use_rows.save(Rollups((), (unseen, unseen)), {})
        assert (await store.use_rows.of_replica(wid(1), 0, MINUTE, 0, 1e11))[0].samples == 0

    with_store(target, scenario)


def test_rows_and_progress_are_written_atomically(target: str) -> None:
    async def scenario(store: SqlStore) -> None:
        await store.use_rows.save(Rollups((GPU,)), {"n1": 1})
        broken = replace(GPU, gpu_uuid="GPU-2", samples=None)  # type: ignore[arg-type]
        with pytest.raises(GpupoolError):
            await store.use_rows.save(Rollups((GPU, broken)), {"n1": 2})
        assert ((await gpu(store)), await store.use_rows.written()) == ([GPU], {"n1": 1})

    with_store(target, scenario)


def test_old_rows_are_deleted_oldest_first(target: str) -> None:
    async def scenario(store: SqlStore) -> None:
        days = [AT + DAY * n for n in range(20)]
        rows = Rollups(
            tuple(replace(GPU, at=at) for at in days),
            tuple(replace(REPLICA, at=at) for at in days),
            tuple(replace(NODE, at=at) for at in days),
        )
        await store.use_rows.save(rows, {"n1": 1})
        assert await store.use_rows.forget(MINUTE, days[5], limit=2) == 2 + 2 + 5  # all of a node at once
        assert (await gpu(store))[0].at == days[2]
        while await store.use_rows.forget(MINUTE, days[5], limit=2):
            pass
        assert [row.at for row in await gpu(store)] == days[5:]
        assert len(await store.use_rows.of_replica(wid(1), 0, MINUTE, 0, 1e11)) == 15
        assert len(await store.use_rows.of_node("n1", MINUTE, 0, 1e11)) == 15
        assert len(await gpu(store, HOUR)) == 20

    with_store(target, scenario)
