"""How often open pages are told to look again: in virtual time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from gpupool.domain.errors import GpupoolError
from gpupool.web import live
from gpupool.web.live import CHANGED, LiveHub, measured


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


def test_a_page_is_told_at_once_but_not_more_than_once_a_second() -> None:
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
        assert min(apart) >= live.APART_S
        await pages.end()

    run(main())


@pytest.mark.parametrize("cost_s", [0.002, 0.02, 0.2])
def test_all_open_pages_together_take_a_fifth_of_the_time_at_most(cost_s: float) -> None:
    async def main() -> None:
        pages = Pages(cost_s)
        pages.open(50)
        await pages.happen(200)
        looks = [len(times) for times in pages.told]
        assert sum(looks) * cost_s <= 200 * live.SHARE + cost_s
        assert max(looks) - min(looks) <= max(2, 0.25 * max(looks)), "everybody gets a turn"
        assert sum(looks) * cost_s > 0.8 * min(200 * live.SHARE, 50 * 200 * cost_s / (1.25 * live.APART_S))
        await pages.end()

    run(main())


def test_a_page_that_is_late_already_is_told_at_once() -> None:
    async def main() -> None:
        pages = Pages()
        pages.open(1)
        pages.open(1, late=True)
        await asyncio.sleep(30)
        assert [len(times) for times in pages.told] == [0, 1]
        assert pages.told[1][0] < 0.5
        await pages.end()

    run(main())


def test_a_quiet_pool_sends_nothing_but_to_pages_of_measured_values() -> None:
    async def main() -> None:
        pages = Pages()
        pages.open(1)
        pages.open(1, often=True)
        await asyncio.sleep(60)
        assert pages.told[0] == []
        assert 25 <= len(pages.told[1]) <= 30
        await pages.end()

    run(main())


def test_one_user_cannot_hold_all_streams() -> None:
    async def main() -> None:
        hub = LiveHub(Pages().news, asyncio.Event())
        held = [hub.stream("ada", often=False) for _ in range(live.MOST_PAGES_OF_ONE)]
        for stream in held:
            await anext(stream)
        with pytest.raises(GpupoolError, match="Too many pages"):
            hub.stream("ada", often=False)
        hub.stream("grace", often=False)
        for stream in held:
            await stream.aclose()  # type: ignore[attr-defined]
        hub.stream("ada", often=False)

    run(main())


def test_the_cost_of_a_look_is_its_own_steps_and_its_errors_come_out() -> None:
    spent: list[float] = []

    async def look() -> str:
        await asyncio.sleep(3)
        return "seen"

    async def main() -> None:
        assert await measured(look(), spent.append) == "seen"
        task = asyncio.ensure_future(measured(look(), spent.append))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main())
    assert len(spent) == 2
    assert max(spent) < 1, "what others do meanwhile is not counted"
