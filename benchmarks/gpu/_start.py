"""Start the benchmark of this folder with the Python that runs this file: ``python3 start.py --budget 540 --out DIR``.

The first start makes an environment from ``wheels/``, without a package registry. It sees the packages of
the Python that starts it, so that its PyTorch, JAX, CuPy and numba are measured. Arguments are those of ``run.py``.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PLACE = HERE / "environment"  # a file with the path of the environment
COMPLETE = "complete"


def environment() -> Path:
    """Return the folder of the environment; make it at the first start."""
    try:
        folder = Path(PLACE.read_text())
    except FileNotFoundError:
        folder = HERE / ".venv"
        if any(not parent.stat().st_mode & stat.S_IXOTH for parent in HERE.parents):
            # A pool of root limits slices only with libraries that other accounts can read.
            folder = Path(tempfile.mkdtemp(prefix="gpupool-benchmark-"))
            folder.chmod(0o755)
        PLACE.write_text(str(folder))
    if not (folder / COMPLETE).exists():
        install(folder)
    return folder


def install(folder: Path) -> None:
    """Make the environment."""
    if sys.version_info[:2] != (wanted := tuple(map(int, (HERE / "PYTHON").read_text().split(".")))):
        sys.exit(f"This folder is for Python {wanted[0]}.{wanted[1]}: {sys.executable} is another one.")
    subprocess.run((sys.executable, "-m", "venv", "--clear", "--without-pip", folder), check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    # Not --system-site-packages: the starting Python may itself be one of a virtual environment.
    found = [path for path in sys.path[1:] if path.endswith(("site-packages", "dist-packages"))]
    (packages / "starting-python.pth").write_text("".join(f"{path}\n" for path in found))
    pip = (sys.executable, "-m", "pip", "--python", folder / "bin/python", "--disable-pip-version-check", "install")
    offline = ("--quiet", "--no-index", "--find-links", HERE / "wheels")
    subprocess.run((*pip, *offline, "--no-deps", "--force-reinstall", "gpupool"), check=True)
    subprocess.run((*pip, *offline, "gpupool"), check=True)
    (folder / COMPLETE).touch()


if __name__ == "__main__":
    python = environment() / "bin/python"
    os.execv(python, (str(python), str(HERE / "gpu/run.py"), *sys.argv[1:]))
