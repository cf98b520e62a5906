"""Send a request again when a standby answered, or while the control plane restarts."""

from __future__ import annotations

from time import monotonic, sleep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    T = TypeVar("T")

MAX_TRIES = 3  # each at the head that has just said that it leads
RETRY_TIMEOUT_S = 30.0  # for a control plane that restarts
STANDBY_TIMEOUT_S = 5.0  # for a standby that never led
_FIRST_PAUSE_S = 0.05
_MAX_PAUSE_S = 1.0


class NotLeading(ConnectionError):  # noqa: N818 - the request is sent to another head
    """A standby answered and did not execute the request."""


def retry_on_leader(ask: Callable[[], T]) -> T:
    """Call ``ask``, which selects a head each time, until a leader answers. Raises the errors of ``ask``."""
    for _ in range(MAX_TRIES - 1):
        try:
            return ask()
        except NotLeading:
            continue
    return ask()


class RetryTimer:
    """Decides how long to retry requests to a control plane that does not answer: it may be restarting."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._deadline = monotonic() + limit_s
        self._pause_s = _FIRST_PAUSE_S
        self._extended = False
        self._standby_deadline: float | None = None
        self.waited = False

    def extend(self) -> None:
        """Restart with twice the time, once only: a new control plane may not have contacted a node yet."""
        if not self._extended:
            self._extended, self._deadline = True, monotonic() + 2 * self._limit_s

    def wait(self, min_s: float = 0.0) -> bool:
        """Sleep, longer each time and at least ``min_s``; return False at once when the time is used up."""
        left = self._deadline - monotonic()
        if left <= 0:
            return False
        import random  # it takes milliseconds to import

        sleep(min(left, min_s + self._pause_s * random.uniform(0.5, 1.0)))  # noqa: S311 - spreads clients; not a secret
        self._pause_s = min(self._pause_s * 2, _MAX_PAUSE_S)
        self.waited = True
        return True

    def wait_for_leader(self) -> bool:
        """Wait after the answer of a standby; return False when its time is used up.

        Only if it was starting or unreachable before: the leader that it names may be the process that it replaces.
        """
        if not self.waited:
            return False
        self._standby_deadline = self._standby_deadline or monotonic() + STANDBY_TIMEOUT_S
        return monotonic() < self._standby_deadline and self.wait()
