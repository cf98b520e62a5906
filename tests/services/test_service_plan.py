"""Dry runs: refused like submissions, correct if they promise a start, and without any stored change."""

from __future__ import annotations

from typing import Any

from pool_world import ADMIN, ANN, BOB, World, refused

from gpupool.domain.errors import ErrorCode
from gpupool.domain.people.access import Project
from gpupool.scheduling.explain.wait_reason import WaitCode
from gpupool.services.workloads.planning import PlannedRequest
from gpupool.specs.request import parse_request


async def plan(world: World, actor: Any = ANN, **body: Any) -> PlannedRequest:
    body.setdefault("kind", "training")
    if body["kind"] != "lease":
        body.setdefault("command", ["work"])
    return await world.services.plans.plan(actor, parse_request(body))


def tables(world: World) -> list[Any]:
    return [world.rows(f"select count(*) from {name}") for name in ("workloads", "replicas", "leases", "events")]


def test_plan_names_place_and_stores_nothing(world: World) -> None:
    async def story() -> None:
        before = tables(world)
        found = await plan(world, gpus={"count": 2})
        assert [len(grant.shares) for grant in found.plan.starts] == [2]
        assert (found.asked, found.plan.waiting) == (1, 0)
        assert tables(world) == before
        assert not world.now.engine.mirror.workloads
        made = await world.submit(gpus={"count": 2})
        [lease] = world.now.engine.mirror.leases.values()
        assert (lease.workload, lease.shares) == (made.id, found.plan.starts[0].shares)

    world.do(story())


def test_plan_names_wait_reason(world: World) -> None:
    async def story() -> None:
        await world.submit(gpus={"count": 2}, max_time="1h", preemptible=False)
        found = await plan(world, gpus={"count": 1})
        assert found.plan.why is not None
        assert (found.plan.why.code, found.plan.why.position) == (WaitCode.WAITING_FOR_GPU, 1)
        assert found.plan.why.estimate_s == 3600

    world.do(story())


def test_plan_covers_replicas_that_would_queue_at_once(world: World) -> None:
    async def story() -> None:
        found = await plan(world, gpus={"count": 1}, completions=50, parallelism=3)
        assert (found.asked, len(found.plan.starts), found.plan.waiting) == (3, 2, 1)

    world.do(story())


def test_plan_names_dependency(world: World) -> None:
    async def story() -> None:
        first = await world.submit(gpus={"fraction": 0.1})
        found = await plan(world, gpus={"fraction": 0.1}, after=[{"workload": first.name}])
        assert found.plan.why is not None
        assert found.plan.why.code is WaitCode.DEPENDENCY

    world.do(story())


def test_plan_is_refused_like_submission(world: World) -> None:
    async def story() -> None:
        await refused(lambda: plan(world, gpus={"count": 9}), ErrorCode.IMPOSSIBLE_REQUEST)
        await refused(lambda: plan(world, project="nowhere"), ErrorCode.UNKNOWN_PROJECT)
        for name in ("ann", "bob"):
            await world.services.access.put_user(ADMIN, name, {})
        await world.services.access.create_project(ADMIN, Project("closed", members=("ann",)))
        await refused(lambda: plan(world, BOB, project="closed"), ErrorCode.FORBIDDEN)

    world.do(story())
