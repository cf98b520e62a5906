"""The pool sums past hours automatically, also after a kill, and keeps its rates."""

from __future__ import annotations

import asyncio

import pytest
from pool_world import ADMIN, ANN, BEGIN, World, refused

from gpupool.domain.errors import ErrorCode
from gpupool.domain.usage import CostRates, GroupBy, Period, Steps


def test_hours_are_summed_while_work_runs_and_after_a_kill(world: World) -> None:
    async def story() -> None:
        job = await world.submit(ANN, name="long", gpus={"fraction": 0.5})
        for _ in range(3):
            await world.pass_time(1800)
        await world.reboot()
        for _ in range(5):
            await world.pass_time(1800)
        assert world.store is not None
        summed = await world.store.usage_books.summed_until()
        for _ in range(1000):
            if summed >= BEGIN + 3600:
                break
            await asyncio.sleep(0.02)
            summed = await world.store.usage_books.summed_until()
        assert BEGIN + 3600 <= summed <= world.clock.at
        await world.end(job)
        accounting, until = world.services.accounting, world.clock.at
        (line,) = await accounting.usage(BEGIN, until, GroupBy.USER)
        lease = (await world.store.leases_of(job.id))[0]
        assert lease.released_at is not None
        assert line.time.allocated_s == pytest.approx(0.5 * (lease.released_at - lease.granted_at), abs=1e-6)
        assert line.time.requested_s == pytest.approx(0.5 * (lease.released_at - job.created_at), abs=1e-6)
        steps = await accounting.usage(BEGIN, until, GroupBy.POOL, Steps(Period.HOUR))
        assert sum(step.time.allocated_s for step in steps) == pytest.approx(line.time.allocated_s, abs=1e-6)

    world.do(story())


def test_only_administrators_set_rates_and_rates_are_stored(world: World) -> None:
    async def story() -> None:
        accounting = world.services.accounting
        await refused(lambda: accounting.set_rates(ANN, CostRates("EUR", 1.0)), ErrorCode.FORBIDDEN)
        await refused(lambda: accounting.set_rates(ADMIN, CostRates("EUR", -1.0)), ErrorCode.INVALID_REQUEST)
        rates = CostRates("EUR", 1.0, (("a100", 2.0),))
        await accounting.set_rates(ADMIN, rates)
        await world.reboot()
        assert world.services.accounting.rates == rates

    world.do(story())


def test_invalid_rates_are_refused(world: World) -> None:
    async def story() -> None:
        accounting = world.services.accounting
        await refused(lambda: accounting.usage(10.0, 5.0), ErrorCode.INVALID_REQUEST)
        await refused(lambda: accounting.waits(0.0, 5.0, GroupBy.NODE), ErrorCode.INVALID_REQUEST)
        away = Steps(Period.DAY, "Mars/Base")
        await refused(lambda: accounting.usage(0.0, 5.0, GroupBy.POOL, away), ErrorCode.INVALID_REQUEST)

    world.do(story())
