"""Departments, fair shares, and usage that is kept over a restart."""

from __future__ import annotations

import pytest
from pool_world import ADMIN, ANN, BOB, World, refused

from gpupool.domain.errors import ErrorCode
from gpupool.domain.people.access import Department, Project
from gpupool.domain.work.workload import WorkloadState
from gpupool.services.ports.store import EventFilter


def test_only_administrators_change_departments(world: World) -> None:
    async def main() -> None:
        service = world.services.departments
        await refused(lambda: service.create(BOB, Department("research")), ErrorCode.FORBIDDEN)
        await service.create(ADMIN, Department("research", 6000))
        await refused(lambda: service.create(ADMIN, Department("research")), ErrorCode.NAME_TAKEN)
        await refused(lambda: service.change(BOB, "research", {"weight": 2.0}), ErrorCode.FORBIDDEN)
        await refused(lambda: service.change(ADMIN, "research", {"weight": -1.0}), ErrorCode.INVALID_COUNT)
        await refused(lambda: service.change(ADMIN, "sales", {"weight": 1.0}), ErrorCode.UNKNOWN_DEPARTMENT)
        await service.change(ADMIN, "research", {"weight": 2.0})
        await refused(lambda: service.delete(BOB, "research"), ErrorCode.FORBIDDEN)
        await world.services.access.create_project(ADMIN, Project("red", department="research"))
        assert service.projects_of("research") == ["red"]
        await refused(lambda: service.delete(ADMIN, "research"), ErrorCode.WRONG_STATE)
        await world.services.access.change_project(ADMIN, "red", {"department": ""})
        await service.delete(ADMIN, "research")
        assert await service.departments() == []
        told = await world.services.history.events(ADMIN, EventFilter(limit=500))
        said = [event.message for event in told if event.target == "department research"]
        assert said == ["created", "changed: weight", "deleted"]

    world.do(main())


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (Project("red", department="nowhere"), ErrorCode.UNKNOWN_DEPARTMENT),
        (Project("red", weight=-1.0), ErrorCode.INVALID_COUNT),
        (Project("red", 2000, model_quotas=(("a100", 3000),)), ErrorCode.INVALID_COUNT),
        (Project("red", model_quotas=(("a100", 1000), ("A100", 1000))), ErrorCode.INVALID_REQUEST),
    ],
)
def test_project_weights_are_validated(world: World, wrong: Project, code: ErrorCode) -> None:
    world.do(refused(lambda: world.services.access.create_project(ADMIN, wrong), code))


def test_department_limit_is_enforced_and_can_be_raised(world: World) -> None:
    async def main() -> None:
        await world.services.departments.create(ADMIN, Department("research", limit_permille=1000))
        for name in ("red", "blue"):
            await world.services.access.create_project(ADMIN, Project(name, department="research"))
        first = await world.submit(ANN, project="red", gpus={"count": 1})
        second = await world.submit(ANN, project="blue", gpus={"count": 1})
        assert [await world.state(w.id) for w in (first, second)] == [WorkloadState.RUNNING, WorkloadState.QUEUED]
        why = await world.services.workloads.why(ADMIN, second.id)
        assert why.code == "DEPARTMENT_LIMIT"
        await world.services.departments.change(ADMIN, "research", {"limit_permille": 2000})
        await world.settle()
        assert await world.state(second.id) is WorkloadState.RUNNING

    world.do(main())


def test_usage_is_equal_after_a_restart(world: World) -> None:
    async def main() -> None:
        first = await world.submit(ANN, gpus={"count": 1})
        await world.pass_time(5000)
        await world.end(first)
        await world.submit(BOB, gpus={"count": 1})
        await world.pass_time(3000)
        before = await world.services.departments.standings()
        await world.reboot()
        after = await world.services.departments.standings()
        assert [u.user for u in after.users] == [u.user for u in before.users]
        hours = [[user.used_gpu_hours for user in told.users] for told in (before, after)]
        assert hours[1] == pytest.approx(hours[0], rel=1e-3)
        [row] = after.projects
        assert row.used_gpu_hours == pytest.approx(8000 / 3600, rel=0.1)  # usage decays little in two hours
        await world.services.policy.change(ADMIN, {"half_life_s": 600.0})
        [row] = (await world.services.departments.standings()).projects
        assert row.used_gpu_hours == pytest.approx(600 / 0.6931 / 3600, rel=0.1)  # at most one GPU forever

    world.do(main())
