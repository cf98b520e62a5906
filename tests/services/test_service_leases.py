"""Leases without a program: programs on them, expiry, extension, idleness, release."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pool_world import ADMIN, ANN, BOB, World, refused

from gpupool.domain.errors import ErrorCode
from gpupool.domain.events import Reason
from gpupool.domain.units import MAX_DURATION_S
from gpupool.domain.work.workload import ReplicaState, Workload, WorkloadState
from gpupool.services.workloads import submission
from gpupool.specs.request import parse_request

RUNNING, STOPPING = WorkloadState.RUNNING, WorkloadState.STOPPING
SUCCEEDED, STOPPED = WorkloadState.SUCCEEDED, WorkloadState.STOPPED


async def hold(world: World, **body: Any) -> Workload:
    return await world.submit(kind="lease", gpus={"fraction": 0.5}, **body)


async def run_on(world: World, lease: Workload, **body: Any) -> Workload:
    return await world.submit(kind="exec", on=lease.id, **body)


def test_programs_share_a_lease_in_sequence_and_in_parallel(world: World) -> None:
    async def story() -> None:
        lease = await hold(world)
        first, second = await run_on(world, lease), await run_on(world, lease)
        (held,) = await world.services.workloads.leases_of(lease)
        assert {p.spec.epoch for p in world.agent.running()} == {held.epoch}
        assert {p.spec.gpus for p in world.agent.running()} == {held.shares}
        await world.end(first)
        await world.end(second, code=3)
        assert await world.state(lease.id) is RUNNING
        third = await run_on(world, lease)
        assert (await world.state(first.id), await world.state(second.id)) == (SUCCEEDED, WorkloadState.FAILED)
        await world.services.workloads.stop(ANN, lease.id)
        await world.settle()
        assert await world.state(third.id) is STOPPED
        (row,) = await world.replicas(third.id)
        assert row.reason is Reason.LEASE_ENDED
        assert await world.state(lease.id) is SUCCEEDED
        await world.check_at_rest()

    world.do(story())


def test_program_waits_for_the_start_of_the_workload_whose_gpus_it_uses(world: World) -> None:
    """A workload is shown as running as soon as it has its place."""

    async def story() -> None:
        world.agent.losses += ["before"] * 1_000_000  # the node receives nothing
        request = parse_request({"kind": "interactive", "command": ["sh"]})
        host, _ = await world.services.workloads.submit(ANN, request)
        for _ in range(1000):
            await asyncio.sleep(0.01)
            if world.now.engine.mirror.replicas[host.id][0].state is ReplicaState.STARTING:
                break
        assert world.now.engine.mirror.replicas[host.id][0].state is ReplicaState.STARTING
        assert await world.state(host.id) is RUNNING
        program = asyncio.create_task(run_on(world, host))
        await asyncio.sleep(0.05)
        assert not program.done()
        world.agent.losses.clear()
        await world.pass_time(5)
        assert world.is_running(await program)

    world.do(story())


def test_gpus_are_free_after_the_last_program_has_ended(world: World) -> None:
    async def story() -> None:
        world.agent.polite = False
        lease = await world.submit(kind="lease", gpus={"count": 2})
        await run_on(world, lease)
        waiting = await world.submit(gpus={"count": 2})
        await world.services.workloads.stop(ANN, lease.id)
        await world.settle()
        assert await world.state(lease.id) is STOPPING
        assert not world.is_running(waiting)
        await world.pass_time(11)
        assert await world.state(lease.id) is SUCCEEDED
        assert world.is_running(waiting)

    world.do(story())


def test_forced_release_does_not_wait(world: World) -> None:
    async def story() -> None:
        world.agent.polite = False
        lease = await hold(world)
        await run_on(world, lease)
        await world.services.workloads.stop(ANN, lease.id, force=True)
        await world.settle()
        assert await world.state(lease.id) is SUCCEEDED
        assert not world.agent.running()

    world.do(story())


def test_lease_expires_after_its_grant_and_can_be_extended(world: World) -> None:
    async def story() -> None:
        blocker = await world.submit(gpus={"count": 2})
        lease = await hold(world, lifetime=100)
        assert lease.expires_at is None
        await world.pass_time(500)
        await world.end(blocker)
        assert (await world.get(lease.id)).expires_at == pytest.approx(world.clock.at + 100)
        await world.pass_time(90)
        await world.services.workloads.extend(ANN, lease.id, 50)
        await world.pass_time(40)
        assert await world.state(lease.id) is RUNNING
        await world.pass_time(40)
        assert await world.state(lease.id) is STOPPED
        (row,) = await world.replicas(lease.id)
        assert row.reason is Reason.EXPIRED
        await refused(lambda: world.services.workloads.extend(ANN, lease.id, 50), ErrorCode.WRONG_STATE)

    world.do(story())


@pytest.mark.parametrize("seconds", [-1000.0, MAX_DURATION_S * 2.0])
def test_extension_into_the_past_is_refused(world: World, seconds: float) -> None:
    async def story() -> None:
        lease = await hold(world, lifetime=100)
        await refused(lambda: world.services.workloads.extend(ANN, lease.id, seconds), ErrorCode.INVALID_DURATION)

    world.do(story())


def test_workload_without_expiry_cannot_be_extended(world: World) -> None:
    async def story() -> None:
        lease, job = await hold(world), await world.submit()
        for ref in (lease.id, job.id):
            await refused(lambda ref=ref: world.services.workloads.extend(ANN, ref, 5), ErrorCode.WRONG_STATE)

    world.do(story())


def test_idle_lease_is_warned_then_released(world: World) -> None:
    async def story() -> None:
        lease = await hold(world, idle_timeout=100)
        await world.pass_time(75)
        assert "IDLE_WARNING" not in await world.reasons(lease.id)
        await world.pass_time(10)
        assert (await world.reasons(lease.id)).count("IDLE_WARNING") == 1
        await world.pass_time(5)
        assert (await world.reasons(lease.id)).count("IDLE_WARNING") == 1
        await world.pass_time(20)
        assert await world.state(lease.id) is STOPPED
        (row,) = await world.replicas(lease.id)
        assert row.reason is Reason.IDLE_LIMIT

    world.do(story())


def test_idle_time_counts_from_end_of_last_program(world: World) -> None:
    async def story() -> None:
        lease = await hold(world, idle_timeout=100)
        await world.pass_time(85)
        program = await run_on(world, lease)
        await world.pass_time(500)
        assert await world.state(lease.id) is RUNNING
        await world.end(program)
        await world.pass_time(50)
        assert await world.state(lease.id) is RUNNING, "it was used 50 s ago"
        await world.pass_time(35)
        await world.pass_time(25)
        assert await world.state(lease.id) is STOPPED

    world.do(story())


def test_program_without_gpu_use_is_idle(world: World) -> None:
    async def story() -> None:
        silent, busy = await world.submit(idle_timeout=100), await world.submit(idle_timeout=100)
        for _ in range(4):
            await world.pass_time(30)
            if world.is_running(busy):
                world.agent.active(world.program(busy))
            await world.settle()
        assert await world.state(silent.id) is STOPPED
        assert await world.state(busy.id) is RUNNING

    world.do(story())


def test_machine_restart_ends_programs_and_keeps_the_lease(world: World) -> None:
    async def story() -> None:
        lease = await hold(world)
        program = await run_on(world, lease)
        world.agent.reboot()
        await world.settle()
        assert await world.state(program.id) is WorkloadState.FAILED
        assert await world.state(lease.id) is RUNNING
        await run_on(world, lease)

    world.do(story())


def test_programs_on_a_job_end_with_the_job(world: World) -> None:
    async def story() -> None:
        world.agent.polite = False
        job = await world.submit(gpus={"count": 2})
        helper = await run_on(world, job)
        waiting = await world.submit(gpus={"count": 2})
        await world.end(job)
        assert not world.is_running(waiting), "the helper still uses the GPUs"
        await world.pass_time(11)
        assert await world.state(helper.id) is STOPPED
        assert world.is_running(waiting)
        await world.check_at_rest()

    world.do(story())


def test_dependent_job_starts_although_program_on_lease_outlived_a_crash(world: World) -> None:
    async def story() -> None:
        world.agent.polite = False
        job = await world.submit(name="job", gpus={"fraction": 0.5})
        await run_on(world, job)
        following = await world.submit(after=["job"], gpus={"fraction": 0.5})
        await world.crash()
        world.agent.end(world.program(job))
        await world.boot()
        await world.reboot()
        await world.pass_time(11)
        await world.pass_time(11)
        assert world.is_running(following)
        await world.check_at_rest()

    world.do(story())


@pytest.mark.parametrize("who", ["stranger", "viewer"])
def test_lease_of_another_user_is_refused(world: World, who: str) -> None:
    from dataclasses import replace

    from gpupool.domain.people.access import Role

    actor = BOB if who == "stranger" else replace(ANN, role=Role.VIEWER)

    async def story() -> None:
        lease = await hold(world)
        await refused(lambda: world.submit(actor, kind="exec", on=lease.id), ErrorCode.FORBIDDEN)
        await refused(lambda: world.services.workloads.stop(actor, lease.id), ErrorCode.FORBIDDEN)
        assert await world.state(lease.id) is RUNNING

    world.do(story())


def test_user_has_a_limited_number_of_programs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "MAX_PROGRAMS_PER_USER", 3)

    async def story() -> None:
        lease, other = await hold(world), await world.submit(BOB, kind="lease", gpus={"fraction": 0.5})
        programs = [await run_on(world, lease) for _ in range(3)]
        error = await refused(lambda: run_on(world, lease), ErrorCode.OVER_LIMIT)
        assert "ann has 3 commands, shells and SSH sessions already" in error.message
        await world.submit(BOB, kind="exec", on=other.id)
        await world.end(programs[0])
        await run_on(world, lease)
        await world.check_at_rest()

    world.do(story())


def test_program_needs_an_active_lease(world: World) -> None:
    async def story() -> None:
        await world.submit(gpus={"count": 2})
        queued = await hold(world)
        await refused(lambda: run_on(world, queued), ErrorCode.WRONG_STATE)
        await world.services.workloads.stop(ANN, queued.id)
        await refused(lambda: run_on(world, queued), ErrorCode.WRONG_STATE)
        assert (await world.services.workloads.counts())[WorkloadState.QUEUED] == 0
        await world.services.workloads.stop(ADMIN, queued.id)  # idempotent

    world.do(story())


def test_fifty_leases_fit_on_one_gpu_and_the_next_waits(world: World) -> None:
    async def story() -> None:
        world.agent.gpus = 1
        await world.reboot()
        leases = [await world.submit(kind="lease", gpus={"fraction": 0.02}) for _ in range(50)]
        late = await world.submit(kind="lease", gpus={"fraction": 0.02})
        assert {await world.state(lease.id) for lease in leases} == {RUNNING}
        assert late.state is WorkloadState.QUEUED
        why = await world.services.workloads.why(ANN, late.id)
        assert why.sentence
        world.check_always()
        await world.services.workloads.stop(ANN, leases[7].id)
        await world.settle()
        assert await world.state(late.id) is RUNNING

    world.do(story())
