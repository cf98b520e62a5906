"""What the agent says of itself: one JSON object per line on standard error."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from typing import Any


def say(event: str, **values: Any) -> None:
    """Write one line; a standard error that is gone or full never hurts."""
    line = json.dumps({"at": round(time.time(), 3), "from": "agent", "event": event, **values}, default=str)
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
