"""Screens that refresh until Ctrl-C."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable

from gpupool.cli.output import show
from gpupool.cli.render.text import Style, style_of

INTERVAL_S = 2.0
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
HOME, REST_OF_LINE, REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


def watch_screen(screen: Callable[[Style], Iterable[str]], interval_s: float = INTERVAL_S) -> None:
    """Show a screen every few seconds, in the terminal's alternate buffer. Without a terminal it is shown once."""
    if not sys.stdout.isatty():
        show(screen(style_of(sys.stdout)))
        return
    import signal

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.default_int_handler)
    first = list(screen(style_of(sys.stdout)))  # errors come before the screen opens
    sys.stdout.write(ENTER)
    try:
        while True:
            sys.stdout.write(paint(first, terminal_rows()))
            sys.stdout.flush()
            time.sleep(interval_s)
            first = list(screen(style_of(sys.stdout)))
    except KeyboardInterrupt:
        return
    finally:
        sys.stdout.write(LEAVE)
        sys.stdout.flush()


def paint(lines: list[str], rows: int) -> str:
    """Return the bytes that put lines on a screen of this many rows, without flicker.

    The last row counts the lines that do not fit.
    """
    if len(lines) > rows - 1:
        hidden = len(lines) - (rows - 2)
        lines = [*lines[: rows - 2], f"… and {hidden} more lines"]
    return HOME + "".join(f"{line}{REST_OF_LINE}\n" for line in lines) + REST_OF_SCREEN


def terminal_rows() -> int:
    """Return the number of rows of the terminal on stdout."""
    import os

    try:
        return max(os.get_terminal_size(sys.stdout.fileno()).lines, 5)
    except OSError:
        return 24
