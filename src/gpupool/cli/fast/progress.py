"""Status lines on stderr while a user waits: one line that changes on a terminal, else one line for each new reason."""

from __future__ import annotations

import os
from time import monotonic

from gpupool.cli.terminal import STDERR, is_terminal, say, write_stderr

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpupool.cli.transport.local import PoolTransport

REQUEST_TIMEOUT_S = 2.0
NOT_ENFORCED = "slices are not enforced: "  # node.sharing.choose begins a node's warning with it
FIRST_INTERVAL_S, INTERVAL_GROWTH, LAST_INTERVAL_S = 0.5, 1.5, 5.0


def warn_not_enforced(transport: PoolTransport, node: str) -> None:
    """Print why a node cannot enforce slices, and what to do, if that is so."""
    try:
        answer = transport.call("GET", "/v1/pool", timeout_s=REQUEST_TIMEOUT_S)
    except OSError:
        return
    for warning in answer.body.get("warnings", ()) if answer.ok else ():
        if warning.startswith(f"{node}: {NOT_ENFORCED}"):
            say(warning)


class QueueNotice:
    """Show why a workload waits, and ask the pool again at growing intervals. Call ``clear`` when the wait is over."""

    def __init__(self, transport: PoolTransport, workload: str, *, quiet: bool = False) -> None:
        self._transport = transport
        self._workload = workload
        self._quiet = quiet
        self._tty = is_terminal(STDERR)
        self._interval = FIRST_INTERVAL_S
        self._next = 0.0
        self._shown = ""
        self._code = ""

    def tick(self) -> None:
        """Refresh the notice if the interval has passed."""
        if self._quiet or monotonic() < self._next:
            return
        self._interval = min(self._interval * INTERVAL_GROWTH, LAST_INTERVAL_S)
        self._next = monotonic() + self._interval
        try:
            answer = self._transport.call("GET", f"/v1/workloads/{self._workload}/why", timeout_s=REQUEST_TIMEOUT_S)
        except OSError:
            return
        if answer.ok and isinstance(answer.body, dict):
            self._show(answer.body)

    def clear(self) -> None:
        """Remove the changing line."""
        if self._tty and self._shown:
            write_stderr("\r\x1b[K")
            self._shown = ""

    def _show(self, why: dict[str, Any]) -> None:
        text = waiting_text(why)
        if self._tty:
            columns = _columns()
            self._shown = text
            write_stderr("\r\x1b[K" + f"gpupool: {text}"[: max(columns - 1, 20)])
        elif why.get("code") != self._code:
            self._code = str(why.get("code"))
            say(text)


def waiting_text(why: dict[str, Any]) -> str:
    """Format a ``/why`` answer: ``waiting, position 3: needs 0.50 GPU …; starts in about 4m00s``."""
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
