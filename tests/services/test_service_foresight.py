"""The pool learns from its estimates: an estimated start is compared with the real one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from pool_world import ANN, World

from gpupool.domain.ids import WorkloadId
from gpupool.services.explain.estimates import CHECK_INTERVAL_S, MIN_WAIT_S
from gpupool.services.ports.store import StartEstimate

TABLE = "select workload, predicted_s, actual_s from start_estimates"


async def why(world: World, ref: str) -> object:
    return await world.services.workloads.why(ANN, ref)


Rows = list[tuple[object, ...]]


async def rows_once(world: World, condition: Callable[[Rows], bool]) -> Rows:
    """Wait until the table of estimates meets a condition: the pool writes it, too, and may be doing so just now."""
    for _ in range(1000):
        if condition(rows := world.rows(TABLE)):
            return rows
        await asyncio.sleep(0.01)
    return world.rows(TABLE)


def test_estimate_is_recorded_once_and_settled_at_start(world: World) -> None:
    async def story() -> None:
        await world.submit(gpus={"count": 2}, max_time="100s", preemptible=False)
        waits = await world.submit(gpus={"count": 1})
        await why(world, waits.id)
        assert not world.rows(TABLE), "it has not waited long enough to say anything"
        await world.pass_time(MIN_WAIT_S + 5)
        await why(world, waits.id)
        await why(world, waits.id)
        assert await rows_once(world, bool) == [(waits.id, pytest.approx(75, abs=3), None)]
        await world.pass_time(5)
        [first] = [w for w in world.now.engine.mirror.workloads.values() if w.id != waits.id]
        await world.end(first)
        await world.services.workloads.wait_reasons.estimates.settle()
        [(workload, _, actual_s)] = await rows_once(world, lambda rows: rows[0][2] is not None)
        assert (workload, actual_s) == (waits.id, pytest.approx(5, abs=3))

    world.do(story())


def test_only_started_workloads_count_and_estimates_survive_restart(world: World) -> None:
    async def story() -> None:
        await world.submit(gpus={"count": 2}, max_time="1h", preemptible=False)
        waits, gives_up = await world.submit(gpus={"count": 1}), await world.submit(gpus={"count": 1})
        for _ in range(10):  # without a question: the pool records it itself
            await world.pass_time(MIN_WAIT_S + CHECK_INTERVAL_S)
            if len(world.rows(TABLE)) == 2:
                break
        found = await rows_once(world, lambda rows: len(rows) == 2)
        assert {row[0] for row in found} == {waits.id, gives_up.id}
        await world.reboot()
        await world.services.workloads.stop(ANN, gives_up.id)
        await world.settle()
        await world.services.workloads.wait_reasons.estimates.settle()
        assert [row[0] for row in await rows_once(world, lambda rows: len(rows) == 1)] == [waits.id]

    world.do(story())


def test_next_estimate_is_corrected_by_earlier_errors(world: World) -> None:
    async def story() -> None:
        assert world.store is not None
        past = [StartEstimate(WorkloadId(f"w{n}"), "default", n, 100.0, 150.0) for n in range(8)]
        await world.store.estimates.save(past)
        await world.submit(gpus={"count": 2}, max_time="1000s", preemptible=False)
        waits = await world.submit(gpus={"count": 1})
        found = await world.services.workloads.why(ANN, waits.id)
        assert found.estimate_s == pytest.approx(1500, abs=5)
        assert "past estimates were 1.5x too early" in found.estimate_basis

    world.do(story())
