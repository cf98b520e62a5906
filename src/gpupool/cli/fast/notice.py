"""What a waiting user sees on stderr: one line that changes on a terminal, a line per new reason elsewhere."""

from __future__ import annotations

import os
from time import monotonic

from gpupool.cli.fast.terminal import STDERR, is_terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpupool.cli.fast.gate import Gate

WHY_TIMEOUT_S = 2.0
FIRST_INTERVAL_S, INTERVAL_GROWTH, LAST_INTERVAL_S = 0.5, 1.5, 5.0


def say(text: str) -> None:
    """One line on stderr; nobody listening is no reason to fail."""
    try:
        os.write(STDERR, f"gpupool: {text}\n".encode(errors="backslashreplace"))
    except OSError:
        return


def new_line() -> None:
    """Begin a line of our own after a program's output."""
    _write("\n")


class QueueNotice:
    """Asks why a workload waits, less often as time goes by, and shows it. ``clear`` when it no longer waits."""

    def __init__(self, gate: Gate, workload: str, *, quiet: bool = False) -> None:
        self._gate = gate
        self._workload = workload
        self._quiet = quiet
        self._tty = is_terminal(STDERR)
        self._interval = FIRST_INTERVAL_S
        self._next = 0.0
        self._shown = ""
        self._code = ""

    def tick(self) -> None:
        """Refresh what is shown if it is time to."""
        if self._quiet or monotonic() < self._next:
            return
        self._interval = min(self._interval * INTERVAL_GROWTH, LAST_INTERVAL_S)
        self._next = monotonic() + self._interval
        try:
            answer = self._gate.call("GET", f"/v1/workloads/{self._workload}/why", timeout_s=WHY_TIMEOUT_S)
        except OSError:
            return
        if answer.ok and isinstance(answer.body, dict):
            self._show(answer.body)

    def clear(self) -> None:
        """Take the changing line away."""
        if self._tty and self._shown:
            _write("\r\x1b[K")
            self._shown = ""

    def _show(self, why: dict[str, Any]) -> None:
        text = waiting_text(why)
        if self._tty:
            columns = _columns()
            self._shown = text
            _write("\r\x1b[K" + f"gpupool: {text}"[: max(columns - 1, 20)])
        elif why.get("code") != self._code:
            self._code = str(why.get("code"))
            say(text)


def waiting_text(why: dict[str, Any]) -> str:
    """``waiting, position 3: needs 0.50 GPU …; starts in about 4m00s`` from a ``/why`` answer."""
    position = f", position {why['position']}" if why.get("position") else ""
    text = f"waiting{position}: {str(why.get('sentence') or why.get('code') or 'in the queue').rstrip('.')}"
    if (why.get("estimate_s") or 0) >= 1:
        from gpupool.domain.units import format_duration

        text += f"; starts in about {format_duration(why['estimate_s'])}"
    return text


def _columns() -> int:
    try:
        return os.get_terminal_size(STDERR).columns or 80
    except OSError:
        return 80


def _write(text: str) -> None:
    try:
        os.write(STDERR, text.encode(errors="backslashreplace"))
    except OSError:
        return
