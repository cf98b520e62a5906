"""The time zone of the machine."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from gpupool.domain.errors import GpupoolError
from gpupool.domain.windows import read_zone

_LOCALTIME = Path("/etc/localtime")


def machine_zone() -> str:
    """The name of the zone that this machine's clock shows, or UTC where that cannot be told."""
    for name in (os.environ.get("TZ", ""), str(_LOCALTIME.resolve()).partition("zoneinfo/")[2]):
        with contextlib.suppress(GpupoolError):
            read_zone(name)
            return name
    return "UTC"
