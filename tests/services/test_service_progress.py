"""Progress that programs report: what an eviction loses, and where owners and administrators see it."""

from __future__ import annotations

import asyncio

import pytest
from pool_world import ADMIN, World

from gpupool.domain.people.access import Project, ProjectRules
from gpupool.domain.usage import GroupBy
from gpupool.services.usage.reports import ReportRequest, UsageReport, make_report


async def report(world: World, by: GroupBy) -> UsageReport:
    now = world.clock.now()
    return await make_report(world.services.accounting, ReportRequest(now - 86400, now + 1, by))


def test_eviction_loses_the_work_since_the_last_reported_checkpoint(world: World) -> None:
    async def story() -> None:
        await world.services.access.create_project(ADMIN, Project("red", rules=ProjectRules(min_runtime_s=1.0)))
        victim = await world.submit(project="red", gpus={"count": 2})
        await world.pass_time(1800)
        world.agent.saves(world.program(victim), 12)
        await world.pass_time(900)
        [row] = await world.replicas(victim.id)
        assert (row.saved_at, row.step) == (pytest.approx(world.clock.now() - 900, abs=5), 12)
        urgent = await world.submit(project="red", gpus={"count": 2}, priority="high")
        assert world.is_running(urgent)
        [row] = await world.replicas(victim.id)
        assert "0.50 GPU hours since its last checkpoint are lost unless it saves now" in row.message
        assert row.step == 12, "the next attempt continues there"
        assert row.lost_gpu_s == pytest.approx(1800, abs=10)
        await world.pass_time(1)
        for by, key in ((GroupBy.PROJECT, "red"), (GroupBy.USER, "ann"), (GroupBy.POOL, "")):
            [line] = (await report(world, by)).losses
            assert (line.key, line.evictions) == (key, 1)
            assert line.lost_gpu_s == pytest.approx(1800, abs=10)

    world.do(story())


@pytest.mark.parametrize(("declared", "lost_s"), [({}, 2700), ({"checkpoint": "30m"}, 900), ({"checkpoint": 0}, 0)])
def test_without_a_report_the_declared_interval_decides(world: World, declared: dict[str, str], lost_s: float) -> None:
    async def story() -> None:
        await world.services.access.create_project(ADMIN, Project("red", rules=ProjectRules(min_runtime_s=1.0)))
        victim = await world.submit(project="red", gpus={"count": 2}, **declared)
        await world.pass_time(2700)
        await world.submit(project="red", gpus={"count": 2}, priority="high")
        [row] = await world.replicas(victim.id)
        assert row.interruptions == 1
        assert row.lost_gpu_s == pytest.approx(2 * lost_s, abs=10)

    world.do(story())


def test_stop_by_the_user_and_suspension_lose_nothing_in_the_report(world: World) -> None:
    async def story() -> None:
        made = await world.submit(gpus={"count": 1})
        other = await world.submit(gpus={"count": 1})
        await world.pass_time(2700)
        await world.services.workloads.stop(ADMIN, made.id)
        await world.services.workloads.suspend(ADMIN, other.id)
        await world.settle()
        assert (await report(world, GroupBy.POOL)).losses == ()

    world.do(story())


def test_checkpoint_of_one_member_counts_for_its_gang(world: World) -> None:
    async def story() -> None:
        made = await world.submit(gpus={"count": 1}, gang={"workers": 2})
        await world.pass_time(600)
        world.agent.saves(world.program(made))
        await world.settle()
        rows = await world.replicas(made.id)
        assert len(rows) == 2
        assert {row.saved_at for row in rows} == {rows[0].saved_at}
        assert rows[0].saved_at is not None

    world.do(story())


def test_progress_survives_a_crash_of_the_control_plane(world: World) -> None:
    async def story() -> None:
        made = await world.submit(gpus={"count": 1})
        await world.pass_time(60)
        world.agent.saves(world.program(made), 3)
        await world.settle()
        before = await world.replicas(made.id)
        await world.crash()
        await world.boot()
        await asyncio.sleep(0)
        assert [(row.saved_at, row.step) for row in await world.replicas(made.id)] == [(before[0].saved_at, 3)]

    world.do(story())
