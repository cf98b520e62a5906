"""The log of the agent: one JSON object per line on standard error."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from typing import Any


def log_event(event: str, **values: Any) -> None:
    """Write one line. Errors of standard error (closed, disk full) are ignored."""
    line = json.dumps({"at": round(time.time(), 3), "from": "agent", "event": event, **values}, default=str)
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
