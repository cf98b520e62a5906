"""NVIDIA's CUDA toolkit as far as PyPI has it, to make programs with."""

from __future__ import annotations

import subprocess
from importlib import metadata
from pathlib import Path

from requires import ROOT, cc, require

CLIENTS = ROOT / ".venv-cuda"
PYTHON = CLIENTS / "bin/python"
PROGRAMS = Path(__file__).parent / "programs"


class Toolkit:
    """The runtime of CUDA 12 and 13, and the compiler of 13."""

    def __init__(self, folder: Path) -> None:
        require("cuda-clients")
        self.folder = folder
        (self.packages,) = CLIENTS.glob("lib/python*/site-packages/nvidia")

    def runtime(self, version: int) -> Path:
        """Return the folder of libcudart."""
        name = "cuda_runtime/lib" if version == 12 else f"cu{version}/lib"
        return self.packages / name

    def build_runtime_client(self, version: int, *, static: bool) -> Path:
        """Compile runtime.c with the headers of CUDA 13 and link it with one of the runtimes."""
        made, runtime = self.folder / f"runtime-{version}-{static}", self.runtime(version)
        if static:
            linked: tuple[str | Path, ...] = (runtime / "libcudart_static.a", "-ldl", "-lpthread", "-lrt")
        else:
            linked = (runtime / f"libcudart.so.{version}", f"-Wl,-rpath,{runtime}")
        cc(
            "-Wall",
            "-Wextra",
            "-Werror",
            f"-I{self.runtime(13).parent}/include",
            PROGRAMS / "runtime.c",
            "-o",
            made,
            *linked,
        )
        return made

    def build_with_nvcc(self, source: str) -> Path:
        """Compile a program with NVIDIA's compiler, which links the runtime statically."""
        require("c++")
        root = self.runtime(13).parent
        made = self.folder / Path(source).stem
        command = [root / "bin/nvcc", "-arch=sm_75", "-o", made, PROGRAMS / source, f"-L{root}/lib"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return made


def version(package: str) -> str:
    """Return the installed version of a client."""
    (found,) = metadata.distributions(
        name=package, path=[str(path) for path in CLIENTS.glob("lib/python*/site-packages")]
    )
    return found.version
