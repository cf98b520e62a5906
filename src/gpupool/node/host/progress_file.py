"""The file in which a program reports its progress: when it saved its last checkpoint, and the step it has reached.

The agent creates the file empty before the program starts; only the program's user can write it. Every change means
that a checkpoint was saved at that time (``touch`` is enough), unless the file has a JSON object: ``saved_at`` (seconds
since the epoch, or null), ``step`` and ``metrics`` (an object of numbers) then count.
"""

from __future__ import annotations

import json
import os
import re
import stat

from gpupool.domain.work.program.supervision import Progress
from gpupool.node.host.paths import RunFolder

PROGRESS_FILE_VARIABLE = "GPUPOOL_PROGRESS_FILE"
MAX_BYTES = 4096
MAX_STEP = 1 << 53  # larger numbers are not exact in JSON
MAX_METRICS = 20
MAX_VALUE = 1e300  # also excludes infinity and NaN, which JSON does not have
METRIC_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,39}")


def create_progress(run: RunFolder, key: str, uid: int | None) -> None:
    """Create the empty file of an attempt, for a program of user ``uid``. Raises OSError."""
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(run.progress(key), flags, 0o600)
    try:
        if uid is not None and uid != os.geteuid():
            os.fchown(fd, uid, -1)
        os.utime(fd, (0, 0))  # nothing is saved yet
    finally:
        os.close(fd)


def read_progress(run: RunFolder, key: str, now: float) -> Progress:
    """Return the program's report up to ``now``; empty if the file is missing. Invalid content is ignored.

    A file that has grown beyond any report is emptied, so that a program cannot fill the folder of the sockets.
    """
    try:
        fd = os.open(run.progress(key), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return Progress()
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode) or not facts.st_mtime:
            return Progress()
        if facts.st_size > MAX_BYTES:
            os.ftruncate(fd, 0)
            return Progress(min(facts.st_mtime, now))
        return _parsed(os.read(fd, MAX_BYTES), min(facts.st_mtime, now), now)
    except OSError:
        return Progress()
    finally:
        os.close(fd)


def _parsed(content: bytes, changed_at: float, now: float) -> Progress:
    try:
        report = json.loads(content)
    except (ValueError, RecursionError):
        return Progress(changed_at)
    if not isinstance(report, dict):
        return Progress(changed_at)
    saved_at, step = report.get("saved_at", changed_at), report.get("step")
    known = isinstance(saved_at, int | float) and 0 < saved_at <= now
    counted = isinstance(step, int) and not isinstance(step, bool) and 0 <= step <= MAX_STEP
    return Progress(float(saved_at) if known else None, step if counted else None, _metrics_of(report.get("metrics")))


def _metrics_of(found: object) -> tuple[tuple[str, float], ...]:
    """Return the valid metrics of a report, sorted by name, at most ``MAX_METRICS``."""
    if not isinstance(found, dict):
        return ()
    valid = {
        name: float(value)
        for name, value in found.items()
        if isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) <= MAX_VALUE
        and METRIC_NAME.fullmatch(name)
    }
    return tuple(sorted(valid.items())[:MAX_METRICS])
