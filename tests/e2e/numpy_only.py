"""A Python that has NumPy, but neither PyTorch nor TensorFlow."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np


def numpy_only(folder: Path) -> Path:
    """Return the interpreter, which this function makes in a folder."""
    packages = folder / "numpy-only"
    python = packages / "python"
    if not packages.exists():
        packages.mkdir(mode=0o755)
        site = Path(np.__file__).parents[1]
        for path in (site / "numpy", *site.glob("numpy.libs")):
            (packages / path.name).symlink_to(path)
        python.write_text(f'#!/bin/sh\nPYTHONPATH={packages} exec {sys.executable} -S "$@"\n')
        python.chmod(0o755)
    return python
