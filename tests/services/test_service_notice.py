"""Notices to programs before they lose their GPUs, and the record afterwards."""

from __future__ import annotations

import pytest
from pool_world import ADMIN, World

from gpupool.domain.events import Reason
from gpupool.domain.people.access import Project, ProjectRules
from gpupool.domain.work.workload import ReplicaState, WorkloadState
from gpupool.services.ports.store import EventFilter


def test_preempted_program_gets_reason_and_record_keeps_it(world: World) -> None:
    async def story() -> None:
        await world.services.access.create_project(ADMIN, Project("red", rules=ProjectRules(min_runtime_s=1.0)))
        world.agent.polite = False
        victim = await world.submit(project="red", gpus={"count": 2}, grace="1m", notice_signal="USR1")
        key = world.program(victim)
        assert world.agent.programs[key].spec.notice_signal == "USR1"
        assert "GPUPOOL_RESUME" not in world.agent.programs[key].spec.env
        await world.pass_time(5)
        urgent = await world.submit(project="red", gpus={"count": 2}, priority="high")
        notice = world.agent.notices[key]
        assert notice is not None
        assert notice["reason"] == "PREEMPTED"
        assert "priority 100" in notice["message"]
        await world.pass_time(61)
        [row] = await world.replicas(victim.id)
        assert (row.state, row.interruptions, row.message) == (ReplicaState.PENDING, 1, notice["message"])
        found = await world.services.history.events(ADMIN, EventFilter(workload=victim.id, reasons=(Reason.PREEMPTED,)))
        assert [notice["message"].removesuffix(".") in event.message for event in found] == [True, True]
        assert (await world.services.workloads.why(ADMIN, victim.id)).position == 1
        await world.pass_time(2)
        again = EventFilter(workload=victim.id, reasons=(Reason.QUEUED_AGAIN,))
        [goes_on] = await world.services.history.events(ADMIN, again)
        assert goes_on.message.startswith("queued again: at position 1 in its project, ")
        await world.end(urgent)
        env = world.agent.programs[world.program(victim)].spec.env
        assert (env["GPUPOOL_RESUME"], env["GPUPOOL_ATTEMPT"], env["GPUPOOL_INTERRUPTIONS"]) == ("1", "2", "1")

    world.do(story())


@pytest.mark.parametrize("how", ["stop", "suspend"])
def test_notice_is_sent_for_suspension_and_not_for_stop(world: World, how: str) -> None:
    async def story() -> None:
        made = await world.submit()
        key = world.program(made)
        await getattr(world.services.workloads, how)(ADMIN, made.id)
        await world.settle()
        notice = world.agent.notices[key]
        assert (notice or {}).get("reason") == (None if how == "stop" else "SUSPENDED_BY_USER")

    world.do(story())


def test_idle_warning_is_withdrawn_on_use_and_followed_by_end(world: World) -> None:
    async def story() -> None:
        made = await world.submit(idle_timeout=100)
        key = world.program(made)
        await world.pass_time(70)
        assert key not in world.agent.notices
        await world.pass_time(12)
        notice = world.agent.notices[key]
        assert notice is not None
        assert notice["reason"] == "IDLE_WARNING"
        assert notice["deadline"] == pytest.approx(world.clock.now() + 20, abs=3)
        world.agent.active(key)
        await world.pass_time(2)
        assert world.agent.notices[key] is None
        await world.pass_time(70)
        assert world.is_running(made), "any use begins the time anew"
        await world.pass_time(15)
        await world.pass_time(25)
        [row] = await world.replicas(made.id)
        assert (row.state, row.reason) == (ReplicaState.STOPPED, Reason.IDLE_LIMIT)
        assert row.message.startswith("idle for")
        assert (world.agent.notices[key] or {})["reason"] == "IDLE_LIMIT"
        assert (await world.reasons(made.id)).count("IDLE_WARNING") == 2

    world.do(story())


def test_warning_precedes_end_also_after_pool_downtime(world: World) -> None:
    async def story() -> None:
        made = await world.submit(idle_timeout=100)
        world.clock.at += 1000
        await world.pass_time(2)
        assert await world.state(made.id) is WorkloadState.RUNNING
        await world.reboot()
        await world.pass_time(10)
        assert await world.state(made.id) is WorkloadState.RUNNING
        await world.pass_time(25)
        await world.pass_time(25)
        assert await world.state(made.id) is WorkloadState.STOPPED

    world.do(story())


@pytest.mark.parametrize(("on_preempt", "ended"), [("signal", False), ("kill", True)])
def test_program_that_ignores_signals_is_killed_at_once_on_request(
    world: World, on_preempt: str, *, ended: bool
) -> None:
    async def story() -> None:
        await world.services.access.create_project(ADMIN, Project("red", rules=ProjectRules(min_runtime_s=1.0)))
        world.agent.polite = False
        victim = await world.submit(project="red", gpus={"count": 2}, grace="1m", on_preempt=on_preempt)
        await world.pass_time(5)
        urgent = await world.submit(project="red", gpus={"count": 2}, priority="high")
        await world.pass_time(2)
        assert world.is_running(urgent) is ended
        [row] = await world.replicas(victim.id)
        assert row.state is (ReplicaState.PENDING if ended else ReplicaState.STOPPING)
        await world.pass_time(61)
        assert world.is_running(urgent)

    world.do(story())


def test_kill_on_preemption_survives_a_restart_of_the_pool(world: World) -> None:
    async def story() -> None:
        await world.services.access.create_project(ADMIN, Project("red", rules=ProjectRules(min_runtime_s=1.0)))
        world.agent.polite = False
        await world.submit(project="red", gpus={"count": 2}, grace="1m", on_preempt="kill")
        await world.reboot()
        await world.pass_time(5)
        urgent = await world.submit(project="red", gpus={"count": 2}, priority="high")
        await world.pass_time(2)
        assert world.is_running(urgent)

    world.do(story())
