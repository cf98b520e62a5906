"""The package's native libraries: where they are, and why they are missing.

``hatch_build.py`` builds them at installation, with the machine's C compiler or one from PyPI. Without them everything
except enforced slices works.
"""

from __future__ import annotations

import json
import os
from enum import StrEnum
from pathlib import Path

# GPUPOOL_NATIVE names another folder with the same layout, for development of the native libraries.
FOLDER = Path(os.environ.get("GPUPOOL_NATIVE") or Path(__file__).parents[2] / "_native")
_NOTE = "BUILD.json"
_NOTE_BYTES_MAX = 1 << 16


class Product(StrEnum):
    """One native file, by its path in the folder."""

    SHARE_CUDA = "share/libcuda.so.1"  # preloaded into the programs of a lease
    SHARE_CUDA_ALIAS = "share/libcuda.so"  # redirects this name to the file above; preloaded after it
    SHARE_NVML = "share/libnvidia-ml.so.1"  # preloaded too: the lease's view of NVML
    FAKE_CUDA = "fake/libcuda.so.1"  # the driver of emulated GPUs
    FAKE_NVML = "fake/libnvidia-ml.so.1"  # the NVML of emulated GPUs
    ARBITER = "gpupool-arbiter"  # the program that grants GPU time

    @property
    def path(self) -> Path:
        """Return the absolute path; :func:`missing` checks that the file exists."""
        return FOLDER / self


def missing() -> str | None:
    """Return which files are missing, why, and what to do; None if all are present."""
    absent = [product for product in Product if not product.path.is_file()]
    if not absent:
        return None
    note = _note()
    names = f" ({', '.join(absent)})" if len(absent) < len(Product) else ""
    reason = note.get("reason") or "they were not built when gpupool was installed"
    remedy = f"{note['remedy']}, then install" if note.get("remedy") else "Install"
    return f"gpupool's native libraries are missing{names}: {reason}. {remedy} gpupool again and restart the pool."


def _note() -> dict[str, str]:
    """Return the note of the build; empty if there is none or it cannot be read."""
    try:
        with (FOLDER / _NOTE).open("rb") as file:
            note = json.loads(file.read(_NOTE_BYTES_MAX))
    except (OSError, ValueError):
        return {}
    return {key: value for key, value in note.items() if isinstance(value, str)} if isinstance(note, dict) else {}
