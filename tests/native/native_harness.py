"""Builds what is native once and runs programs under it, with simulated GPUs.

Builds are kept in the system's folder for temporary files, one for each state of the sources, so that test runs and
their workers share them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from requires import cc, native_builder, require

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
    """Import native/generate.py as a module."""
    module: ModuleType = native_builder().generator()
    return module


def header_folder(header: str = "cuda.h") -> Path | None:
    """Return the folder of a header of NVIDIA's, where one is installed."""
    return next((folder for folder in _HEADER_FOLDERS if (folder / header).is_file()), None)


def _build_folder(key: str) -> Path:
    folder = Path(tempfile.gettempdir()) / f"gpupool-native-{os.getuid()}-{key}"
    folder.mkdir(mode=0o700, exist_ok=True)
    assert folder.stat().st_uid == os.getuid(), f"{folder} belongs to another user"
    return folder


def _forget_old_builds(keep: Path) -> None:
    for folder in keep.parent.glob(f"gpupool-native-{os.getuid()}-*"):
        if folder != keep and time.time() - folder.stat().st_mtime > _KEEP_S:
            shutil.rmtree(folder, ignore_errors=True)


def build_native(sanitize: str = "") -> Path:
    """Build all native files from the present sources and return their folder; `sanitize`: "", "thread" or "address".

    Skip the test where there is no C compiler.
    """
    require("cc")
    folder = _build_folder(f"{generator().sources_hash()[:16]}{sanitize and '-'}{sanitize}")
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            _forget_old_builds(folder)
            build_products(folder, sanitize=sanitize)
            (folder / "complete").touch()
    return folder


def build_products(folder: Path, flags: Sequence[str] = (), sanitize: str = "", products: Sequence[str] = ()) -> None:
    """Build products of native/ (all unless named) into a folder; skip the test where there is no C compiler."""
    require("cc")
    builder = native_builder()
    compiler = builder.find_compiler(folder)
    failures = builder.build(folder, compiler, flags, sanitize, products)
    assert not failures, failures


def compile_program(source: Path, folder: Path, *arguments: str) -> Path:
    """Build a program of one C file against native/include; further arguments name libraries."""
    program = folder / source.stem
    includes = [f"-I{NATIVE / 'include'}", f"-I{NATIVE}", f"-I{NATIVE / 'common'}", f"-I{NATIVE / 'share'}"]
    warnings = ["-Wall", "-Wextra"]
    cc("-std=gnu11", "-O1", "-g", *warnings, *includes, "-o", program, source, *arguments, "-ldl", "-lpthread")
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
        """Return the UUID in the form of cuDeviceGetUuid."""
        return bytes.fromhex(self.uuid.removeprefix("GPU-").replace("-", ""))

    def line(self) -> str:
        """Return its line of gpus.conf."""
        numbers = f"{self.memory_bytes} {self.multiprocessors} {self.capability} {self.context_bytes}"
        return f"{self.uuid} {numbers} {self.name}\n"


def fake_gpus_folder(folder: Path, gpus: Sequence[FakeGpu] = (FakeGpu(),)) -> Path:
    """Create a folder for GPUPOOL_FAKE_GPUS."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gpus.conf").write_text("".join(gpu.line() for gpu in gpus))
    return folder


def clean_environment() -> dict[str, str]:
    """Return this process's environment without variables of gpupool and the loader."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("GPUPOOL_", "LD_", "CUDA_")) and name != "NVIDIA_VISIBLE_DEVICES"
    }
