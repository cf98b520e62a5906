"""One figure at a time: what cannot be had or goes wrong costs that figure and no other."""

from __future__ import annotations

from collections.abc import Callable

from bench import FailedError, SkipError
from figures import Figure, NotMeasuredError, failed, skipped


def tried(part: str, name: str, make: Callable[[], Figure]) -> Figure:
    """The figure, or that it was skipped or failed, and why."""
    try:
        return make()
    except SkipError as reason:
        return skipped(part, name, str(reason))
    except (FailedError, NotMeasuredError, KeyError) as error:
        return failed(part, name, f"{type(error).__name__}: {error}")
