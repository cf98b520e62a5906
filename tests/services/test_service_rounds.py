"""Rounds of gangs under faults: running members belong to one round with the same rendezvous."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pool_world import ANN, World, world_in

from gpupool.domain.work.workload import ReplicaState, Workload, WorkloadState
from gpupool.specs.request import parse_request

TORCH: dict[str, Any] = {"kind": "training", "command": ["work"], "framework": "torch", "gang": {"workers": 3}}


@pytest.fixture
def three(tmp_path: Path) -> Iterator[World]:
    with world_in(tmp_path, 3) as made:
        yield made


def check_one_round(world: World, workload: Workload, size: int) -> None:
    told = [p.spec.env for p in world.agent.running() if p.spec.key.startswith(f"{workload.id}.")]
    assert len(told) == size
    for name in ("GPUPOOL_ROUND", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"):
        assert len({env[name] for env in told}) == 1, name
    assert sorted(env["RANK"] for env in told) == [str(rank) for rank in range(size)]
    assert told[0]["WORLD_SIZE"] == str(size)


@pytest.mark.parametrize("commits", [1, 2, 3])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_crash_at_any_commit_of_a_start_leaves_one_round(three: World, commits: int, moment: str) -> None:
    async def story() -> None:
        assert three.store is not None
        body = parse_request(TORCH | {"request_id": "one"})
        three.store.die = (commits, moment)
        await three.attempt(three.services.workloads.submit(ANN, body))
        await three.settle()
        await three.reboot()
        made, _ = await three.services.workloads.submit(ANN, body)
        await three.settle()
        check_one_round(three, await three.get(made.id), 3)
        three.check_always()
        await three.check_at_rest()

    three.do(story())


@pytest.mark.parametrize("commits", [1, 2, 4])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_crash_at_any_commit_of_a_restart_leaves_one_round(three: World, commits: int, moment: str) -> None:
    async def story() -> None:
        made = await three.submit(**TORCH)
        assert three.store is not None
        three.store.die = (commits, moment)
        three.agent.end(three.program(made, 1), 3)
        for _ in range(3):
            await three.pass_time(15)
        await three.reboot()
        for _ in range(4):
            await three.pass_time(15)
        check_one_round(three, made, 3)
        rows = await three.replicas(made.id)
        assert [row.failures for row in rows] == [0, 1, 0]
        assert {row.attempt for row in rows} == {2}
        three.check_always()
        await three.check_at_rest()

    three.do(story())


@pytest.mark.parametrize("fate", ["before", "after"])
def test_lost_messages_to_node_are_repeated(three: World, fate: str) -> None:
    async def story() -> None:
        three.agent.losses = [fate] * 4
        made = await three.submit(**TORCH)
        for _ in range(5):
            await three.pass_time(2)
        check_one_round(three, made, 3)
        await three.check_at_rest()

    three.do(story())


def test_more_members_join_in_a_new_round_after_a_delay(three: World) -> None:
    async def story() -> None:
        wall = await three.submit(kind="run")
        made = await three.submit(**TORCH | {"gang": {"workers": 3, "min": 2}})
        check_one_round(three, made, 2)
        await three.end(wall)
        await three.pass_time(200)
        check_one_round(three, made, 2)
        await three.pass_time(110)
        for _ in range(4):
            await three.pass_time(12)
        check_one_round(three, made, 3)
        rows = await three.replicas(made.id)
        assert {row.failures for row in rows} == {0}
        await three.check_at_rest()

    three.do(story())


def test_members_that_never_joined_do_not_repeat_the_work(three: World) -> None:
    async def story() -> None:
        wall = await three.submit(kind="run")
        made = await three.submit(**TORCH | {"gang": {"workers": 3, "min": 2}})
        check_one_round(three, made, 2)
        for number in range(2):
            three.agent.end(three.program(made, number), 0)
        await three.settle()
        await three.end(wall)
        await three.pass_time(20)
        assert await three.state(made.id) is WorkloadState.SUCCEEDED
        assert [row.attempt for row in await three.replicas(made.id)] == [1, 1, 0]
        await three.check_at_rest()

    three.do(story())


def test_remaining_members_continue_in_a_smaller_round(three: World) -> None:
    async def story() -> None:
        made = await three.submit(**TORCH | {"gang": {"workers": 3, "min": 2}})
        check_one_round(three, made, 3)
        three.agent.end(three.program(made, 0), 1)
        wall = await three.submit(kind="run", wait=60, priority=100)
        for _ in range(4):
            await three.pass_time(12)
        assert three.is_running(wall)
        check_one_round(three, made, 2)
        await three.check_at_rest()

    three.do(story())


def test_stop_during_restart_ends_the_gang(three: World) -> None:
    async def story() -> None:
        made = await three.submit(**TORCH)
        three.agent.end(three.program(made, 1), 3)
        await three.settle()
        await three.services.workloads.stop(ANN, made.id)
        for _ in range(3):
            await three.pass_time(15)
        assert await three.state(made.id) in {WorkloadState.STOPPED, WorkloadState.FAILED}
        assert not three.is_running(made)
        assert all(row.state is not ReplicaState.PENDING for row in await three.replicas(made.id))
        await three.check_at_rest()

    three.do(story())
