"""``top`` on a terminal: a screen that refreshes, and keys that change the view."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from gpupool.cli.render.text import Style, clean, cut, style_of
from gpupool.cli.render.top import TopOptions, TopSection, TopSort, screen
from gpupool.cli.tui.watch import ENTER, HOME, LEAVE, REST_OF_LINE, REST_OF_SCREEN, terminal_rows
from gpupool.domain.errors import GpupoolError

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
    """The keyboard of standard input."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._waiting = ""

    def next(self, timeout_s: float) -> str | None:
        """Return the next key: a character, a name in ``NAMES``, or ``escape`` for an unknown sequence.

        None: timed out.
        """
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
    """Open the keyboard without echo and line mode; yields None when standard input is not a terminal."""
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


HELP = (
    "q  quit",
    "1 2 3 4 5, Tab  all, GPUs, jobs, users, nodes",
    "n  a line for each node instead of each GPU",
    "g u m i a w p  sort jobs by GPUs, use, memory, idle time, age, name, user; again: reverse the order",
    "up down PgUp PgDn Home  scroll",
    "space  refresh now",
    "h ?  this help",
)
SORTS = {
    "g": TopSort.GPUS,
    "u": TopSort.USE,
    "m": TopSort.MEMORY,
    "i": TopSort.IDLE,
    "a": TopSort.AGE,
    "w": TopSort.NAME,
    "p": TopSort.USER,
}
PARTS: dict[str, TopSection | None] = {
    "1": None,
    "2": TopSection.GPU,
    "3": TopSection.JOB,
    "4": TopSection.USER,
    "5": TopSection.NODE,
}
_ORDER = list(PARTS.values())
HEAD_ROWS, FOOT_ROWS = 1, 1


@dataclass(slots=True)
class State:
    """The view, the last data, and the scroll position."""

    view: TopOptions
    top: Any = field(repr=False)
    scroll: int = 0
    helped: bool = False
    ended: bool = False
    problem: str = ""


def handle_key(state: State, key: str, page: int) -> bool:
    """Apply a key; return whether to refresh the data now."""
    view = state.view
    if key in {"q", "Q", "\x03"}:
        state.ended = True
    elif key in {"h", "?"}:
        state.helped = not state.helped
    elif key == "escape":
        state.helped = False
    elif key in SORTS:
        again = view.sort is SORTS[key]
        state.view = replace(view, sort=SORTS[key], reverse=again and not view.reverse)
    elif key in PARTS:
        state.view, state.scroll = replace(view, part=PARTS[key]), 0
    elif key in {"tab", "back tab"}:
        step = 1 if key == "tab" else -1
        part = _ORDER[(_ORDER.index(view.part) + step) % len(_ORDER)]
        state.view, state.scroll = replace(view, part=part), 0
    elif key == "n":
        state.view = replace(view, by_node=not view.by_node)
    else:
        moves = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -page, "page down": page}
        state.scroll = 0 if key == "home" else max(0, state.scroll + moves.get(key, 0))
    return key == "space"


def paint(state: State, style: Style, rows: int) -> str:
    """Return the bytes that put the screen on a terminal with this number of rows, without flicker."""
    lines = list(HELP) if state.helped else screen(state.top, state.view, style)
    head = [] if state.helped else lines[:HEAD_ROWS]
    body = lines[len(head) :]
    room = max(1, rows - len(head) - FOOT_ROWS)
    state.scroll = min(state.scroll, max(0, len(body) - room))
    shown = body[state.scroll : state.scroll + room]
    below = len(body) - state.scroll - len(shown)
    text = [*head, *shown, *[""] * (room - len(shown)), _foot(state, below, style)]
    return HOME + "\n".join(f"{line}{REST_OF_LINE}" for line in text) + REST_OF_SCREEN


def _foot(state: State, below: int, style: Style) -> str:
    if state.problem:
        return style.bold(cut(clean(state.problem), (style.columns or 80) - 1))
    part = state.view.part or "all"
    order = f"{state.view.sort}{', reversed' if state.view.reverse else ''}"
    more = f"  {below} more lines below" if below else ""
    text = f"q quit  h help  Tab view: {part}  jobs by {order}{more}"
    return style.dim(cut(text, (style.columns or 80) - 1))


def run_live(look: Callable[[], Any], view: TopOptions, interval_s: float) -> None:
    """Show the pool until ``q`` or Ctrl-C. Errors of the first request come before the screen opens."""
    state = State(view, look())
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.default_int_handler)
    with keyboard() as keys:
        sys.stdout.write(ENTER)
        try:
            _run(state, look, keys, interval_s)
        except (KeyboardInterrupt, EOFError):
            return
        finally:
            sys.stdout.write(LEAVE)
            sys.stdout.flush()


def _run(state: State, look: Callable[[], Any], keys: Keys | None, interval_s: float) -> None:
    next_refresh = time.monotonic() + interval_s
    while not state.ended:
        rows = terminal_rows()
        sys.stdout.write(paint(state, style_of(sys.stdout), rows))
        sys.stdout.flush()
        key = _key(keys, max(0.0, next_refresh - time.monotonic()))
        if key is None or handle_key(state, key, rows - 3):
            _refresh(state, look)
            next_refresh = time.monotonic() + interval_s


def _key(keys: Keys | None, timeout_s: float) -> str | None:
    if keys is not None:
        return keys.next(timeout_s)
    time.sleep(timeout_s)
    return None


def _refresh(state: State, look: Callable[[], Any]) -> None:
    """Fetch new data; keep the last data on the screen while the pool does not answer."""
    try:
        state.top, state.problem = look(), ""
    except GpupoolError as error:
        state.problem = error.message
