"""Connections that outlive the call that made them."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from typing import TypeVar

T = TypeVar("T")


def opened(dialled: AbstractContextManager[T]) -> T:
    """What ``with dialled as ...`` would give; its owner closes it. It may connect before, or only here."""
    return ExitStack().enter_context(dialled)
