"""Reports of a program to the pool about its own progress: checkpoints and steps.

They go through the file that ``GPUPOOL_PROGRESS_FILE`` names, so they need no connection to the pool. Outside of the
pool they do nothing, so that the same program runs anywhere.
"""

from __future__ import annotations

import json
import math
import os
import time

PROGRESS_FILE_VARIABLE = "GPUPOOL_PROGRESS_FILE"

_saved_at: float | None = None
_metrics: dict[str, float] = {}


def progress(step: int | None = None, *, saved: bool = False, **metrics: float) -> bool:
    """Report the step that the program has reached; ``saved``: it has just saved a complete checkpoint.

    ``metrics`` are numbers such as ``loss=0.3``; the last value of each name counts (at most 20 names). They are in the
    table of ``gpupool results``. Return True if the report was written, False outside of the pool. Raises ``OSError``
    if the file cannot be written.
    """
    global _saved_at  # noqa: PLW0603 - one program has one progress
    _metrics.update({name: float(value) for name, value in metrics.items() if math.isfinite(value)})
    if saved:
        _saved_at = time.time()
    path = os.environ.get(PROGRESS_FILE_VARIABLE)
    if not path:
        return False
    report = json.dumps({"saved_at": _saved_at, "step": step, "metrics": _metrics}).encode()
    # In place: a container sees this one file of the folder.
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(fd, report)
    finally:
        os.close(fd)
    return True


def checkpointed(step: int | None = None) -> bool:
    """Report that a complete checkpoint was just saved; the same as ``progress(step, saved=True)``."""
    return progress(step, saved=True)
