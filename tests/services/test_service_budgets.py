"""Budgets of GPU hours over real services: new work waits when they are used up, until the next month."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pool_world import ADMIN, ANN, BOB, World

from gpupool.domain.errors import GpupoolError
from gpupool.domain.people.access import Project, ProjectRules
from gpupool.domain.work.workload import Workload, WorkloadState
from gpupool.scheduling.explain.wait_reason import WaitCode

QUEUED, RUNNING = WorkloadState.QUEUED, WorkloadState.RUNNING
HOUR = 3600.0
UNTIL_FEBRUARY = 16 * 24 * HOUR + 16 * HOUR  # the clock starts on Friday 2027-01-15 at 08:00 UTC


async def project(world: World, **rules: Any) -> None:
    await world.services.access.create_project(ADMIN, Project("batch", rules=ProjectRules(**rules)))


async def why(world: World, ref: str) -> Any:
    return await world.services.workloads.why(ADMIN, ref)


async def until(world: World, look: Callable[[], Awaitable[bool]]) -> None:
    """Let time pass until the budgets are read: the queries run in threads that ``settle`` does not know."""
    for _ in range(1_000):
        if await look():
            return
        await asyncio.sleep(0.001)
        await world.pass_time(1)
    raise AssertionError("the budgets were not read")


async def used(world: World, at_least: float) -> None:
    async def is_read() -> bool:
        return (world.services.access.gpu_hours_used("batch") or 0.0) >= at_least

    await until(world, is_read)


async def runs(world: World, workload: Workload) -> None:
    async def is_running() -> bool:
        return await world.state(workload.id) is RUNNING

    await until(world, is_running)


def test_new_work_waits_for_the_next_month_and_running_work_continues(world: World) -> None:
    async def story() -> None:
        await project(world, gpu_hours=2.0)
        first = await world.submit(project="batch")
        await world.pass_time(HOUR)
        second = await world.submit(project="batch")
        assert await world.state(second.id) is RUNNING
        await world.pass_time(HOUR)
        await used(world, 2.9)
        await world.end(second)
        third = await world.submit(project="batch")
        assert await world.state(third.id) is QUEUED
        assert await world.state(first.id) is RUNNING
        told = await why(world, third.id)
        assert told.code is WaitCode.GPU_HOURS
        assert "of 2 GPU hours this month" in told.sentence
        assert "2027-02-01 00:00 (UTC)" in told.sentence
        assert told.estimate_s == pytest.approx(UNTIL_FEBRUARY - 2 * HOUR, abs=1200)
        await world.pass_time(told.estimate_s - 600)
        assert await world.state(third.id) is QUEUED
        await world.pass_time(600)
        await runs(world, third)

    world.do(story())


def test_user_without_gpu_hours_does_not_delay_other_users(world: World) -> None:
    async def story() -> None:
        await project(world, user_gpu_hours=1.0)
        await world.end(await _an_hour(world))
        mine = await world.submit(project="batch")
        others = await world.submit(actor=BOB, project="batch")
        assert await world.state(mine.id) is QUEUED
        assert await world.state(others.id) is RUNNING
        assert (await why(world, mine.id)).sentence.startswith(f"{ANN.user} in project batch has used 1.")

    world.do(story())


async def _an_hour(world: World) -> Workload:
    workload = await world.submit(project="batch")
    await world.pass_time(HOUR + 60)
    await used(world, 1.0)
    return workload


def test_larger_budget_lets_work_start(world: World) -> None:
    async def story() -> None:
        await project(world, gpu_hours=1.0)
        await world.end(await _an_hour(world))
        waiting = await world.submit(project="batch")
        assert await world.state(waiting.id) is QUEUED
        await world.services.access.change_project(ADMIN, "batch", {"rules": {"gpu_hours": 5.0}})
        await runs(world, waiting)

    world.do(story())


def test_work_without_gpus_needs_no_gpu_hours(world: World) -> None:
    async def story() -> None:
        await project(world, gpu_hours=0.0)
        await world.pass_time(60)
        without = await world.submit(project="batch", gpus={"count": 0})
        assert await world.state(without.id) is RUNNING
        assert await world.state((await world.submit(project="batch")).id) is QUEUED

    world.do(story())


@pytest.mark.parametrize("hours", [-1.0, 1e12])
def test_impossible_budgets_are_refused(world: World, hours: float) -> None:
    async def story() -> None:
        with pytest.raises(GpupoolError, match="GPU hours"):
            await project(world, gpu_hours=hours)

    world.do(story())
