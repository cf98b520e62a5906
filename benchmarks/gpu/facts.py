"""The machine, driver and versions of a measurement."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from bench import Bench

from gpupool.bench.machine import describe_machine

PACKAGES = (
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
HERE = Path(__file__).parent
COMMIT = HERE / "COMMIT"  # pack writes it


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
    """Return the conditions in the form of ``gpupool bench``: machine, versions, command, driver and GPU."""
    node = bench.node()
    command = " ".join(["python", "benchmarks/gpu/run.py", *sys.argv[1:]])
    described = {
        "name": node["name"],
        "cpus": node["cpus"],
        "driver": node["driver_version"],
        "cuda": node["cuda_version"],
        "gpus": [bench.gpu["model"]],
        "memory_mib": bench.gpu["memory_mib"],
        "sharing": node["sharing"],
    }
    return {
        "quick": bench.quick,
        "emulated": bench.emulated,
        "machine": describe_machine(command, PACKAGES) | {"commit": _commit()},
        "pool": {"nodes": [described]},
    }


def _commit() -> str:
    if COMMIT.exists():
        return COMMIT.read_text().strip()
    asked = ("git", "-C", str(HERE), "rev-parse", "HEAD")
    try:
        return subprocess.run(asked, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"
