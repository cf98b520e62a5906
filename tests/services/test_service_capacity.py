"""Recorded capacity while GPUs join, fail, are cordoned and leave."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest
from pool_world import ADMIN, ANN, BEGIN, World

from gpupool.domain.nodes.capacity import CapacitySeconds
from gpupool.domain.nodes.gpu import Gpu, GpuHealth
from gpupool.services.nodes.monitoring import CapacityRecorder
from gpupool.services.state.node_registry import NodeRegistry


def seconds(world: World, since: float, until: float) -> CapacitySeconds:
    return world.do(world.services.analytics.capacity((since, until), 0.0))[0]


def wait_for_first_record(world: World) -> None:
    """Wait for the recorder, because ``pass_time`` does not."""
    deadline = time.monotonic() + 60
    while not world.do(world.now.engine.ports.store.capacity.present()):
        assert time.monotonic() < deadline


def test_no_capacity_before_the_pool_existed(world: World) -> None:
    world.do(world.pass_time(100))
    wait_for_first_record(world)
    recorded = world.clock.at
    world.do(world.pass_time(100))
    assert seconds(world, BEGIN - 86_400, BEGIN - 1).present_s == 0
    assert seconds(world, recorded, recorded + 100) == CapacitySeconds(200, 200)


def test_cordoned_node_is_present_and_not_available(world: World) -> None:
    world.do(world.pass_time(10))
    begin = world.clock.at
    world.do(world.services.nodes.cordon(ADMIN, "here", "repair"))
    world.do(world.pass_time(100))
    middle = world.clock.at
    world.do(world.services.nodes.uncordon(ADMIN, "here"))
    world.do(world.pass_time(100))
    found = seconds(world, begin, middle)
    assert found.present_s == 200
    assert 0 <= found.available_s <= 2 * 100  # noticed within one period of the clock
    assert seconds(world, middle - 50, middle).available_s < seconds(world, middle - 50, middle).present_s
    deadline = time.monotonic() + 20  # the record is written in the background
    later = world.clock.at
    world.do(world.pass_time(50))
    while seconds(world, later, later + 50) != CapacitySeconds(100, 100):
        assert time.monotonic() < deadline
        later = world.clock.at
        world.do(world.pass_time(50))


def test_failed_and_removed_gpus_change_capacity(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.do(world.pass_time(10))
    whole = world.agent.report()

    def gpus_become(*gpus: Gpu) -> float:
        monkeypatch.setattr(world.agent, "report", lambda: replace(whole, gpus=gpus))
        for _ in range(4):
            world.do(world.pass_time(6))
        return world.clock.at

    failed = gpus_become(replace(whole.gpus[0], health=GpuHealth.FAILED), whole.gpus[1])
    world.do(world.pass_time(50))
    assert seconds(world, failed, failed + 50) == CapacitySeconds(100, 50)
    gone = gpus_become(whole.gpus[1])
    world.do(world.pass_time(50))
    assert seconds(world, gone, gone + 50) == CapacitySeconds(50, 50)
    assert seconds(world, failed, failed + 50) == CapacitySeconds(100, 50), "the past stays as it was"


def test_node_is_down_since_its_last_heartbeat(world: World) -> None:
    world.do(world.pass_time(10))
    silent = world.clock.at
    world.agent.go(up=False)
    for _ in range(8):
        world.do(world.pass_time(5))
    assert seconds(world, silent, silent + 20) == CapacitySeconds(40, pytest.approx(0, abs=10))


def test_control_plane_restart_loses_no_capacity(world: World) -> None:
    world.do(world.submit(ANN, gpus={"count": 1}))
    world.do(world.pass_time(10))
    begin = world.clock.at
    world.do(world.reboot())
    world.do(world.pass_time(30))
    assert seconds(world, begin, world.clock.at) == CapacitySeconds(60, 60)


@pytest.mark.parametrize("turns", range(4))  # of the event loop between the change and the cancellation
def test_task_ends_when_cancelled_during_a_node_change(world: World, turns: int) -> None:
    async def story() -> None:
        book = NodeRegistry()
        recorder = CapacityRecorder(world.now.engine, book)
        await recorder.record()  # from now on there is nothing to write
        task = asyncio.create_task(recorder.run())
        for _ in range(5):
            await asyncio.sleep(0)
        book.changed.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task}, timeout=10)
        assert task.cancelled()

    world.do(story())
