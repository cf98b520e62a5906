"""Paths of the real driver's libraries, needed because the share library has taken their names.

The loader's cache lists them (``ldconfig -p``). Without that tool or cache, the folders of distributions and of
NVIDIA's container tools are searched.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CUDA = "libcuda.so.1"
NVML = "libnvidia-ml.so.1"
_LDCONFIG = ("/sbin/ldconfig", "/usr/sbin/ldconfig")
_PATIENCE_S = 5.0
_MACHINE = os.uname().machine
IMAGES_FOLDER = "/usr/local/nvidia/lib64"  # where images for NVIDIA's runtime search
FOLDERS = (
    f"/usr/lib/{_MACHINE}-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/lib64/nvidia",
    "/usr/lib/nvidia",
    IMAGES_FOLDER,
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",
)


@dataclass(frozen=True, slots=True)
class DriverPaths:
    """Absolute paths; empty if not found."""

    cuda: str
    nvml: str


def find_drivers() -> DriverPaths:
    """Find both libraries; may take some milliseconds."""
    cached = dict(_loader_cache())
    return DriverPaths(*(cached.get(name) or _in_folders(name) for name in (CUDA, NVML)))


def _loader_cache() -> Iterator[tuple[str, str]]:
    """Yield names and paths of the wanted libraries for this machine's architecture."""
    tool = next((path for path in _LDCONFIG if Path(path).exists()), None)
    if tool is None:
        return
    try:
        text = subprocess.run([tool, "-p"], capture_output=True, text=True, timeout=_PATIENCE_S, check=False).stdout
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return
    yield from parse_loader_cache(text)


def parse_loader_cache(text: str) -> Iterator[tuple[str, str]]:
    """Yield name and path from lines like ``libcuda.so.1 (libc6,x86-64) => /usr/lib/.../libcuda.so.1``."""
    seen = set()
    for line in text.splitlines():
        left, arrow, path = line.strip().partition(" => ")
        name, _, kind = left.partition(" ")
        wide = "64" in kind or _MACHINE not in {"x86_64", "aarch64"}
        if arrow and wide and name in {CUDA, NVML} and name not in seen and Path(path).is_file():
            seen.add(name)
            yield name, path


def _in_folders(name: str) -> str:
    found = (f"{folder}/{name}" for folder in FOLDERS)
    return next((path for path in found if Path(path).is_file()), "")
