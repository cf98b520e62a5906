"""Live updates of open pages, within a limit on the control plane's time.

Each visible page holds one stream (``GET /live``). After an event the hub sends "changed" on it, and the page requests
its own address again. The hub measures the cost of these requests and notifies pages one after another, so that all
together use at most a fifth of the control plane's time: with more pages, or more expensive ones, each is notified
less often. A page with measured values (``?often=1``) is also notified every few seconds without an event.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from dataclasses import dataclass, field
from time import perf_counter
from types import coroutine
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gpupool.api import streams
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.web.deps import Services, Visitor

router = APIRouter()

T = TypeVar("T")

MAX_TIME_SHARE = 0.2  # of the control plane's time, for all open pages together
MIN_INTERVAL_S = 1.0  # between two messages to one page; up to a quarter more, so that pages do not synchronise
FREQUENT_INTERVAL_S = 2.0  # for pages that show measured values
PING_INTERVAL_S = 15.0
MAX_STREAM_S = 600.0  # then the browser reconnects and authenticates again
MAX_PAGES = 512
MAX_PAGES_PER_USER = 32
_FIRST_COST_S = 0.02
_WEIGHT = 0.2  # of the newest measurement in the moving average

CHANGED = b"event: changed\ndata: {}\n\n"
PING = b": ping\n\n"


@dataclass(eq=False, slots=True)
class OpenPage:
    """One open page: its last notification, and the event that its stream waits for."""

    user: str
    often: bool
    seen: int
    notified_at: float
    interval_s: float
    bell: asyncio.Event = field(default_factory=asyncio.Event)


class LiveHub:
    """Notify open pages of changes. ``news`` yields once for each change of the pool."""

    def __init__(self, news: Callable[[], AsyncIterator[object]], closing: asyncio.Event) -> None:
        self._news = news
        self._closing = closing
        self._watchers: list[OpenPage] = []
        self._generation = 0
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._unpaid_refreshes = 0  # refreshes without a notification: windows of one browser share a stream
        self.cost_s = _FIRST_COST_S

    def record_refresh(self, seconds: float) -> None:
        """Record the cost of one refresh of a page, in seconds."""
        self.cost_s += _WEIGHT * (seconds - self.cost_s)
        self._unpaid_refreshes = min(self._unpaid_refreshes + 1, MAX_PAGES)

    @property
    def gap_s(self) -> float:
        """Time between two messages to any pages."""
        return self.cost_s / MAX_TIME_SHARE

    def stream(self, user: str, *, often: bool, late: bool = False) -> AsyncIterator[bytes]:
        """Return the messages of one page, the first at once if the page is already outdated (``late``).

        Raise TOO_MANY_ATTEMPTS if too many pages are open.
        """
        own = sum(watcher.user == user for watcher in self._watchers)
        if len(self._watchers) >= MAX_PAGES or own >= MAX_PAGES_PER_USER:
            raise GpupoolError(ErrorCode.TOO_MANY_ATTEMPTS, "Too many pages are open.", "Close some of them.")
        return self._messages(user, often=often, late=late)

    async def _messages(self, user: str, *, often: bool, late: bool) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        interval_s = MIN_INTERVAL_S * random.uniform(1, 1.25)  # noqa: S311 - no secret
        watcher = OpenPage(user, often, self._generation - late, loop.time() - late * interval_s, interval_s)
        self._join(watcher)
        try:
            yield b"retry: 3000\n\n"
            end = loop.time() + MAX_STREAM_S
            while not self._closing.is_set() and loop.time() < end:
                yield CHANGED if await self._wait_for_bell(watcher) else PING
        finally:
            self._leave(watcher)

    async def _wait_for_bell(self, watcher: OpenPage) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PING_INTERVAL_S):
                await watcher.bell.wait()
            watcher.bell.clear()
            return not self._closing.is_set()
        return False

    def _join(self, watcher: OpenPage) -> None:
        self._watchers.append(watcher)
        self._wake.set()
        if not self._tasks:
            self._tasks = [asyncio.create_task(work) for work in (self._listen(), self._pace(), self._end())]

    def _leave(self, watcher: OpenPage) -> None:
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
        """Notify the outdated page that was notified longest ago; then wait in proportion to the refresh cost."""
        loop = asyncio.get_running_loop()
        while True:
            watcher, wait_s = self._next(loop.time())
            if watcher is None:
                await self._sleep(wait_s)
                continue
            watcher.seen, watcher.notified_at = self._generation, loop.time()
            watcher.bell.set()
            self._unpaid_refreshes = max(self._unpaid_refreshes - 1, -len(self._watchers))
            await asyncio.sleep(self.gap_s)
            while self._unpaid_refreshes > 0:  # their cost counts, too
                self._unpaid_refreshes -= 1
                await asyncio.sleep(self.gap_s)

    async def _sleep(self, seconds: float) -> None:
        self._wake.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    def _next(self, now: float) -> tuple[OpenPage | None, float]:
        """Return the page to notify now, or None and the time until the next one (news wakes us earlier)."""
        due = [(self._next_message_at(watcher), watcher.notified_at, watcher) for watcher in self._watchers]
        ready = [(notified_at, watcher) for at, notified_at, watcher in due if at <= now]
        if ready:
            return min(ready, key=lambda pair: pair[0])[1], 0.0
        return None, min((at - now for at, _, _ in due), default=PING_INTERVAL_S)

    def _next_message_at(self, watcher: OpenPage) -> float:
        if watcher.seen < self._generation:
            return watcher.notified_at + watcher.interval_s
        return watcher.notified_at + (FREQUENT_INTERVAL_S if watcher.often else PING_INTERVAL_S * 10)


@coroutine
def measure_own_time(work: Awaitable[T], spend: Callable[[float], None]) -> Generator[Any, Any, T]:
    """Await ``work`` and pass the seconds of its own steps to ``spend``, without other tasks in between."""
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


class RefreshCostMiddleware:
    """Measure the cost of live updates."""

    def __init__(self, app: ASGIApp, hub: LiveHub) -> None:
        self.app = app
        self.hub = hub

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request (ASGI entry point)."""
        if scope["type"] == "http" and (b"x-live", b"1") in scope["headers"]:
            await measure_own_time(self.app(scope, receive, send), self.hub.record_refresh)
        else:
            await self.app(scope, receive, send)


@router.get("/live")
async def live(
    request: Request,
    services: Services,
    visitor: Visitor,
    often: Annotated[bool, Query()] = False,
    seen: Annotated[str, Query(pattern="^[0-9]{0,18}$", description="Event count when the page was rendered.")] = "",
) -> Response:
    """Stream server-sent events ``changed``; see the module."""
    hub: LiveHub = request.app.state.live
    late = seen != "" and int(seen) != services.history.count
    return streams.sse(hub.stream(visitor.user, often=often, late=late))
