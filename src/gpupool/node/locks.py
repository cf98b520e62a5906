"""File locks (flock): who may use a folder, and whether a shepherd lives."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def take(path: Path) -> int | None:
    """A descriptor that holds the lock until the last copy of it is closed; None when somebody else does.

    Raises OSError when the file cannot be opened.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except OSError:
        os.close(fd)
        raise
    return fd
