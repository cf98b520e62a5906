"""Find the Jupyter of this machine, and install gpupool's extra into its Python."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

from gpupool import __version__
from gpupool.domain.errors import ErrorCode, GpupoolError

INSTALL_TIMEOUT_S = 1800.0
QUERY_TIMEOUT_S = 60.0
_PROGRAMS = ("jupyter-lab", "jupyter-server", "jupyter-notebook", "jupyter")
_MAX_SHEBANG = 512
_VERSION_QUERY = "import gpupool.jupyter.provisioner; print(gpupool.__version__)"


def find_jupyter(python: str | None = None) -> str:
    """Return the Python of Jupyter: the given one, else that of the first Jupyter program on PATH.

    Raises ``GpupoolError(INVALID_REQUEST)`` if there is none.
    """
    if python is not None:
        if (path := shutil.which(os.path.expanduser(python))) is not None:  # noqa: PTH111 - shutil.which takes text
            return os.path.abspath(path)  # noqa: PTH100 - links of virtual environments must not be resolved
        raise GpupoolError(ErrorCode.INVALID_REQUEST, f"{python} is not a program.", "Give the path of a Python.")
    for program in _PROGRAMS:
        if (path := shutil.which(program)) is not None and (interpreter := _interpreter(Path(path))) is not None:
            return interpreter
    raise GpupoolError(
        ErrorCode.INVALID_REQUEST,
        "No Jupyter is installed in your PATH.",
        "Install it, for example with 'python3 -m pip install jupyterlab', or name its Python with --python.",
    )


def _interpreter(program: Path) -> str | None:
    """Return the Python in the first line of a script."""
    try:
        with program.open("rb") as file:
            first = file.readline(_MAX_SHEBANG).decode(errors="replace").strip()
    except OSError:
        return None
    found = re.fullmatch(r"#!\s*(/\S*python[0-9.]*)(\s.*)?", first)
    return found[1] if found else None


def installed_version(python: str) -> str | None:
    """Return the version of gpupool that a Jupyter's Python can use for kernels; None if it cannot."""
    return _ask([python, "-c", _VERSION_QUERY])


def install(python: str) -> None:
    """Install this version of ``gpupool[jupyter]`` with pip.

    Raises ``GpupoolError(INVALID_REQUEST)`` if that fails; pip's messages are on stderr.
    """
    if installed_version(python) != __version__:
        command = [python, "-m", "pip", "install", _requirement()]
        try:
            done = subprocess.run(command, timeout=INSTALL_TIMEOUT_S, check=False, stdout=2)
            failed = done.returncode != 0 or installed_version(python) is None
        except (OSError, subprocess.TimeoutExpired):
            failed = True
        if failed:
            raise GpupoolError(
                ErrorCode.INVALID_REQUEST,
                f"gpupool[jupyter] could not be installed into {python}.",
                f"Read the messages above; install it by hand: {' '.join(command)}",
            )


def _requirement() -> str:
    """Return what pip installs: this version, from where this installation came."""
    source = importlib.metadata.distribution("gpupool").read_text("direct_url.json")
    if source is not None and (url := json.loads(source).get("url", "")).startswith("file://"):
        return f"gpupool[jupyter] @ {url}"
    return f"gpupool[jupyter]=={__version__}"


def _ask(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=QUERY_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
