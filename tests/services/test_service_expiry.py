"""Workloads that are deleted some time after their end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from pool_world import World

from gpupool.domain.work.workload import Workload
from gpupool.services.ports.store import WorkloadFilter
from gpupool.services.workloads.service import ExpiryLoop


class Expiry:
    """The loop of a control plane, which a test turns by hand. ``reads`` counts its searches of the database."""

    def __init__(self, world: World) -> None:
        for task in asyncio.all_tasks():
            if task.get_name() == "expire":
                task.cancel()
        self._world = world
        self._store = world.now.engine.ports.store
        self._loop = ExpiryLoop(world.now.engine, world.services.workloads)
        self.reads = 0

    async def turn(self, passed_s: float) -> None:
        self._world.clock.at += passed_s
        await self._loop.delete_expired()

    async def left(self, *workloads: Workload) -> list[bool]:
        found = [await self._store.get_workload(each.id) for each in workloads]
        return [each is not None and each.deleted_at is None for each in found]

    def count_reads(self, monkeypatch: pytest.MonkeyPatch) -> None:
        read = self._store.list_workloads

        async def count(wanted: WorkloadFilter) -> Sequence[Workload]:
            self.reads += 1
            return await read(wanted)

        monkeypatch.setattr(self._store, "list_workloads", count)


async def ended(world: World, **fields: Any) -> Workload:
    work = await world.submit(gpus={"count": 0}, **fields)
    await world.end(work)
    return work


def test_workloads_are_deleted_after_their_time_to_live(world: World) -> None:
    async def story() -> None:
        expiry = Expiry(world)
        await expiry.turn(60)
        works = [await ended(world, **ttl) for ttl in ({"ttl": 20}, {"ttl": 100}, {})]
        await expiry.turn(19)
        assert await expiry.left(*works) == [True, True, True]
        await expiry.turn(1)
        assert await expiry.left(*works) == [False, True, True]
        await world.reboot()
        expiry = Expiry(world)
        await expiry.turn(0)
        assert await expiry.left(*works) == [False, True, True]
        await expiry.turn(80)
        assert await expiry.left(*works) == [False, False, True]

    world.do(story())


def test_database_is_searched_only_when_a_workload_has_expired(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        expiry = Expiry(world)
        expiry.count_reads(monkeypatch)
        await expiry.turn(0)
        assert expiry.reads == 1, "what ended before the start"
        await expiry.turn(1000)
        work = await ended(world, ttl=20)
        await expiry.turn(19)
        assert expiry.reads == 1
        await expiry.turn(1)
        assert await expiry.left(work) == [False]
        reads = expiry.reads
        await expiry.turn(1000)
        assert expiry.reads == reads, "nothing is left"

    world.do(story())


def test_deletion_is_repeated_after_an_error(world: World) -> None:
    async def story() -> None:
        expiry = Expiry(world)
        work = await ended(world, ttl=20)
        assert world.store is not None
        world.store.refuse = 1
        await expiry.turn(20)
        assert world.store.refuse == 0
        assert await expiry.left(work) == [True]
        await expiry.turn(5)
        assert await expiry.left(work) == [False]

    world.do(story())
