"""The pool learns from its estimates: what was foretold of a start is compared with what came of it."""

from __future__ import annotations

import asyncio

import pytest
from pool_world import ANN, World

from gpupool.domain.ids import WorkloadId
from gpupool.services.foresight import LOOK_EVERY_S, NOTED_AFTER_S
from gpupool.services.ports import StartEstimate

TABLE = "select workload, predicted_s, actual_s from start_estimates"


async def why(world: World, ref: str) -> object:
    return await world.services.workloads.why(ANN, ref)


async def noted(world: World) -> list[tuple[object, ...]]:
    """What is in the database as soon as something is: the pool looks by itself, too, and may be writing just now."""
    for _ in range(1000):
        if rows := world.rows(TABLE):
            return rows
        await asyncio.sleep(0.01)
    return []


def test_an_estimate_is_noted_once_and_settled_when_it_starts(world: World) -> None:
    async def story() -> None:
        await world.submit(gpus={"count": 2}, max_time="100s", preemptible=False)
        waits = await world.submit(gpus={"count": 1})
        await why(world, waits.id)
        assert not world.rows(TABLE), "it has not waited long enough to say anything"
        await world.pass_time(NOTED_AFTER_S + 5)
        await why(world, waits.id)
        await why(world, waits.id)
        assert await noted(world) == [(waits.id, pytest.approx(75, abs=3), None)]
        await world.pass_time(5)
        [first] = [w for w in world.now.engine.mirror.workloads.values() if w.id != waits.id]
        await world.end(first)
        await world.services.workloads.waiting.foresight.settle()
        [(workload, _, actual_s)] = world.rows(TABLE)
        assert (workload, actual_s) == (waits.id, pytest.approx(5, abs=3))

    world.do(story())


def test_what_never_started_teaches_nothing_and_a_restart_forgets_nothing(world: World) -> None:
    async def story() -> None:
        await world.submit(gpus={"count": 2}, max_time="1h", preemptible=False)
        waits, gives_up = await world.submit(gpus={"count": 1}), await world.submit(gpus={"count": 1})
        for _ in range(10):  # nobody asks: the pool does itself
            await world.pass_time(NOTED_AFTER_S + LOOK_EVERY_S)
            if len(world.rows(TABLE)) == 2:
                break
        assert {row[0] for row in world.rows(TABLE)} == {waits.id, gives_up.id}
        await world.reboot()
        await world.services.workloads.stop(ANN, gives_up.id)
        await world.settle()
        await world.services.workloads.waiting.foresight.settle()
        assert [row[0] for row in world.rows(TABLE)] == [waits.id]

    world.do(story())


def test_the_next_estimate_is_corrected_by_the_errors_of_the_last_ones(world: World) -> None:
    async def story() -> None:
        assert world.store is not None
        past = [StartEstimate(WorkloadId(f"w{n}"), "default", n, 100.0, 150.0) for n in range(8)]
        await world.store.save_estimates(past)
        await world.submit(gpus={"count": 2}, max_time="1000s", preemptible=False)
        waits = await world.submit(gpus={"count": 1})
        found = await world.services.workloads.why(ANN, waits.id)
        assert found.estimate_s == pytest.approx(1500, abs=5)
        assert "past estimates were 1.5x too early" in found.estimate_basis

    world.do(story())
