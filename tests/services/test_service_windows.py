"""Time windows over real services: work is held until they open, and evicted when they close."""

from __future__ import annotations

from typing import Any

import pytest
from pool_world import ADMIN, World

from gpupool.domain.people.access import Project, ProjectRules
from gpupool.domain.work.workload import ReplicaState, WorkloadState
from gpupool.scheduling.explain.wait_reason import WaitCode

QUEUED, RUNNING = WorkloadState.QUEUED, WorkloadState.RUNNING
# The clock starts on Friday 2027-01-15 at 08:00 UTC; the pool's time zone is UTC.
HOUR = 3600.0


async def project(world: World, *windows: str) -> None:
    await world.services.access.create_project(ADMIN, Project("batch", rules=ProjectRules(windows=windows)))


async def why(world: World, ref: str) -> Any:
    return await world.services.workloads.why(ADMIN, ref)


def test_training_starts_when_window_opens_and_is_evicted_when_it_closes(world: World) -> None:
    async def story() -> None:
        await project(world, "20:00-22:00")
        waiting = await world.submit(project="batch")
        assert waiting.state is QUEUED
        told = await why(world, waiting.id)
        assert told.code is WaitCode.WINDOW
        assert "next Friday 20:00" in told.sentence
        assert told.estimate_s == 12 * HOUR
        await world.pass_time(12 * HOUR + 1)
        assert await world.state(waiting.id) is RUNNING
        await world.pass_time(2 * HOUR)
        [row] = await world.replicas(waiting.id)
        assert row.state is ReplicaState.PENDING
        assert row.interruptions == 1
        assert "WINDOW_CLOSED" in await world.reasons(waiting.id)
        assert "next Saturday 20:00" in (await why(world, waiting.id)).sentence
        await world.pass_time(22 * HOUR)
        assert await world.state(waiting.id) is RUNNING

    world.do(story())


def test_window_does_not_apply_to_sessions_and_other_projects(world: World) -> None:
    async def story() -> None:
        await project(world, "nights")
        session = await world.submit(project="batch", kind="interactive", gpus={"fraction": 0.5})
        other = await world.submit(gpus={"fraction": 0.5})
        assert session.state is other.state is RUNNING

    world.do(story())


def test_queued_workload_is_held_after_its_window_closes(world: World) -> None:
    async def story() -> None:
        await project(world, "08:00-09:00")
        blocker = await world.submit(gpus={"count": 2})
        waiting = await world.submit(project="batch")
        assert (await why(world, waiting.id)).code is not WaitCode.WINDOW
        await world.pass_time(HOUR + 1)
        assert (await why(world, waiting.id)).code is WaitCode.WINDOW
        await world.end(blocker)
        assert await world.state(waiting.id) is QUEUED

    world.do(story())


def test_why_at_end_of_window_does_not_let_workload_start(world: World) -> None:
    """Ask between the end of the window and the next check: the answer must not move that check to tomorrow."""

    async def story() -> None:
        await project(world, "08:00-09:00")
        blocker = await world.submit(gpus={"count": 2})
        waiting = await world.submit(project="batch")
        world.clock.at += HOUR + 1
        assert (await why(world, waiting.id)).code is WaitCode.WINDOW
        await world.end(blocker)
        assert await world.state(waiting.id) is QUEUED

    world.do(story())


def test_window_of_workload_and_of_project_must_both_be_open(world: World) -> None:
    async def story() -> None:
        await project(world, "20:00-22:00")
        both = await world.submit(project="batch", windows=["sat"])
        never = await world.submit(project="batch", windows=["10:00-11:00"])
        assert "next Saturday 20:00" in (await why(world, both.id)).sentence
        told = await why(world, never.id)
        assert told.estimate_s is None
        assert "never" in told.sentence
        await world.reboot()
        await world.pass_time(36 * HOUR + 1)
        assert await world.state(both.id) is RUNNING
        assert await world.state(never.id) is QUEUED

    world.do(story())


def test_new_window_holds_waiting_work_and_keeps_running_work(world: World) -> None:
    async def story() -> None:
        await project(world)
        running = await world.submit(project="batch", gpus={"count": 2})
        waiting = await world.submit(project="batch")
        await world.services.access.change_project(ADMIN, "batch", {"rules": {"windows": ("nights",)}})
        await world.pass_time(2)
        assert await world.state(running.id) is RUNNING
        await world.end(running)
        assert await world.state(waiting.id) is QUEUED
        await world.services.access.change_project(ADMIN, "batch", {"rules": {"windows": ()}})
        await world.settle()
        assert await world.state(waiting.id) is RUNNING

    world.do(story())


@pytest.mark.parametrize("crash", [False, True])
def test_workload_does_not_start_before_its_begin(world: World, crash: bool) -> None:
    async def story() -> None:
        waiting = await world.submit(begin="2h")
        assert waiting.state is QUEUED
        told = await why(world, waiting.id)
        assert told.code is WaitCode.WINDOW
        assert "from 2027-01-15 10:00:00" in told.sentence
        assert told.estimate_s == 2 * HOUR
        await world.pass_time(HOUR)
        if crash:
            await world.crash()
            await world.boot()
        assert await world.state(waiting.id) is QUEUED
        await world.pass_time(HOUR + 1)
        assert await world.state(waiting.id) is RUNNING

    world.do(story())


def test_begin_and_window_must_both_be_reached(world: World) -> None:
    async def story() -> None:
        waiting = await world.submit(begin="13h", windows=["20:00-22:00"])
        late = await world.submit(begin="40d", gpus={"fraction": 0.1})
        assert "from 2027-01-15 21:00:00 and 20:00-22:00" in (await why(world, waiting.id)).sentence
        await world.pass_time(12 * HOUR + 60)
        assert await world.state(waiting.id) is QUEUED
        await world.pass_time(HOUR)
        assert await world.state(waiting.id) is RUNNING
        assert (await why(world, late.id)).estimate_s > 38 * 24 * HOUR

    world.do(story())
