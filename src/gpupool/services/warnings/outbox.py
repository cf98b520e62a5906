"""Warnings on their way to one place: those that come together are one message, and a server that fails is asked again.

Nothing here waits for anything else of the pool, and nothing of the pool waits for it.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence

import structlog

from gpupool.domain.warning import HolderWarning
from gpupool.services.warnings.courier import UndeliveredError

TOGETHER_S = 2.0  # warnings that come so soon after the first are sent with it
PAUSE_S = 60.0  # between two messages to the same place
PAUSES_S = (5.0, 25.0, 125.0)  # before each further try
MOST_KEPT = 500  # for one place; older ones are dropped
MOST_AT_ONCE = 4  # messages on their way

log = structlog.get_logger("gpupool.warnings")

Send = Callable[[str, Sequence[HolderWarning]], Awaitable[None]]


class Outbox:
    """One way (``mail``, ``webhook``); ``results`` counts messages by way and by what came of them."""

    def __init__(
        self, way: str, send: Send, sleep: Callable[[float], Awaitable[None]], results: Counter[tuple[str, str]]
    ) -> None:
        self._way = way
        self._send = send
        self._sleep = sleep
        self._results = results
        self._kept: dict[str, deque[HolderWarning]] = {}
        self._sending: dict[str, asyncio.Task[None]] = {}
        self._room = asyncio.Semaphore(MOST_AT_ONCE)

    def put(self, place: str, warning: HolderWarning) -> None:
        """Have a warning sent to a place, soon."""
        kept = self._kept.setdefault(place, deque())
        if len(kept) == MOST_KEPT:
            kept.popleft()
            self._results[self._way, "dropped"] += 1
        kept.append(warning)
        if place not in self._sending:
            self._sending[place] = asyncio.create_task(self._serve(place), name=f"{self._way} {place}")

    async def _serve(self, place: str) -> None:
        pause_s = TOGETHER_S
        try:
            while self._kept.get(place):
                await self._sleep(pause_s)
                warnings = tuple(self._kept.pop(place))
                await self._deliver(place, warnings)
                pause_s = PAUSE_S
        finally:
            self._sending.pop(place, None)

    async def _deliver(self, place: str, warnings: Sequence[HolderWarning]) -> None:
        result = "failed"
        try:
            result = "sent" if await self._try(place, warnings) else "failed"
        except Exception:  # a message that cannot be made must not end those to come
            log.exception("a warning could not be sent", way=self._way)
        self._results[self._way, result] += 1

    async def _try(self, place: str, warnings: Sequence[HolderWarning]) -> bool:
        for pause_s in (*PAUSES_S, None):
            try:
                async with self._room:
                    await self._send(place, warnings)
            except UndeliveredError as error:
                log.warning("a warning was not taken", way=self._way, why=error.message, again=error.again)
                if pause_s is None or not error.again:
                    return False
                await self._sleep(pause_s)
            else:
                return True
        return False

    async def close(self) -> None:
        """Send nothing more."""
        tasks = list(self._sending.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
