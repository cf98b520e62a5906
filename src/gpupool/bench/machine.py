"""The machine and versions on which figures were measured, and percentiles of samples."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

DEPENDENCIES = ("fastapi", "uvicorn", "pydantic", "sqlalchemy", "numpy")


def describe_machine(command: str, packages: Sequence[str] = DEPENDENCIES) -> dict[str, Any]:
    """Return a description of the machine and versions; ``load`` is the load by other programs."""
    cpu = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), ""
    )
    memory_kib = next(int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal"))
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "cpu": cpu or platform.machine(),
        "memory_mib": memory_kib // 1024,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": {name: found for name in ("gpupool", *packages) if (found := version_of(name))},
        "load": os.getloadavg(),
        "command": command,
    }


def version_of(package: str) -> str:
    """Return the version of an installed package, or an empty text."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the nearest-rank percentile."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-len(ordered) * percent // 100).__int__() - 1))]


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()
