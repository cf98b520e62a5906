"""``top`` on a terminal: the screen again and again, and keys that change how one looks."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from gpupool.cli.keys import Keys, keyboard
from gpupool.cli.render.text import Style, clean, cut, style_of
from gpupool.cli.render.top import Part, Sort, View, screen
from gpupool.cli.watching import ENTER, HOME, LEAVE, REST_OF_LINE, REST_OF_SCREEN, rows_of_terminal
from gpupool.domain.errors import GpupoolError

HELP = (
    "q  quit",
    "1 2 3 4 5, Tab  all, GPUs, jobs, users, nodes",
    "n  a line for each node instead of each GPU",
    "g u m i a w p  sort jobs by GPUs, use, memory, idle time, age, name, person; again: the other way round",
    "up down PgUp PgDn Home  scroll",
    "space  look now",
    "h ?  this help",
)
SORTS = {
    "g": Sort.GPUS,
    "u": Sort.USE,
    "m": Sort.MEMORY,
    "i": Sort.IDLE,
    "a": Sort.AGE,
    "w": Sort.NAME,
    "p": Sort.USER,
}
PARTS: dict[str, Part | None] = {"1": None, "2": Part.GPU, "3": Part.JOB, "4": Part.USER, "5": Part.NODE}
_ORDER = list(PARTS.values())
HEAD_ROWS, FOOT_ROWS = 1, 1


@dataclass(slots=True)
class State:
    """How one looks, what was seen last, and how far one has scrolled."""

    view: View
    top: Any = field(repr=False)
    scroll: int = 0
    helped: bool = False
    ended: bool = False
    problem: str = ""


def press(state: State, key: str, page: int) -> bool:
    """Do what a key means; whether the pool is to be looked at anew."""
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


def painted(state: State, style: Style, rows: int) -> str:
    """The bytes that put the screen on a terminal with so many rows, without flicker."""
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


def live(look: Callable[[], Any], view: View, interval_s: float) -> None:
    """Show the pool until ``q`` or Ctrl-C. Errors of the first look come before the screen is taken over."""
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
    due = time.monotonic() + interval_s
    while not state.ended:
        rows = rows_of_terminal()
        sys.stdout.write(painted(state, style_of(sys.stdout), rows))
        sys.stdout.flush()
        key = _key(keys, max(0.0, due - time.monotonic()))
        if key is None or press(state, key, rows - 3):
            _look(state, look)
            due = time.monotonic() + interval_s


def _key(keys: Keys | None, timeout_s: float) -> str | None:
    if keys is not None:
        return keys.next(timeout_s)
    time.sleep(timeout_s)
    return None


def _look(state: State, look: Callable[[], Any]) -> None:
    """What was seen last stays on the screen while the pool does not answer."""
    try:
        state.top, state.problem = look(), ""
    except GpupoolError as error:
        state.problem = error.message
