"""Time windows over real services: held until they open, evicted when they close."""

from __future__ import annotations

from typing import Any

from pool_world import ADMIN, World

from gpupool.domain.access import Project, ProjectRules
from gpupool.domain.workload import ReplicaState, WorkloadState
from gpupool.scheduling.explain import WaitCode

QUEUED, RUNNING = WorkloadState.QUEUED, WorkloadState.RUNNING
# The clock begins on Friday 2027-01-15 at 08:00 UTC; the pool's time zone is UTC.
HOUR = 3600.0


async def project(world: World, *windows: str) -> None:
    await world.services.access.create_project(ADMIN, Project("batch", rules=ProjectRules(windows=windows)))


async def why(world: World, ref: str) -> Any:
    return await world.services.workloads.why(ADMIN, ref)


def test_training_starts_when_the_window_opens_and_goes_when_it_closes(world: World) -> None:
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


def test_sessions_of_the_project_and_work_of_others_are_not_bound(world: World) -> None:
    async def story() -> None:
        await project(world, "nights")
        session = await world.submit(project="batch", kind="interactive", gpus={"fraction": 0.5})
        other = await world.submit(gpus={"fraction": 0.5})
        assert session.state is other.state is RUNNING

    world.do(story())


def test_what_waits_in_an_open_window_waits_no_more_when_it_closes(world: World) -> None:
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


def test_ones_own_window_and_that_of_the_project_must_both_be_open(world: World) -> None:
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


def test_new_windows_hold_what_waits_and_leave_what_runs(world: World) -> None:
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
