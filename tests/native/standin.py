"""Builds the stand-in driver of programs/standin_driver.c and runs Python programs under the share library on it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Collection
from pathlib import Path

from native_harness import PROGRAMS, clean_environment, generator

from requires import cc

# Those that standin_driver.c writes out itself.
WRITTEN_OUT = {
    "cuInit",
    "cuProfilerStart",
    "cuDriverGetVersion",
    "cuDeviceGetUuid_v2",
    "cuTexRefSetMipmapLevelClamp",
    "cuTensorMapEncodeTiled",
    "cuGetProcAddress",
    "cuGetProcAddress_v2",
}
_PRELUDE = """
import ctypes, os, sys
cuda = ctypes.CDLL("libcuda.so.1")
def address(name):
    return ctypes.cast(getattr(cuda, name), ctypes.c_void_p).value
def file_of(pointer):
    spans = [line.split() for line in open("/proc/self/maps")]
    return [s[-1] for s in spans if int(s[0].split("-")[0], 16) <= pointer < int(s[0].split("-")[1], 16)][0]
def look_up(name, version, flags=0):
    pointer, status = ctypes.c_void_p(), ctypes.c_int(-1)
    asked = (name.encode(), ctypes.byref(pointer), version, ctypes.c_uint64(flags), ctypes.byref(status))
    result = cuda.cuGetProcAddress_v2(*asked)
    return result, pointer.value, status.value
"""


def build_standin(folder: Path, without: Collection[str] = ()) -> Path:
    """Build the stand-in as a library in this folder; `without`: exports that an older driver lacks."""
    generate = generator()
    aside = {*WRITTEN_OUT, *without}
    names = enumerate(generate.read_exports(generate.CUDA))
    lines = [f"EXPORT({name}, {at})" for at, name in names if name not in aside]
    lines += [
        f"ROW({base}, {version}, {flag}, {name})"
        for base, version, flag, name in generate.read_versions()
        if name not in without
    ]
    (folder / "standin_exports.h").write_text("\n".join(lines) + "\n")
    library = folder / "standin-libcuda.so.1"
    options = ["-std=gnu11", "-O1", "-w", "-fPIC", "-shared", "-fvisibility=hidden", f"-I{folder}"]
    cc(*options, "-Wl,-soname,libcuda.so.1", "-Wl,-Bsymbolic", "-o", library, PROGRAMS / "standin_driver.c")
    return library


def run_python(source: str, environment: dict[str, str], *arguments: str) -> str:
    """Run a program with `cuda`, `address`, `file_of` and `look_up` defined; return its output."""
    command = [sys.executable, "-S", "-c", _PRELUDE + textwrap.dedent(source), *arguments]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def unleased(share: Path, driver: Path | None) -> dict[str, str]:
    """Return the environment of a program that has the share library but no lease."""
    environment = clean_environment() | {"LD_PRELOAD": str(share)}
    return environment | ({} if driver is None else {"GPUPOOL_CUDA_DRIVER": str(driver)})
