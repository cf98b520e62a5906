"""Rate limit on log lines that clients can cause."""

from __future__ import annotations

import logging
from collections.abc import Callable

MAX_LINES = 20
WINDOW_S = 60.0
MAX_KEYS = 256


class LogLimit:
    """A limit of ``lines`` for each key in ``window_s`` seconds; it counts the lines above the limit."""

    def __init__(self, clock: Callable[[], float], lines: int = MAX_LINES, window_s: float = WINDOW_S) -> None:
        self._clock = clock
        self._lines = lines
        self._window_s = window_s
        self._since: dict[str, float] = {}
        self._seen: dict[str, int] = {}
        self._left_out: dict[str, int] = {}

    def allows(self, key: str) -> bool:
        """Return True if a line with this key may be written now, and count it."""
        now = self._clock()
        if now - self._since.get(key, -self._window_s) >= self._window_s:
            if len(self._since) >= MAX_KEYS:
                self._since.clear()
                self._seen.clear()
                self._left_out.clear()
            self._since[key], self._seen[key] = now, 0
        self._seen[key] += 1
        allowed = self._seen[key] <= self._lines
        if not allowed:
            self._left_out[key] = self._left_out.get(key, 0) + 1
        return allowed

    def take_left_out(self, key: str) -> int:
        """Return how many lines with this key were left out since the last call, and reset the count."""
        return self._left_out.pop(key, 0)


class LimitedLines(logging.Filter):
    """A ``LogLimit`` for the logger of a library; the key is the message before its arguments are filled in."""

    def __init__(self, limit: LogLimit) -> None:
        super().__init__()
        self._limit = limit

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if the line is to be written; the first line after omitted ones says how many were omitted."""
        key = str(record.msg)[:100]
        if not self._limit.allows(key):
            return False
        left_out = self._limit.take_left_out(key)
        if left_out:
            record.msg = f"{record.msg} ({left_out} more like this were not logged)"
        return True
