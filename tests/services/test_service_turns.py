"""Time slicing over real services: a workload that had its turn is preempted, says why, and continues later."""

from __future__ import annotations

import pytest
from pool_world import ADMIN, World

from gpupool.domain.errors import GpupoolError
from gpupool.domain.work.workload import ReplicaState, WorkloadState

RUNNING = WorkloadState.RUNNING
HOUR = 3600.0


def test_long_training_is_preempted_by_short_work_and_resumes(world: World) -> None:
    async def story() -> None:
        await world.services.policy.change(ADMIN, {"turn_s": 2 * HOUR})
        long = await world.submit(gpus={"count": 2}, checkpoint="30m")
        await world.pass_time(HOUR)
        short = await world.submit(gpus={"count": 1})
        assert await world.state(short.id) is WorkloadState.QUEUED
        await world.pass_time(HOUR + 1)
        await world.pass_time(60)
        assert await world.state(short.id) is RUNNING
        [row] = await world.replicas(long.id)
        assert (row.state, row.interruptions, row.failures) == (ReplicaState.PENDING, 1, 0)
        assert "It has run for 2h" in row.message
        assert short.id in row.message
        await world.end(short)
        assert await world.state(long.id) is RUNNING
        scheduler = world.services.policy._engine.feed.scheduler
        assert scheduler.demand.running[long.id, 0].served_s == pytest.approx(2 * HOUR, abs=100)

    world.do(story())


def test_turn_is_at_least_a_minute(world: World) -> None:
    async def story() -> None:
        with pytest.raises(GpupoolError, match="turn_s"):
            await world.services.policy.change(ADMIN, {"turn_s": 1.0})

    world.do(story())
