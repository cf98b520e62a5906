"""A node without heartbeat: leases that are kept, work that is given up, and when."""

from __future__ import annotations

import pytest
from pool_world import ADMIN, ANN, World

from gpupool.domain.errors import GpupoolError
from gpupool.domain.protocol.fencing import certain_after_s
from gpupool.domain.work.program.supervision import ExitReason
from gpupool.domain.work.workload import ReplicaState, Workload, WorkloadState

FENCE_S = 300.0
CERTAIN_S = certain_after_s(FENCE_S)


async def silence(world: World, seconds: float) -> None:
    world.agent.go(up=False)
    await world.settle()
    await world.pass_time(seconds)


async def attempt(world: World, workload: Workload) -> tuple[int, ReplicaState]:
    row = (await world.replicas(workload.id))[0]
    return row.attempt, row.state


def test_short_silence_changes_nothing(world: World) -> None:
    async def story() -> None:
        await world.boot()
        job = await world.submit()
        await silence(world, FENCE_S - 10)
        assert await attempt(world, job) == (1, ReplicaState.RUNNING)
        world.agent.go(up=True)
        await world.settle()
        await world.pass_time(CERTAIN_S)
        assert await attempt(world, job) == (1, ReplicaState.RUNNING)
        assert world.is_running(job)

    world.do(story())


def test_work_is_given_up_when_node_has_certainly_ended_it(world: World) -> None:
    async def story() -> None:
        await world.boot()
        job = await world.submit()
        key = world.program(job)
        await silence(world, FENCE_S + 10)
        assert world.agent.ends[key].reason is ExitReason.FENCED
        assert await attempt(world, job) == (1, ReplicaState.RUNNING), "the other side cannot know yet"
        await world.pass_time(CERTAIN_S - FENCE_S)
        assert await attempt(world, job) == (1, ReplicaState.PENDING)
        assert (await world.reasons(job.id))[-1] == "NODE_LOST"
        assert world.rows("select epoch from leases where released_at is null") == []
        world.agent.go(up=True)
        await world.settle()
        await world.pass_time(1)
        assert await attempt(world, job) == (2, ReplicaState.RUNNING)
        assert world.program(job).endswith(".2")

    world.do(story())


def test_node_that_returns_in_time_reports_the_end(world: World) -> None:
    async def story() -> None:
        await world.boot()
        job = await world.submit()
        await silence(world, FENCE_S + 10)
        world.agent.go(up=True)
        await world.settle()
        await world.pass_time(1)
        assert await attempt(world, job) == (2, ReplicaState.RUNNING)
        assert "NODE_LOST" in await world.reasons(job.id)

    world.do(story())


def test_new_control_plane_counts_silence_from_its_start(world: World) -> None:
    async def story() -> None:
        await world.boot()
        job = await world.submit()
        await silence(world, CERTAIN_S - 20)
        await world.reboot()
        await world.pass_time(CERTAIN_S - 20)
        assert await attempt(world, job) == (1, ReplicaState.RUNNING)
        await world.pass_time(40)
        assert await attempt(world, job) == (1, ReplicaState.PENDING)

    world.do(story())


@pytest.mark.parametrize("body", [{"kind": "interactive"}, {"kind": "lease"}, {"kind": "run"}])
def test_work_without_retry_waits_until_node_is_declared_lost(world: World, body: dict[str, object]) -> None:
    async def story() -> None:
        await world.boot()
        held = await world.submit(ANN, **body)
        await silence(world, 10 * CERTAIN_S)
        assert (await attempt(world, held))[1] is ReplicaState.RUNNING
        assert await world.services.nodes.declare_lost(ADMIN, "here", "its power supply burnt") == 1
        assert await world.state(held.id) is WorkloadState.FAILED
        assert "burnt" in (await world.replicas(held.id))[0].message
        assert world.rows("select epoch from leases where released_at is null") == []

    world.do(story())


def test_old_programs_end_before_new_work_is_placed(world: World) -> None:
    async def story() -> None:
        await world.boot()
        old = await world.submit(kind="interactive", gpus={"count": 2})
        await silence(world, 20)
        await world.services.nodes.declare_lost(ADMIN, "here")
        assert world.is_running(old), "the machine was not off at all"
        new = await world.submit(gpus={"count": 2})
        world.agent.polite = False
        world.agent.go(up=True)
        await world.settle()
        await world.pass_time(1)
        assert not world.is_running(old)
        assert world.is_running(new)
        world.check_always()

    world.do(story())


def test_node_that_answers_cannot_be_declared_lost_or_removed(world: World) -> None:
    async def story() -> None:
        await world.boot()
        for refused in (world.services.nodes.declare_lost(ADMIN, "here"), world.services.nodes.remove(ADMIN, "here")):
            with pytest.raises(GpupoolError) as caught:
                await refused
            assert caught.value.code == "WRONG_STATE"
        held = await world.submit(ANN, kind="lease")
        await silence(world, 20)
        with pytest.raises(GpupoolError, match="still has 1"):
            await world.services.nodes.remove(ADMIN, "here")
        await world.services.nodes.declare_lost(ADMIN, "here")
        await world.services.nodes.remove(ADMIN, "here")
        assert await world.services.nodes.nodes() == ()
        await world.reboot()
        assert await world.services.nodes.nodes() == ()
        assert await world.state(held.id) is WorkloadState.FAILED

    world.do(story())


def test_node_is_never_lost_if_disabled(world: World) -> None:
    async def story() -> None:
        await world.boot()
        await world.services.policy.change(ADMIN, {"node_lost_after_s": None})
        job = await world.submit()
        await silence(world, 10 * CERTAIN_S)
        assert await attempt(world, job) == (1, ReplicaState.RUNNING)
        assert world.is_running(job)

    world.do(story())
