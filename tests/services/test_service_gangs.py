"""Gangs in the services: stored together or not at all under faults, and their learned run times."""

from __future__ import annotations

from collections import Counter

import pytest
from pool_world import ANN, World

from gpupool.domain.work.workload import ReplicaState, WorkloadState
from gpupool.scheduling.values import Decisions, Grant
from gpupool.specs.request import parse_request

GANG = {"kind": "training", "command": ["work"], "gang": {"workers": 2}}


@pytest.mark.parametrize("commits", [0, 1, 2, 3])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_crash_at_any_commit_grants_all_members_or_none(world: World, commits: int, moment: str) -> None:
    async def story() -> None:
        assert world.store is not None
        body = parse_request(GANG | {"request_id": "one"})
        world.store.die = (commits, moment)
        await world.attempt(world.services.workloads.submit(ANN, body))
        await world.settle()
        per_write = Counter(at for (at,) in world.rows("select granted_at from leases"))
        assert sum(per_write.values()) in {0, 2}
        await world.reboot()
        made, _ = await world.services.workloads.submit(ANN, body)
        await world.settle()
        assert await world.state(made.id) is WorkloadState.RUNNING
        world.check_always()
        await world.check_at_rest()

    world.do(story())


def test_error_about_one_member_grants_none(world: World) -> None:
    async def story() -> None:
        demand = world.now.engine.feed
        decide, wrong = demand.decide, [True]

        def once_wrong(now: float) -> Decisions:
            decisions = decide(now)
            if not wrong or not decisions.grants:
                return decisions
            wrong.clear()
            first = decisions.grants[0]
            unknown = Grant(first.workload, 7, first.node, first.shares, first.sharing)
            return Decisions((first, unknown))

        demand.decide = once_wrong  # type: ignore[method-assign]
        made, _ = await world.services.workloads.submit(ANN, parse_request(GANG))
        await world.settle()
        assert not wrong
        assert not world.rows("select epoch from leases")
        await world.pass_time(2)
        assert await world.state(made.id) is WorkloadState.RUNNING
        assert len(world.rows("select epoch from leases")) == 2, "only those of the second decision"
        assert [row.attempt for row in await world.replicas(made.id)] == [1, 1]
        await world.check_at_rest()

    world.do(story())


def test_failed_member_rejoins_and_succeeded_member_is_not_missed(world: World) -> None:
    async def story() -> None:
        made = await world.submit(gang={"workers": 2})
        await world.end(made, code=0, index=1)
        await world.pass_time(200)
        states = [row.state for row in await world.replicas(made.id)]
        assert states == [ReplicaState.RUNNING, ReplicaState.SUCCEEDED]
        await world.end(made, code=3, index=0)
        await world.pass_time(10)
        assert [row.attempt for row in await world.replicas(made.id)] == [2, 1]
        await world.end(made, code=0, index=0)
        assert await world.state(made.id) is WorkloadState.SUCCEEDED
        await world.check_at_rest()

    world.do(story())


def test_gang_ends_if_too_few_members_can_run(world: World) -> None:
    async def story() -> None:
        made = await world.submit(gang={"workers": 2, "min": 1}, restart="never")
        await world.end(made, code=3, index=1)
        assert await world.state(made.id) is WorkloadState.RUNNING, "one is enough"
        await world.end(made, code=3, index=0)
        assert await world.state(made.id) is WorkloadState.FAILED
        broken = await world.submit(gang={"workers": 2}, restart="never")
        await world.end(broken, code=3, index=1)
        assert await world.state(broken.id) is WorkloadState.FAILED
        assert "GANG_INCOMPLETE" in await world.reasons(broken.id)
        await world.check_at_rest()

    world.do(story())


def test_run_times_are_learned_and_survive_a_restart(world: World) -> None:
    async def story() -> None:
        for _ in range(6):
            made = await world.submit()
            await world.pass_time(100)
            await world.end(made)
        failed = await world.submit(restart="never")
        await world.pass_time(5000)
        await world.end(failed, code=1)
        for _ in range(2):
            past = world.now.engine.feed.scheduler.demand.ordering.past
            assert past.likely_s("default", "ann", 1000) == pytest.approx(100, abs=5)
            await world.reboot()

    world.do(story())
