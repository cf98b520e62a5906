"""Keys as they are pressed, from a terminal that does not wait for Enter."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator

ESCAPE = "\x1b"
NAMES = {
    "[A": "up",
    "[B": "down",
    "OA": "up",
    "OB": "down",
    "[5~": "page up",
    "[6~": "page down",
    "[H": "home",
    "[F": "end",
    "OH": "home",
    "OF": "end",
    "[Z": "back tab",
    "\t": "tab",
    " ": "space",
}


class Keys:
    """The keyboard of standard input; None is what comes when nothing was pressed in time."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._waiting = ""

    def next(self, timeout_s: float) -> str | None:
        """The next key: a character, or a name as in ``NAMES``; ``escape`` for one that has none. None: too late."""
        deadline = time.monotonic() + timeout_s
        while not self._waiting:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._descriptor], [], [], left)[0]:
                return None
            data = os.read(self._descriptor, 64)
            if not data:
                raise EOFError
            self._waiting = data.decode(errors="replace")
        return self._take()

    def _take(self) -> str:
        if self._waiting[0] == ESCAPE:
            for code, name in NAMES.items():
                if self._waiting.startswith(ESCAPE + code):
                    self._waiting = self._waiting[1 + len(code) :]
                    return name
            self._waiting = ""
            return "escape"
        key, self._waiting = self._waiting[0], self._waiting[1:]
        return NAMES.get(key, key)


@contextlib.contextmanager
def keyboard() -> Iterator[Keys | None]:
    """The keyboard with echo and lines turned off meanwhile; None when standard input is no terminal."""
    if not sys.stdin.isatty():
        yield None
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield Keys(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
