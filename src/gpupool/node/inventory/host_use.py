"""How busy the machine is, or as much of it as this process may use: processors and memory."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from gpupool.node.inventory.host import memory_limit_folder

_MIB = 1024 * 1024
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_USAGE = ("memory.current", "memory.usage_in_bytes")
_CACHE = re.compile(r"^(?:total_)?inactive_file (\d+)", re.MULTILINE)
_TOTAL = re.compile(r"^MemTotal:\s+(\d+) kB", re.MULTILINE)
_AVAILABLE = re.compile(r"^MemAvailable:\s+(\d+) kB", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class HostUse:
    """``cpu_percent`` is 100 for one core, over the time since the look before."""

    cpu_percent: float
    memory_used_mib: int


class HostMeter:
    """Looks at /proc of the whole machine; at memory of the control group that limits it, where one does."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._group = memory_limit_folder(root)
        self._before = (self._busy_s(), 0.0)

    def look(self, now: float) -> HostUse:
        """Both, at a monotonic time in seconds; the first look knows of no time before."""
        busy, (before, at) = self._busy_s(), self._before
        self._before = (busy, now)
        percent = 100 * (busy - before) / (now - at) if at and now > at else 0.0
        return HostUse(max(0.0, percent), self._memory_mib())

    def _busy_s(self) -> float:
        """Seconds that all processors together have worked; ``cpu`` of /proc/stat without idle and iowait."""
        fields = _read(self._root / "proc/stat").partition("\n")[0].split()[1:9]
        if len(fields) < 5:
            return 0.0
        ticks = [int(field) for field in fields]
        return (sum(ticks) - ticks[3] - ticks[4]) / _TICKS_PER_S

    def _memory_mib(self) -> int:
        """What is taken and cannot be had again at once."""
        if self._group is not None and (taken := _of_group(self._group)) is not None:
            return taken
        text = _read(self._root / "proc/meminfo")
        total, available = _TOTAL.search(text), _AVAILABLE.search(text)
        return 0 if total is None or available is None else (int(total[1]) - int(available[1])) // 1024


def _of_group(group: Path) -> int | None:
    used = next((text for name in _USAGE if (text := _read(group / name).strip()).isdigit()), None)
    cached = _CACHE.findall(_read(group / "memory.stat"))
    return None if used is None else max(0, int(used) - int(cached[-1] if cached else 0)) // _MIB


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
