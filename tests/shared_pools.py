"""Pools that several modules of tests share, of which each test process keeps only a few open.

An idle pool takes 2 to 5 % of a processor, and a start 0.5 to 2 s of its time. A fixture of a module borrows the pool
of its kind and returns it at the end of the module. The pool stays open for the next module until room is needed, or
until it has been idle for so long that another start would have taken less.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

Pool = TypeVar("Pool")
MAX_OPEN = 2
MAX_IDLE_S = 30.0


@dataclass
class OpenPool:
    """A pool, the function that closes it, how many fixtures use it now, and when one returned it last."""

    pool: Any
    close: Callable[[], None]
    users: int = 0
    returned_at: float = 0.0


class SharedPools:
    """The open pools of this process by kind, the least recently used first.

    A start that fails raises for the module that asked. An end that fails raises in ``close``, as the module that needs
    the room is not to blame.
    """

    def __init__(self, max_open: int = MAX_OPEN, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_open, self._clock = max_open, clock
        self._open: dict[str, OpenPool] = {}
        self._errors: list[Exception] = []

    @contextmanager
    def use(self, kind: str, start: Callable[[], AbstractContextManager[Pool]]) -> Iterator[Pool]:
        """Yield the pool of a kind, started if it is not open; it is not closed before the end of this context."""
        if kind not in self._open:
            self._make_room()
            stack = ExitStack()
            self._open[kind] = OpenPool(stack.enter_context(start()), stack.close)
        used = self._open[kind]
        used.users += 1
        try:
            yield used.pool
        finally:
            used.users -= 1
            used.returned_at = self._clock()
            self._open[kind] = self._open.pop(kind)  # to the end: used last

    def close_idle(self) -> None:
        """Close pools that nobody has used for ``MAX_IDLE_S``."""
        for kind in self._unused():
            if self._clock() - self._open[kind].returned_at >= MAX_IDLE_S:
                self._close(kind)

    def close(self) -> None:
        """Close all pools; raise the errors of all that did not end as they should."""
        with ExitStack() as stack:  # it continues after an error, also after Ctrl-C
            for kind in self._open:
                stack.callback(self._close, kind)
        if self._errors:
            raise ExceptionGroup("Shared pools failed to stop", self._errors)

    def _make_room(self) -> None:
        """Close pools that nobody uses, until there is room for one more."""
        for kind in self._unused()[: max(0, len(self._open) + 1 - self._max_open)]:
            self._close(kind)

    def _unused(self) -> list[str]:
        return [kind for kind, each in self._open.items() if not each.users]

    def _close(self, kind: str) -> None:
        try:
            self._open.pop(kind).close()
        except Exception as error:  # noqa: BLE001 - `close` raises it
            error.add_note(f"The shared pool {kind!r} was being closed.")
            self._errors.append(error)
