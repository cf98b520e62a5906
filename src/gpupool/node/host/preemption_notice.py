"""The file in which a program reads why it will or may be stopped, and when.

It is written before any signal is sent. Only the program's user can read it, and it is deleted with the attempt.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from gpupool.node.host.paths import RunFolder

NOTICE_FILE_VARIABLE = "GPUPOOL_NOTICE_FILE"
Notice = dict[str, Any]


def write_notice(run: RunFolder, key: str, notice: Notice, grace_s: float | None, uid: int | None) -> None:
    """Replace a program's notice. ``grace_s``: time until it is killed; None if it is not. Raises OSError."""
    path = str(run.notice(key))
    now = time.time()
    told = {**notice, "at": now} | ({} if grace_s is None else {"grace_s": grace_s, "deadline": now + grace_s})
    fd = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.write(fd, json.dumps(told).encode() + b"\n")
        if uid is not None and uid != os.geteuid():
            os.fchown(fd, uid, -1)
    finally:
        os.close(fd)
    os.rename(f"{path}.new", path)  # noqa: PTH104 - one call, atomic
