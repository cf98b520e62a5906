"""A condition under which a change may be written; it is checked while nothing else is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Check = Callable[[], None]

_check: ContextVar[Check | None] = ContextVar("check", default=None)


@contextmanager
def writing_only_if(check: Check) -> Iterator[None]:
    """Call ``check`` before each exclusive write of the block; its error prevents the write."""
    token = _check.set(check)
    try:
        yield
    finally:
        _check.reset(token)


def check_precondition() -> None:
    """Raise the error of the caller's condition, if it has one that does not hold."""
    check = _check.get()
    if check is not None:
        check()
