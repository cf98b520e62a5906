"""Wait reasons for lists: kept for seconds, found within a time limit."""

from __future__ import annotations

import pytest
from pool_world import ANN, World

from gpupool.scheduling.explain.wait_reason import Explanation, WaitCode
from gpupool.services.explain.reason_cache import MAX_AGE_OF_STARTING_S, MAX_AGE_S


def test_reasons_equal_those_of_why(world: World) -> None:
    async def story() -> None:
        await world.submit(gpus={"count": 2})
        waiting = [(await world.submit(ANN, gpus={"count": count})).id for count in (1, 2)]
        found = await world.services.workloads.reason_cache.of(ANN, [*waiting, "w0000000000"])
        assert list(found) == waiting
        for workload in waiting:
            why = await world.services.workloads.why(ANN, workload, foretell=False)
            assert (found[workload].code, found[workload].sentence) == (why.code, why.sentence)

    world.do(story())


def test_reasons_that_are_not_found_in_time_come_with_the_next_calls(world: World) -> None:
    async def story() -> None:
        await world.submit(gpus={"count": 2})
        waiting = [(await world.submit(ANN, gpus={"count": 1})).id for _ in range(3)]
        cache = world.services.workloads.reason_cache
        for known in (1, 2, 3, 3):
            assert list(await cache.of(ANN, waiting, budget_s=0.0)) == waiting[:known]

    world.do(story())


def test_estimates_are_made_for_lists_that_show_them(world: World) -> None:
    async def story() -> None:
        await world.submit(gpus={"count": 2}, max_time="1h")
        waiting = (await world.submit(ANN, gpus={"count": 1})).id
        cache = world.services.workloads.reason_cache
        assert (await cache.of(ANN, [waiting], estimates=False))[waiting].estimate_s is None
        await world.settle()
        assert (await cache.of(ANN, [waiting], estimates=False))[waiting].estimate_s is None
        await cache.of(ANN, [waiting])
        assert cache._making is not None
        await cache._making
        assert (await cache.of(ANN, [waiting], estimates=False))[waiting].estimate_s is not None

    world.do(story())


def test_reason_to_start_soon_is_kept_for_a_second_only(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        await world.submit(gpus={"count": 2})
        waiting = (await world.submit(ANN, gpus={"count": 1})).id
        cache = world.services.workloads.reason_cache
        other = (await cache.of(ANN, [waiting]))[waiting]
        real = cache._reasons.why

        async def why(*_args: object, **_options: object) -> Explanation:
            return Explanation(WaitCode.STARTING_SOON, "is about to start")

        monkeypatch.setattr(cache._reasons, "why", why)
        assert (await cache.of(ANN, [waiting]))[waiting].code is other.code
        world.clock.at += MAX_AGE_S
        assert (await cache.of(ANN, [waiting]))[waiting].code is WaitCode.STARTING_SOON
        monkeypatch.setattr(cache._reasons, "why", real)
        assert (await cache.of(ANN, [waiting]))[waiting].code is WaitCode.STARTING_SOON
        world.clock.at += MAX_AGE_OF_STARTING_S
        assert (await cache.of(ANN, [waiting]))[waiting].code is other.code

    world.do(story())
