"""The share library lands in every program of a lease, shells included: loading it must do nothing and cost nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from native_harness import PROGRAMS, clean_environment, compile_program

# A core of today executes about this many in a millisecond, at one for each cycle at 1 GHz: a careful lower bound.
INSTRUCTIONS_PER_MS = 1_000_000
LIBRARIES = ("share/libcuda.so.1", "share/libcuda.so", "share/libnvidia-ml.so.1")


def readelf(library: Path, *options: str) -> str:
    return subprocess.run(["readelf", "-W", *options, str(library)], capture_output=True, text=True, check=True).stdout


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest, native_out: Path) -> Path:
    return native_out / str(request.param)


def test_there_is_no_constructor(library: Path) -> None:
    sizes = dict(re.findall(r"\((INIT_ARRAYSZ|PREINIT_ARRAYSZ|FINI_ARRAYSZ)\)\s+(\d+)", readelf(library, "-d")))
    assert int(sizes.get("INIT_ARRAYSZ", 0)) <= 8, "more than the compiler's own frame_dummy"
    assert "PREINIT_ARRAYSZ" not in sizes
    assert ".ctors" not in readelf(library, "-S")


def test_share_library_needs_only_the_c_library(library: Path) -> None:
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", readelf(library, "-d"))
    loader = {"ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
    assert set(needed) <= loader | {"libc.so.6", "libpthread.so.0", "libdl.so.2", "libcuda.so.1"}


def test_share_library_has_soname_of_driver(library: Path) -> None:
    assert f"[{library.name}]" in readelf(library, "-d")


def test_loading_it_costs_less_than_a_millisecond(native_out: Path, tmp_path: Path) -> None:
    counter = compile_program(PROGRAMS / "count_instructions.c", tmp_path)

    def instructions(preload: str) -> int:
        environment = clean_environment() | ({"COUNTED_PRELOAD": preload} if preload else {})
        command = [str(counter), "/bin/true"]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
        return int(ran.stdout)

    without = instructions("")
    both = instructions(":".join(str(native_out / name) for name in LIBRARIES if (native_out / name).exists()))
    sys.stdout.write(f"/bin/true: {without} instructions; with the share libraries preloaded: {both}\n")
    assert without < both < without + INSTRUCTIONS_PER_MS
