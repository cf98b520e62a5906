"""Asking again where whoever answered does not lead the pool."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    T = TypeVar("T")

TRIES = 3  # each at the one that has just said that it leads


class NotDone(ConnectionError):  # noqa: N818 - a reason to ask another, not a failure
    """Nothing was done that was asked for: whoever answered does not lead."""


def asked_elsewhere(ask: Callable[[], T]) -> T:
    """What ``ask`` returns, which finds its way anew each time. Raises what it raises, ``NotDone`` as well."""
    for _ in range(TRIES - 1):
        try:
            return ask()
        except NotDone:
            continue
    return ask()
