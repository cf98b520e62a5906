"""Where the package's native parts are, and why they are not where that is so.

They are built when the package is installed (``hatch_build.py``), which needs a C compiler and make. Without them
everything but enforced slices works.
"""

from __future__ import annotations

import json
import os
from enum import StrEnum
from pathlib import Path

# GPUPOOL_NATIVE names another folder of the same shape: for those who work on the native parts.
FOLDER = Path(os.environ.get("GPUPOOL_NATIVE") or Path(__file__).parents[1] / "_native")
_NOTE = "BUILD.json"
_NOTE_BYTES_MAX = 1 << 16


class Product(StrEnum):
    """One native file, by its path within the folder."""

    SHARE_CUDA = "share/libcuda.so.1"  # preloaded into the programs of a lease
    SHARE_CUDA_ALIAS = "share/libcuda.so"  # leads those who ask for this name to the former; preloaded behind it
    SHARE_NVML = "share/libnvidia-ml.so.1"  # likewise: the lease's view of NVML
    FAKE_CUDA = "fake/libcuda.so.1"  # the driver of emulated GPUs
    FAKE_NVML = "fake/libnvidia-ml.so.1"  # and their NVML
    ARBITER = "gpupool-arbiter"  # the program that grants GPU time

    @property
    def path(self) -> Path:
        """Absolute; whether the file is there says :func:`missing`."""
        return FOLDER / self


def missing() -> str | None:
    """What is not there, why, and what to do about it; None when everything is there."""
    absent = [product for product in Product if not product.path.is_file()]
    if not absent:
        return None
    note = _note()
    reason = note.get("reason") or "they were not built when gpupool was installed"
    remedy = f"{note['remedy']}, then install" if note.get("remedy") else "Install"
    return f"gpupool's native parts are missing ({', '.join(absent)}): {reason}. {remedy} gpupool again."


def _note() -> dict[str, str]:
    """What the build noted; nothing where it left no note that can be read."""
    try:
        with (FOLDER / _NOTE).open("rb") as file:
            note = json.loads(file.read(_NOTE_BYTES_MAX))
    except (OSError, ValueError):
        return {}
    return {key: value for key, value in note.items() if isinstance(value, str)} if isinstance(note, dict) else {}
