"""Requirements of tests: if one is missing, the test is skipped with a reason, or fails with CI_REQUIRES_ALL=1.

Mark tests with ``@pytest.mark.needs("cc", "root")``; a fixture calls ``require("cc", "root")``. README.md promises that
the tests pass on a machine with Python and git only, so everything else that a test uses is named here.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]
REQUIRED = os.environ.get("CI_REQUIRES_ALL") == "1"


@cache
def native_builder() -> ModuleType:
    """Return native/build.py as a module."""
    spec = importlib.util.spec_from_file_location("gpupool_native_build", ROOT / "native/build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _r_kernel() -> bool:
    if shutil.which("R") is None:
        return False
    words = ["R", "--no-echo", "--no-save", "-e", "stopifnot(requireNamespace('IRkernel'))"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


@cache
def postgres_program(name: str) -> str | None:
    """Return a program of PostgreSQL, from PATH or from GPUPOOL_TEST_POSTGRES_DIR (default: Debian's folder)."""
    folder = Path(os.environ.get("GPUPOOL_TEST_POSTGRES_DIR", "/usr/lib/postgresql"))
    versions = sorted(folder.glob(f"*/bin/{name}"), key=lambda p: int(p.parts[-3].split(".")[0]))
    return shutil.which(name) or (str(versions[-1]) if versions else None)


def _command(*names: str) -> Callable[[], bool]:
    return lambda: any(shutil.which(name) is not None for name in names)


def _module(name: str) -> Callable[[], bool]:
    """Return whether a package is installed; a folder of that name (such as tests/ray) does not count."""
    return lambda: (spec := importlib.util.find_spec(name)) is not None and spec.origin is not None


def _network_namespaces() -> bool:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"gpuprobe{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0
    return made and subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False).returncode == 0


def _native_parts() -> bool:
    from gpupool.node.host import native

    return native.missing() is None


def ptxas() -> str | None:
    """Return NVIDIA's assembler: of the package nvidia-cuda-nvcc in .venv-cuda, or of a CUDA toolkit."""
    packaged = sorted((ROOT / ".venv-cuda").glob("lib/python*/site-packages/nvidia/*/bin/ptxas"))
    return str(packaged[-1]) if packaged else shutil.which("ptxas")


def _debian_mirror() -> bool:
    """Return whether packages of Debian can be downloaded from where apt gets them."""
    if shutil.which("apt-get") is None:
        return False
    words = ["apt-get", "download", "--print-uris", "base-files"]
    shown = subprocess.run(words, capture_output=True, text=True, check=False).stdout
    address = shown.partition("'")[2].partition("'")[0]
    try:
        with urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=20) as answer:
            return bool(answer.status == 200)
    except (OSError, ValueError):
        return False


# Name -> how to see that it is there, and what is missing otherwise.
NEEDS: dict[str, tuple[Callable[[], bool], str]] = {
    "asyncssh": (_module("asyncssh"), "the Python package asyncssh"),
    "busybox": (_command("busybox"), "a static busybox (Debian: busybox-static)"),
    "cc": (lambda: native_builder().can_link(["cc"]), "a C compiler called cc (Debian: gcc libc6-dev)"),
    "c++": (_command("g++"), "a C++ compiler called g++ (Debian: g++)"),
    "chromium": (_command("chromium-headless-shell", "chromium"), "Chromium (Debian: chromium-headless-shell)"),
    "cuda-clients": ((ROOT / ".venv-cuda/.installed").is_file, "the clients of CUDA (scripts/cuda-clients)"),
    "debian-mirror": (_debian_mirror, "Debian with a package mirror that can be reached"),
    "debootstrap": (_command("debootstrap"), "debootstrap (Debian: debootstrap)"),
    "jupyterhub": (_module("jupyterhub"), "the Python package jupyterhub"),
    "jupyterlab": (_module("jupyterlab"), "the Python package jupyterlab"),
    "mpi4py": (_module("mpi4py"), "the Python package mpi4py"),
    "mpirun": (_command("mpirun"), "Open MPI (Debian: openmpi-bin)"),
    "native": (_native_parts, "gpupool's native parts, which this installation lacks"),
    "netns": (_network_namespaces, "network namespaces (root and Debian's iproute2)"),
    "podman": (_command("podman"), "Podman (Debian: podman runc)"),
    "postgresql": (lambda: postgres_program("initdb") is not None, "PostgreSQL's server (Debian: postgresql)"),
    "prometheus": (_command("prometheus"), "Prometheus (Debian: prometheus)"),
    "promtool": (_command("promtool"), "Prometheus' promtool (Debian: prometheus)"),
    "ptxas": (lambda: ptxas() is not None, "NVIDIA's assembler ptxas (scripts/cuda-clients)"),
    "r-kernel": (_r_kernel, "R with IRkernel (Debian: r-cran-irkernel)"),
    "ray": (_module("ray"), "the Python package ray"),
    "rsync": (_command("rsync"), "rsync (Debian: rsync)"),
    "ssh": (_command("ssh"), "OpenSSH's client (Debian: openssh-client)"),
    "tmux": (_command("tmux"), "tmux (Debian: tmux)"),
    "root": (lambda: os.geteuid() == 0, "root"),
    "subordinate-users": (_command("newuidmap"), "newuidmap (Debian: uidmap)"),
    "tensorflow": (_module("tensorflow"), "the Python package tensorflow-cpu"),
    "torch": (_module("torch"), "the Python package torch"),
}


@cache
def there(name: str) -> bool:
    """Return whether this machine has it."""
    return NEEDS[name][0]()


def cc(*arguments: str | Path) -> str:
    """Run the C compiler and return its output; skip the test where there is none. Raise if it fails."""
    require("cc")
    done = subprocess.run(["cc", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]
    return done.stdout


def require(*names: str) -> None:
    """Skip the test unless all of these exist; fail it with CI_REQUIRES_ALL=1."""
    import pytest  # not by the programs that tests start with these modules

    missing = [NEEDS[name][1] for name in names if not there(name)]
    if missing and REQUIRED:
        pytest.fail(f"needs {' and '.join(missing)}")
    if missing:
        pytest.skip(f"needs {' and '.join(missing)}")
