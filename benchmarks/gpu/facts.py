"""The machine, driver and versions of a measurement."""

from __future__ import annotations

import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import Bench

from gpupool.bench.machine import version_of

PACKAGES = (
    "gpupool",
    "torch",
    "triton",
    "jax",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "numba",
    "numba-cuda",
    "cuda-bindings",
    "numpy",
)


def driver_or_reason() -> str:
    """Return why NVML finds no GPU, or an empty text; called before a pool is started."""
    try:
        import pynvml

        pynvml.nvmlInit()
        found = pynvml.nvmlDeviceGetCount()
        pynvml.nvmlShutdown()
    except Exception as error:  # noqa: BLE001 - whatever NVML says, there is no GPU to measure
        return f"NVML does not find one ({error})"
    return "" if found else "the driver knows of none"


def facts_of(bench: Bench) -> dict[str, Any]:
    """Return date, GPU, driver, versions and command."""
    node = bench.node()
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "gpu": bench.gpu["model"],
        "memory_mib": bench.gpu["memory_mib"],
        "driver": node["driver_version"],
        "cuda": node["cuda_version"],
        "sharing": ", ".join(node["sharing"]),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": {name: found for name in PACKAGES if (found := version_of(name))},
        "commit": _commit(),
        "command": " ".join(["python", "benchmarks/gpu/run.py", *sys.argv[1:]]),
    }


def _commit() -> str:
    asked = ("git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD")
    try:
        return subprocess.run(asked, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"
