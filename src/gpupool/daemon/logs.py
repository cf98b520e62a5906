"""The log files of the pool's own processes: bounded while they are written, and quoted when something fails."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

LOG_LIMIT_BYTES = 8 << 20
_TAIL_BYTES = 1 << 16
_LINE_LIMIT = 300


def open_log(path: Path) -> int:
    """A descriptor that appends to a log. Raises ``OSError``."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def bound_log(path: Path, limit_bytes: int = LOG_LIMIT_BYTES) -> bool:
    """Copy a log that has grown past the limit to ``<name>.1`` and empty it; whether that was done.

    Emptying rather than renaming keeps the writer's descriptor good: no process of the pool needs to reopen anything.
    A full disk costs the copy, never the bound.
    """
    try:
        if path.stat().st_size <= limit_bytes:
            return False
    except OSError:
        return False
    with contextlib.suppress(OSError):
        shutil.copyfile(path, path.with_name(path.name + ".1"))
    with contextlib.suppress(OSError):
        os.truncate(path, 0)
        return True
    return False


def tail(path: Path, lines: int = 12) -> str:
    """The last lines of a log, long ones shortened; empty when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            text = file.read(_TAIL_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(line[:_LINE_LIMIT] for line in text.splitlines()[-lines:])
