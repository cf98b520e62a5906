"""Log files of the pool's own processes: limited in size, and quoted in errors."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

LOG_LIMIT_BYTES = 8 << 20
_TAIL_BYTES = 1 << 16
_LINE_LIMIT = 300  # characters


def open_log(path: Path) -> int:
    """Open a log for appending; return the descriptor. Raises ``OSError``."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def bound_log(path: Path, limit_bytes: int = LOG_LIMIT_BYTES) -> bool:
    """Copy a log above the limit to ``<name>.1`` and truncate it; return whether that was done.

    Truncating instead of renaming keeps the writer's descriptor valid, so no process must reopen its log. On a full
    disk the copy is lost, but the limit holds.
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


def log_size(path: Path) -> int:
    """Return the size of a log in bytes: what is written from now on comes after it."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def tail(path: Path, lines: int = 12, since: int = 0, line_limit: int = _LINE_LIMIT) -> str:
    """Return the last lines of a log, long ones shortened; empty when there are none.

    ``line_limit`` is the maximum length of a line in characters. ``since`` omits lines before that size of the log,
    unless the log was truncated in between.
    """
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            file.seek(max(0, size - _TAIL_BYTES, since if since <= size else 0))
            text = file.read(_TAIL_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(line[:line_limit] for line in text.splitlines()[-lines:])
