"""Estimates of when held requests can be answered."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pool_world import ANN, World
from test_service_serving import pass_turns, request, serving, view

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.protocol.gateway_table import Load
from gpupool.domain.work.workload import Workload
from gpupool.scheduling.explain.wait_reason import Explanation, WaitCode
from gpupool.services.serving.ready_estimate import AwaitedReplica, expected_in_s, rounded

QUEUED: Any = object()


async def in_a_minute(_workload: Workload) -> Explanation:
    return Explanation(WaitCode.STARTING_SOON, "waits", estimate_s=60.0)


async def unknown(_workload: Workload) -> Explanation:
    return Explanation(WaitCode.STARTING_SOON, "waits")


async def fails(_workload: Workload) -> Explanation:
    raise GpupoolError(ErrorCode.NOT_FOUND, "gone", "")


@pytest.mark.parametrize(
    ("awaited", "load_s", "why", "expected"),
    [
        ((), None, in_a_minute, None),
        ((), 20.0, in_a_minute, 20.0),
        ((AwaitedReplica(running_s=15.0),), 20.0, in_a_minute, 5.0),
        ((AwaitedReplica(running_s=50.0),), 20.0, in_a_minute, 0.0),
        ((AwaitedReplica(QUEUED),), 20.0, in_a_minute, 80.0),
        ((AwaitedReplica(QUEUED),), None, in_a_minute, 60.0),
        ((AwaitedReplica(QUEUED),), 20.0, unknown, None),
        ((AwaitedReplica(QUEUED), AwaitedReplica(running_s=1.0)), 20.0, fails, 19.0),
    ],
)
def test_first_replica_counts(
    awaited: tuple[AwaitedReplica, ...], load_s: float | None, why: Any, expected: float | None
) -> None:
    assert asyncio.run(expected_in_s(awaited, load_s, why)) == expected


def test_clients_get_estimates_in_steps() -> None:
    assert [rounded(value) for value in (-3.0, 0.0, 4.0, 5.0, 12.0)] == [5.0, 5.0, 5.0, 5.0, 15.0]


def test_load_time_is_learned_and_held_requests_have_an_estimate(world: World) -> None:
    async def story() -> None:
        row = await serving(world).create(ANN, request(service={"replicas": "0..1"}))
        for _ in range(10):
            await world.pass_time(1.1)
        await pass_turns(world)
        controller = serving(world).controller
        load_s = view(world).status.load_s
        assert load_s is not None
        assert 8 <= load_s <= 16
        assert view(world).status.expected_at is None  # nothing is held
        world.agent.listening = set()
        for _ in range(8):
            await world.pass_time(1.1)  # three failed checks: not ready any more
        controller.take(Load(row.key, 0, 2, 0, 0))
        for _ in range(6):
            await world.pass_time(1.1)
        assert view(world).status.expected_at is not None
        await pass_turns(world)
        for _ in range(6):
            await pass_turns(world, 1)
        assert view(world).status.expected_at is None

    world.do(story())
