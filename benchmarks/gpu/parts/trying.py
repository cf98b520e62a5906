"""Measure one figure at a time: a missing requirement or an error affects only that figure."""

from __future__ import annotations

from collections.abc import Callable

from bench import FailedError, SkipError

from gpupool.bench.figures import Figure, NotMeasuredError, failed, skipped


def tried(part: str, name: str, make: Callable[[], Figure]) -> Figure:
    """Return the result, or that it was skipped or failed, with the reason."""
    try:
        return make()
    except SkipError as reason:
        return skipped(part, name, str(reason))
    except (FailedError, NotMeasuredError, KeyError) as error:
        return failed(part, name, f"{type(error).__name__}: {error}")
