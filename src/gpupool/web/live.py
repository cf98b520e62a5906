"""Keeps open pages up to date without slowing the pool down.

Each visible page holds one stream (``GET /live``). When something has happened the hub says "changed" on it, and the
page asks for its own address again. What those looks cost is measured, and browsers are told one after another, so
slowly that all of them together take at most a fifth of the control plane's time: with more browsers, or dearer
pages, each is told less often. A page that shows measured values (``?often=1``) is told every few seconds anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from dataclasses import dataclass, field
from time import perf_counter
from types import coroutine
from typing import Any, TypeVar

from starlette.types import ASGIApp, Receive, Scope, Send

from gpupool.domain.errors import ErrorCode, GpupoolError

T = TypeVar("T")

SHARE = 0.2  # of the control plane's time, for all open pages together
APART_S = 1.0  # two messages to one page; up to a quarter more, so that pages do not stay in step
OFTEN_S = 2.0  # for pages that show measured values
PING_S = 15.0
LIFE_S = 600.0  # then the browser connects anew, and shows again who it is
MOST_PAGES = 512
MOST_PAGES_OF_ONE = 32
_FIRST_COST_S = 0.02
_WEIGHT = 0.2  # of the newest look in the mean

CHANGED = b"event: changed\ndata: {}\n\n"
PING = b": ping\n\n"


@dataclass(eq=False, slots=True)
class Watcher:
    """One open page: what it was told last, and the bell that its stream waits for."""

    user: str
    often: bool
    seen: int
    told_at: float
    apart_s: float
    bell: asyncio.Event = field(default_factory=asyncio.Event)


class LiveHub:
    """Says to open pages that they are out of date. ``news`` gives something each time that anything happened."""

    def __init__(self, news: Callable[[], AsyncIterator[object]], closing: asyncio.Event) -> None:
        self._news = news
        self._closing = closing
        self._watchers: list[Watcher] = []
        self._generation = 0
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._looks = 0  # more than were told to: windows of one browser share a stream
        self.cost_s = _FIRST_COST_S

    def looked(self, seconds: float) -> None:
        """What one page that was asked for again has cost."""
        self.cost_s += _WEIGHT * (seconds - self.cost_s)
        self._looks = min(self._looks + 1, MOST_PAGES)

    @property
    def gap_s(self) -> float:
        """The time from one message to the next, whoever gets it."""
        return self.cost_s / SHARE

    def stream(self, user: str, *, often: bool, late: bool = False) -> AsyncIterator[bytes]:
        """The messages of one page, the first at once when it is ``late`` already.

        Raises TOO_MANY_ATTEMPTS when too many are open.
        """
        own = sum(watcher.user == user for watcher in self._watchers)
        if len(self._watchers) >= MOST_PAGES or own >= MOST_PAGES_OF_ONE:
            raise GpupoolError(ErrorCode.TOO_MANY_ATTEMPTS, "Too many pages are open.", "Close some of them.")
        return self._messages(user, often=often, late=late)

    async def _messages(self, user: str, *, often: bool, late: bool) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        apart_s = APART_S * random.uniform(1, 1.25)  # noqa: S311 - no secret
        watcher = Watcher(user, often, self._generation - late, loop.time() - late * apart_s, apart_s)
        self._join(watcher)
        try:
            yield b"retry: 3000\n\n"
            end = loop.time() + LIFE_S
            while not self._closing.is_set() and loop.time() < end:
                yield CHANGED if await self._rings(watcher) else PING
        finally:
            self._leave(watcher)

    async def _rings(self, watcher: Watcher) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PING_S):
                await watcher.bell.wait()
            watcher.bell.clear()
            return not self._closing.is_set()
        return False

    def _join(self, watcher: Watcher) -> None:
        self._watchers.append(watcher)
        self._wake.set()
        if not self._tasks:
            self._tasks = [asyncio.create_task(work) for work in (self._listen(), self._pace(), self._end())]

    def _leave(self, watcher: Watcher) -> None:
        self._watchers.remove(watcher)
        if not self._watchers:
            for task in self._tasks:
                task.cancel()
            self._tasks = []

    async def _listen(self) -> None:
        async for _ in self._news():
            self._generation += 1
            self._wake.set()

    async def _end(self) -> None:
        await self._closing.wait()
        for watcher in self._watchers:
            watcher.bell.set()

    async def _pace(self) -> None:
        """Tell whoever is due and was told longest ago; then wait for as long as the look may have to pay off."""
        loop = asyncio.get_running_loop()
        while True:
            watcher, wait_s = self._next(loop.time())
            if watcher is None:
                await self._sleep(wait_s)
                continue
            watcher.seen, watcher.told_at = self._generation, loop.time()
            watcher.bell.set()
            self._looks = max(self._looks - 1, -len(self._watchers))
            await asyncio.sleep(self.gap_s)
            while self._looks > 0:  # they have to pay off, too
                self._looks -= 1
                await asyncio.sleep(self.gap_s)

    async def _sleep(self, seconds: float) -> None:
        self._wake.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    def _next(self, now: float) -> tuple[Watcher | None, float]:
        """The page to tell now, or None and how long nobody can be due (news wakes us sooner)."""
        due = [(self._due_at(watcher), watcher.told_at, watcher) for watcher in self._watchers]
        ready = [(told_at, watcher) for at, told_at, watcher in due if at <= now]
        if ready:
            return min(ready, key=lambda pair: pair[0])[1], 0.0
        return None, min((at - now for at, _, _ in due), default=PING_S)

    def _due_at(self, watcher: Watcher) -> float:
        if watcher.seen < self._generation:
            return watcher.told_at + watcher.apart_s
        return watcher.told_at + (OFTEN_S if watcher.often else PING_S * 10)


@coroutine
def measured(work: Awaitable[T], spend: Callable[[float], None]) -> Generator[Any, Any, T]:
    """Await ``work`` and tell ``spend`` the seconds that its own steps took, without those of others in between."""
    steps = work.__await__()
    value: Any = None
    error: BaseException | None = None
    spent = 0.0
    try:
        while True:
            began = perf_counter()
            try:
                asked = steps.send(value) if error is None else steps.throw(error)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                spent += perf_counter() - began
            try:
                value, error = (yield asked), None
            except BaseException as thrown:  # noqa: BLE001 - handed on to the work, cancellation included
                value, error = None, thrown
    finally:
        spend(spent)


class MeasuredLooks:
    """Measures what pages cost that are asked for again."""

    def __init__(self, app: ASGIApp, hub: LiveHub) -> None:
        self.app = app
        self.hub = hub

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry point."""
        if scope["type"] == "http" and (b"x-live", b"1") in scope["headers"]:
            await measured(self.app(scope, receive, send), self.hub.looked)
        else:
            await self.app(scope, receive, send)
