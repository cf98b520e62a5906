"""The time zone of the machine."""

from __future__ import annotations

import os
from pathlib import Path
from zoneinfo import available_timezones

_LOCALTIME = Path("/etc/localtime")


def machine_zone() -> str:
    """The name of the zone that this machine's clock shows, or UTC where that cannot be told."""
    known = available_timezones()
    linked = str(_LOCALTIME.resolve()).partition("zoneinfo/")[2]
    return next((name for name in (os.environ.get("TZ", ""), linked) if name in known), "UTC")
