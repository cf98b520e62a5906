"""Kernel specifications: the ``kernel.json`` files that make kernels on slices appear in Jupyter.

This module needs no package of Jupyter, so that the command line works where only gpupool is installed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpupool.domain.errors import ErrorCode, GpupoolError

PROVISIONER = "gpupool"  # the name of the entry point
MAX_SPEC_BYTES = 256 * 1024
CHECK_TIMEOUT_S = 60.0
NO_CULLING_S = 10 * 365 * 86400  # for Jupyter's culler, where the pool's idle limit applies
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}", re.IGNORECASE)
_CONNECTION = "{connection_file}"
_PYTHON_QUERY = "import json; from ipykernel.kernelspec import get_kernel_dict; print(json.dumps(get_kernel_dict()))"
_NOT_HERE = {
    "python": ["env", "python3", "-m", "ipykernel_launcher", "-f", _CONNECTION],  # Jupyter replaces a first `python3`
    "r": ["R", "--no-echo", "-e", "IRkernel::main()", "--args", _CONNECTION],
}
LANGUAGES = {"python": "Python", "r": "R"}


@dataclass(frozen=True, slots=True)
class KernelProgram:
    """The start of a kernel: its arguments, and metadata about it for Jupyter."""

    language: str
    argv: list[str]
    metadata: dict[str, Any]


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """An installed kernel on slices. ``request`` has the fields of its workloads."""

    name: str
    display_name: str
    language: str
    folder: Path
    argv: list[str]
    request: dict[str, Any]


def jupyter_data_folder() -> Path:
    """Return the folder in which Jupyter looks for this user's kernels."""
    if chosen := os.environ.get("JUPYTER_DATA_DIR"):
        return Path(chosen)
    base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(base).expanduser() / "jupyter"


def kernels_folder() -> Path:
    """Return the folder of this user's kernel specifications."""
    return jupyter_data_folder() / "kernels"


def find_program(language: str, *, python: str | None = None, not_here: bool = False) -> KernelProgram:
    """Return how to start a kernel of a language, after a check that its packages are installed.

    ``not_here``: it is in an image or on other machines, where nothing can be checked.

    Raises ``GpupoolError``: UNSUPPORTED for another language, INVALID_REQUEST without the kernel's packages.
    """
    key = language.lower()
    if key not in LANGUAGES:
        raise GpupoolError(
            ErrorCode.UNSUPPORTED,
            f"'{language[:80]}' is not a supported language; supported are {' and '.join(LANGUAGES.values())}.",
            "For example: gpupool jupyter kernel add 0.02 --language R",
        )
    if key != "python" and python is not None:
        raise GpupoolError(ErrorCode.INVALID_REQUEST, "--python is for Python kernels only.", "Omit it.")
    if not_here:
        return KernelProgram(key, [python, *_NOT_HERE[key][2:]] if python else _NOT_HERE[key], {})
    return _python_program(python) if key == "python" else _r_program()


def _python_program(python: str | None) -> KernelProgram:
    candidates = [python] if python else _known_pythons()
    for candidate in candidates:
        path = shutil.which(os.path.expanduser(candidate))  # noqa: PTH111 - shutil.which takes text
        if path is None:
            raise GpupoolError(
                ErrorCode.INVALID_REQUEST, f"{candidate} is not a program.", "Give the path of a Python."
            )
        path = os.path.abspath(path)  # noqa: PTH100 - links of virtual environments must not be resolved
        if (found := _ask([path, "-c", _PYTHON_QUERY])) is not None:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                spec = json.loads(found)
                return KernelProgram("python", [path, *spec["argv"][1:]], spec.get("metadata") or {})
    first = candidates[0]
    raise GpupoolError(
        ErrorCode.INVALID_REQUEST,
        f"{first} has no ipykernel, so it cannot run a kernel.",
        f"Install it with '{first} -m pip install ipykernel', or choose another Python with --python.",
    )


def _known_pythons() -> list[str]:
    """Return the Python of this shell, and the one that runs gpupool."""
    on_path = shutil.which("python3") or shutil.which("python")
    return [python for python in (on_path, sys.executable) if python]


def _r_program() -> KernelProgram:
    path = shutil.which("R")
    if path is None:
        raise GpupoolError(ErrorCode.INVALID_REQUEST, "R is not installed here.", "Install R and IRkernel.")
    if _ask([path, "--no-echo", "--no-save", "-e", "stopifnot(requireNamespace('IRkernel'))"]) is None:
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST,
            f"{path} has no IRkernel, so it cannot run a kernel.",
            "Install it in R with install.packages('IRkernel'), or Debian's package r-cran-irkernel.",
        )
    return KernelProgram("r", [path, *_NOT_HERE["r"][1:]], {})


