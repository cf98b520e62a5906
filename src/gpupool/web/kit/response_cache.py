"""Cache of page values for one second, shared by viewers with the same rights."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable
from time import monotonic
from typing import Any, Generic, TypeVar

from starlette.requests import Request

T = TypeVar("T")

MAX_AGE_S = 1.0
MAX_ENTRIES = 32


class ResponseCache(Generic[T]):
    """Values by key for ``MAX_AGE_S`` from the start of their computation. The key includes the viewer's rights."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._values: OrderedDict[Hashable, tuple[float, asyncio.Task[T]]] = OrderedDict()

    async def get(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return a cached value or compute it; concurrent callers wait for the same computation."""
        found = self._values.get(key)
        now = self._clock()
        if found is None or now - found[0] >= MAX_AGE_S:
            found = self._values[key] = (now, asyncio.create_task(make()))
            self._values.move_to_end(key)
            if len(self._values) > MAX_ENTRIES:
                self._values.popitem(last=False)
        try:
            return await asyncio.shield(found[1])  # a disconnecting client must not cancel it for others
        except Exception:
            if self._values.get(key) is found:
                del self._values[key]
            raise


def cache_of(request: Request) -> ResponseCache[Any]:
    """Return the application's cache; keys start with the name of the page."""
    found: ResponseCache[Any] = request.app.state.response_cache
    return found
