"""Answers about the past that many ask for at once: worked out once, kept for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Kept:
    until: float
    answer: asyncio.Future[Any]


class Remembered:
    """At most ``most`` answers by key; whoever asks while one is worked out waits for the same one."""

    def __init__(self, monotonic: Callable[[], float], most: int = 256) -> None:
        self._monotonic = monotonic
        self._most = most
        self._kept: dict[Hashable, _Kept] = {}

    async def get(self, key: Hashable, lasts_s: float, work: Callable[[], Awaitable[T]]) -> T:
        """The answer to ``key``, by ``work`` when none is younger than ``lasts_s``; a failure is not kept."""
        now = self._monotonic()
        kept = self._kept.get(key)
        if kept is None or kept.until <= now:
            self._make_room(now)
            kept = self._kept[key] = _Kept(now + lasts_s, asyncio.ensure_future(work()))
            kept.answer.add_done_callback(lambda answer: self._forget_failed(key, answer))
        answer: T = await asyncio.shield(kept.answer)  # others wait for it too
        return answer

    def _forget_failed(self, key: Hashable, answer: asyncio.Future[Any]) -> None:
        if answer.cancelled() or answer.exception() is not None:
            kept = self._kept.get(key)
            if kept is not None and kept.answer is answer:
                del self._kept[key]

    def _make_room(self, now: float) -> None:
        for key in [key for key, kept in self._kept.items() if kept.until <= now and kept.answer.done()]:
            del self._kept[key]
        while len(self._kept) >= self._most:
            del self._kept[next(iter(self._kept))]
