"""What was made for one viewer, kept for a second for the others who may see the same."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable
from time import monotonic
from typing import Any, Generic, TypeVar

from starlette.requests import Request

T = TypeVar("T")

KEPT_S = 1.0
MOST_KEPT = 32


class Kept(Generic[T]):
    """Values by key, each for a second from when it was begun. The key says whose privacy they respect."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._values: OrderedDict[Hashable, tuple[float, asyncio.Task[T]]] = OrderedDict()

    async def get(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The value under a key, made anew when it is older than a second; who asks meanwhile waits for the same."""
        found = self._values.get(key)
        now = self._clock()
        if found is None or now - found[0] >= KEPT_S:
            found = self._values[key] = (now, asyncio.create_task(make()))
            self._values.move_to_end(key)
            if len(self._values) > MOST_KEPT:
                self._values.popitem(last=False)
        try:
            return await asyncio.shield(found[1])  # whoever hangs up first must not take it from the others
        except Exception:
            if self._values.get(key) is found:
                del self._values[key]
            raise


def kept(request: Request) -> Kept[Any]:
    """What the application keeps; keys begin with the name of the page."""
    state = request.app.state
    if not hasattr(state, "kept"):
        state.kept = Kept[Any]()
    found: Kept[Any] = state.kept
    return found