def _ask(command: list[str]) -> str | None:
    """Return the output of a command that checks an installation; None if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CHECK_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def add(name: str, display_name: str, program: KernelProgram, request: Mapping[str, Any]) -> KernelSpec:
    """Write a kernel specification. Raises ``GpupoolError``: INVALID_NAME, NAME_TAKEN."""
    if not _NAME.fullmatch(name):
        raise GpupoolError(
            ErrorCode.INVALID_NAME,
            f"'{name[:80]}' is not a kernel name: letters, digits, dots, dashes and underscores, at most 63.",
            "Choose another name with --name.",
        )
    folder = kernels_folder() / name.lower()
    metadata: dict[str, Any] = {
        **program.metadata,
        "kernel_provisioner": {"provisioner_name": PROVISIONER, "config": {"request": dict(request)}},
    }
    if "idle_timeout" in request:
        metadata["cull_idle_timeout"] = NO_CULLING_S
    spec = {
        "argv": program.argv,
        "display_name": display_name,
        "language": "R" if program.language == "r" else program.language,
        "interrupt_mode": "signal",
        "metadata": metadata,
    }
    try:
        folder.mkdir(parents=True)
    except FileExistsError as error:
        raise GpupoolError(
            ErrorCode.NAME_TAKEN,
            f"There is already a kernel {folder.name} in {folder.parent}.",
            f"Choose another name with --name, or remove it with 'gpupool jupyter kernel remove {folder.name}'.",
        ) from error
    (folder / "kernel.json").write_text(json.dumps(spec, indent=1) + "\n")
    return KernelSpec(folder.name, display_name, program.language, folder, program.argv, dict(request))


def installed() -> list[KernelSpec]:
    """Return the kernels on slices of this user, sorted by name."""
    return [spec for folder in sorted(kernels_folder().glob("*")) if (spec := _read(folder)) is not None]


def remove(name: str) -> None:
    """Delete a kernel specification that ``add`` wrote. Raises ``GpupoolError(NOT_FOUND)``."""
    for spec in installed():
        if spec.name == name.lower():
            shutil.rmtree(spec.folder)
            return
    known = ", ".join(spec.name for spec in installed()) or "none"
    raise GpupoolError(
        ErrorCode.NOT_FOUND,
        f"There is no kernel on slices named '{name[:80]}' in {kernels_folder()}; there are: {known}.",
        "See 'gpupool jupyter kernel list'; other kernels are removed with 'jupyter kernelspec remove'.",
    )


def _read(folder: Path) -> KernelSpec | None:
    """Return a kernel that uses gpupool's provisioner; None for others."""
    try:
        with (folder / "kernel.json").open("rb") as file:
            spec = json.loads(file.read(MAX_SPEC_BYTES))
        provisioner = spec["metadata"]["kernel_provisioner"]
        if provisioner["provisioner_name"] != PROVISIONER:
            return None
        request = provisioner.get("config", {}).get("request", {})
        return KernelSpec(
            folder.name, str(spec["display_name"]), str(spec["language"]), folder, list(spec["argv"]), dict(request)
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def default_name(language: str, request: Mapping[str, Any]) -> str:
    """Return a name made from the size: ``gpupool-0.02``, ``gpupool-2048m``, ``gpupool-r-1``."""
    parts = ["gpupool", *([language] if language != "python" else []), *_size_parts(request, "{}", "{}m")]
    return "-".join(parts)


def default_display_name(language: str, request: Mapping[str, Any]) -> str:
    """Return the text of the launcher's tile: ``Python (0.02 GPU)``."""
    size = " x ".join(_size_parts(request, "{} GPU", "{} MiB GPU"))
    project = f", {request['project']}" if "project" in request else ""
    return f"{LANGUAGES[language]} ({size}{project})"


def _size_parts(request: Mapping[str, Any], gpus_as: str, memory_as: str) -> Iterator[str]:
    gpus = request.get("gpus") or {}
    count = gpus.get("count", 1)
    if gpus.get("memory_mib") is not None:
        part = memory_as.format(gpus["memory_mib"])
    elif gpus.get("fraction") is not None:
        part = gpus_as.format(f"{gpus['fraction']:g}")
    else:
        yield gpus_as.format(count)
        return
    if count != 1:
        yield str(count)
    yield part
