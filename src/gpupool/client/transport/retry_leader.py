"""Send a request again when a standby answered."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    T = TypeVar("T")

MAX_TRIES = 3  # each at the head that has just said that it leads


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
