"""Frequency of updates of open pages, in virtual time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from gpupool.domain.errors import GpupoolError
from gpupool.web.kit import live
from gpupool.web.kit.live import CHANGED, LiveHub, measure_own_time


class VirtualSelector(selectors.DefaultSelector):
    """Waits by moving the clock."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "nothing will ever happen"
        self.now += timeout
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.virtual = VirtualSelector()
        super().__init__(self.virtual)

    def time(self) -> float:
        return self.virtual.now


def run(work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(work)


class Pages:
    """Some open pages over a hub; each message is noted with its time."""

    def __init__(self, cost_s: float = 0.01) -> None:
        self.bell = asyncio.Event()
        self.closing = asyncio.Event()
        self.hub = LiveHub(self.news, self.closing)
        self.hub.cost_s = cost_s
        self.told: list[list[float]] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def news(self) -> AsyncIterator[None]:
        while True:
            await self.bell.wait()
            self.bell.clear()
            yield

    def open(self, count: int, **options: bool) -> None:
        for _ in range(count):
            times: list[float] = []
            self.told.append(times)
            self.tasks.append(
                asyncio.create_task(self._watch(times, f"user-{len(self.told)}", {"often": False} | options))
            )

    async def _watch(self, times: list[float], user: str, options: Any) -> None:
        async for message in self.hub.stream(user, **options):
            times += [asyncio.get_running_loop().time()] if message == CHANGED else []

    async def happen(self, seconds: float, every_s: float = 0.05) -> None:
        until = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < until:
            self.bell.set()
            await asyncio.sleep(every_s)

    async def end(self) -> None:
        self.closing.set()
        await asyncio.gather(*self.tasks)


def test_page_is_notified_at_once_and_at_most_once_a_second() -> None:
    async def main() -> None:
        pages = Pages()
        pages.open(1)
        await asyncio.sleep(5)
        await pages.happen(0.01)
        assert len(pages.told[0]) == 1
        assert pages.told[0][0] < 5.02
        await pages.happen(20)
        apart = [b - a for a, b in zip(pages.told[0], pages.told[0][1:], strict=False)]
        assert len(apart) > 10
        assert min(apart) >= live.MIN_INTERVAL_S
        await pages.end()

    run(main())


@pytest.mark.parametrize("cost_s", [0.002, 0.02, 0.2])
def test_open_pages_use_at_most_a_fifth_of_the_time(cost_s: float) -> None:
    async def main() -> None:
        pages = Pages(cost_s)
        pages.open(50)
        await pages.happen(200)
        looks = [len(times) for times in pages.told]
        assert sum(looks) * cost_s <= 200 * live.MAX_TIME_SHARE + cost_s
        assert max(looks) - min(looks) <= max(2, 0.25 * max(looks)), "everybody gets a turn"
        assert sum(looks) * cost_s > 0.8 * min(
            200 * live.MAX_TIME_SHARE, 50 * 200 * cost_s / (1.25 * live.MIN_INTERVAL_S)
        )
        await pages.end()

    run(main())


def test_outdated_page_is_notified_at_once() -> None:
    async def main() -> None:
        pages = Pages()
        pages.open(1)
        pages.open(1, late=True)
        await asyncio.sleep(30)
        assert [len(times) for times in pages.told] == [0, 1]
        assert pages.told[1][0] < 0.5
        await pages.end()

    run(main())


def test_idle_pool_notifies_only_pages_of_measurements() -> None:
    async def main() -> None:
        pages = Pages()
        pages.open(1)
        pages.open(1, often=True)
        await asyncio.sleep(60)
        assert pages.told[0] == []
        assert 25 <= len(pages.told[1]) <= 30
        await pages.end()

    run(main())


def test_number_of_streams_per_user_is_limited() -> None:
    async def main() -> None:
        hub = LiveHub(Pages().news, asyncio.Event())
        held = [hub.stream("ada", often=False) for _ in range(live.MAX_PAGES_PER_USER)]
        for stream in held:
            await anext(stream)
        with pytest.raises(GpupoolError, match="Too many pages"):
            hub.stream("ada", often=False)
        hub.stream("grace", often=False)
        for stream in held:
            await stream.aclose()  # type: ignore[attr-defined]
        hub.stream("ada", often=False)

    run(main())


def test_cost_of_a_refresh_counts_its_own_steps_and_raises_errors() -> None:
    spent: list[float] = []

    async def look() -> str:
        await asyncio.sleep(3)
        return "seen"

    async def main() -> None:
        assert await measure_own_time(look(), spent.append) == "seen"
        task = asyncio.ensure_future(measure_own_time(look(), spent.append))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main())
    assert len(spent) == 2
    assert max(spent) < 1, "what others do meanwhile is not counted"
