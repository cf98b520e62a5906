"""Builds what is native once and runs programs under it, with simulated GPUs.

Builds are kept in the system's folder for temporary files, one for each state of the sources, so that test runs and
their workers share them.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "native"
PROGRAMS = Path(__file__).parent / "programs"
_HEADER_FOLDERS = (
    Path(sysconfig.get_path("purelib")) / "nvidia/cu13/include",
    Path("/usr/local/cuda/include"),
)
_KEEP_S = 86400
GIB = 1 << 30
MIB = 1 << 20


def generator() -> ModuleType:
    """native/generate.py as a module."""
    spec = importlib.util.spec_from_file_location("gpupool_native_generate", NATIVE / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def header_folder(header: str = "cuda.h") -> Path | None:
    """The folder of a header of NVIDIA's, where one is installed."""
    return next((folder for folder in _HEADER_FOLDERS if (folder / header).is_file()), None)


def _build_folder(key: str) -> Path:
    folder = Path(tempfile.gettempdir()) / f"gpupool-native-{os.getuid()}-{key}"
    folder.mkdir(mode=0o700, exist_ok=True)
    assert folder.stat().st_uid == os.getuid(), f"{folder} belongs to somebody else"
    return folder


def _forget_old_builds(keep: Path) -> None:
    for folder in keep.parent.glob(f"gpupool-native-{os.getuid()}-*"):
        if folder != keep and time.time() - folder.stat().st_mtime > _KEEP_S:
            shutil.rmtree(folder, ignore_errors=True)


def build_native(sanitize: str = "") -> Path:
    """The folder with everything built from the present sources; `sanitize`: "", "thread" or "address"."""
    folder = _build_folder(f"{generator().sources_hash()[:16]}{sanitize and '-'}{sanitize}")
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            _forget_old_builds(folder)
            _make(folder, sanitize)
    return folder


def _make(folder: Path, sanitize: str) -> None:
    command = [
        "make",
        "-k",
        "-j2",
        "-C",
        str(NATIVE),
        f"OUT={folder}",
        f"SANITIZE={sanitize}",
        f"PYTHON={sys.executable}",
    ]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    (folder / "make.log").write_text(made.stdout + made.stderr)
    if made.returncode == 0:
        (folder / "complete").touch()
    assert (folder / "share/libcuda.so.1").exists(), made.stderr


def compile_program(source: Path, folder: Path, *arguments: str) -> Path:
    """A program of one C file, against native/include; libraries are named by further arguments."""
    program = folder / source.stem
    includes = [f"-I{NATIVE / 'include'}", f"-I{NATIVE}", f"-I{NATIVE / 'common'}", f"-I{NATIVE / 'share'}"]
    warnings = ["-Wall", "-Wextra"]
    command = ["cc", "-std=gnu11", "-O1", "-g", *warnings, *includes, "-o", str(program), str(source), *arguments]
    subprocess.run([*command, "-ldl", "-lpthread"], check=True)
    return program


@dataclass(frozen=True, slots=True)
class FakeGpu:
    """A line of the fake driver's gpus.conf."""

    uuid: str = "GPU-00000000-0000-0000-0000-000000000001"
    memory_bytes: int = 16 * GIB
    multiprocessors: int = 40
    capability: str = "7.5"
    context_bytes: int = 128 * MIB
    name: str = "Fake T4"

    @property
    def uuid_bytes(self) -> bytes:
        """As cuDeviceGetUuid gives it."""
        return bytes.fromhex(self.uuid.removeprefix("GPU-").replace("-", ""))

    def line(self) -> str:
        """As it stands in gpus.conf."""
        numbers = f"{self.memory_bytes} {self.multiprocessors} {self.capability} {self.context_bytes}"
        return f"{self.uuid} {numbers} {self.name}\n"


def fake_gpus_folder(folder: Path, gpus: Sequence[FakeGpu] = (FakeGpu(),)) -> Path:
    """Makes a folder for GPUPOOL_FAKE_GPUS."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gpus.conf").write_text("".join(gpu.line() for gpu in gpus))
    return folder


def clean_environment() -> dict[str, str]:
    """This process's environment without anything of gpupool's or the loader's."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("GPUPOOL_", "LD_", "CUDA_")) and name != "NVIDIA_VISIBLE_DEVICES"
    }
