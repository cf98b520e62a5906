"""NVIDIA's own libcuda and libnvidia-ml, on a machine without a GPU: the same answers with and without the library.

scripts/real-drivers unpacks them; GPUPOOL_TEST_DRIVERS names its folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from lease_folder import LeasedGpu, LeaseFolder
from native_harness import FakeGpu, clean_environment, generator
from test_exports import LEFT_OUT, LIBRARIES

FOLDER = os.environ.get("GPUPOOL_TEST_DRIVERS", "")
DRIVERS = sorted(path for path in Path(FOLDER).glob("*") if path.is_dir()) if FOLDER else []
if not DRIVERS:
    pytest.skip("GPUPOOL_TEST_DRIVERS names no folder with drivers (scripts/real-drivers)", allow_module_level=True)
EACH_DRIVER = pytest.mark.parametrize("real", DRIVERS, ids=lambda path: path.name)
VERSIONS = sorted({version for _, version, _, _ in generator().read_versions()} | {12090, 13000, 20000})
NAMES = sorted({base for base, _, _, _ in generator().read_versions()})
ASK_ADDRESSES = """
import ctypes, json, sys
cuda = ctypes.CDLL("libcuda.so.1")
names, versions = json.load(sys.stdin)
found = {}
for asked in ("cuGetProcAddress", "cuGetProcAddress_v2"):
    if not hasattr(cuda, asked):
        found[asked] = None
        continue
    for name in names:
        for version in versions:
            for flags in (0, 1, 2, 3):
                at, status = ctypes.c_void_p(), ctypes.c_int(-1)
                last = (ctypes.byref(status),) if asked.endswith("_v2") else ()
                wide = ctypes.c_uint64(flags)
                result = getattr(cuda, asked)(name.encode(), ctypes.byref(at), version, wide, *last)
                found[f"{asked} {name} {version} {flags}"] = [result, bool(at.value), status.value]
print(json.dumps(found))
"""
FIRST_CALLS = """
import ctypes, json
cuda = ctypes.CDLL("libcuda.so.1")
number, text = ctypes.c_int(-1), ctypes.c_char_p()
found = {}
def note(name, *arguments):
    found[f"{len(found)} {name}"] = [getattr(cuda, name)(*arguments), number.value]
note("cuDeviceGetCount", ctypes.byref(number))
note("cuDriverGetVersion", ctypes.byref(number))
note("cuInit", 1)
note("cuInit", 0)
note("cuInit", 0)
note("cuDeviceGetCount", ctypes.byref(number))
note("cuDeviceGet", ctypes.byref(number), 0)
note("cuCtxGetCurrent", ctypes.byref(ctypes.c_void_p()))
note("cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(4096))
note("cuMemGetInfo_v2", ctypes.byref(ctypes.c_size_t()), ctypes.byref(ctypes.c_size_t()))
note("cuCtxSynchronize")
note("cuStreamCreate", ctypes.byref(ctypes.c_void_p()), 0)
note("cuModuleLoadData", ctypes.byref(ctypes.c_void_p()), b"")
for code in range(1000):
    result = cuda.cuGetErrorName(code, ctypes.byref(text))
    found[f"error {code}"] = [result, (text.value or b"").decode()]
print(json.dumps(found))
"""


def answers(program: str, environment: dict[str, str], question: object = None) -> Any:
    """Return the JSON that a program without site packages prints."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        input=json.dumps(question),
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.fixture
def environments(real: Path, share: Path, tmp_path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Return the environments of a program without the library, and of one in a slice."""
    plain = clean_environment() | {"LD_LIBRARY_PATH": str(real)}
    leased = LeasedGpu(FakeGpu().uuid_bytes, memory_limit_bytes=1 << 30, uuid_text=FakeGpu().uuid)
    with LeaseFolder(tmp_path / "lease", [leased], real / "libcuda.so.1", real / "libnvidia-ml.so.1") as lease:
        return plain, clean_environment() | lease.environment(share)


@EACH_DRIVER
@pytest.mark.parametrize("soname", LIBRARIES)
def test_every_function_of_a_real_driver_is_exported(
    real: Path, soname: str, symbols: ModuleType, native_out: Path
) -> None:
    functions = {name for name, kind in symbols.exported(real / soname).items() if kind == "function"}
    assert len(functions) > 200
    assert functions - symbols.exported(native_out / "share" / soname).keys() - LEFT_OUT.keys() == set()


@EACH_DRIVER
def test_addresses_are_found_as_without_the_library(environments: tuple[dict[str, str], dict[str, str]]) -> None:
    plain, leased = environments
    wanted = answers(ASK_ADDRESSES, plain, [NAMES, VERSIONS])
    found = answers(ASK_ADDRESSES, leased, [NAMES, VERSIONS])
    assert len(wanted) > 10_000
    assert {asked: (found[asked], answer) for asked, answer in wanted.items() if found[asked] != answer} == {}


@EACH_DRIVER
def test_first_calls_answer_as_without_the_library(environments: tuple[dict[str, str], dict[str, str]]) -> None:
    plain, leased = environments
    assert answers(FIRST_CALLS, leased) == answers(FIRST_CALLS, plain)


@EACH_DRIVER
def test_program_in_a_slice_has_the_library_and_the_driver(
    environments: tuple[dict[str, str], dict[str, str]], real: Path, share: Path
) -> None:
    program = FIRST_CALLS.replace("json.dumps(found)", 'json.dumps(open("/proc/self/maps").read())')
    plain, leased = (answers(program, environment) for environment in environments)
    assert str(share) not in plain
    assert str(share) in leased
    assert str((real / "libcuda.so.1").resolve()) in leased
