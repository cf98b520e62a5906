"""The share libraries export what the real libraries export, as far as a library that is preloaded may."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from native_harness import NATIVE, clean_environment, generator
from standin import build_standin, run_python, unleased

from gpupool.node.sharing.drivers import find_drivers
from requires import cc

GENERATE = generator()
LIBRARIES = {library.soname: library for library in (GENERATE.CUDA, GENERATE.NVML)}
# Functions of real libraries that the share libraries must not export, and why.
LEFT_OUT = {
    "cudbgReportDriverApiError": "debuggers set a breakpoint on it, and the driver calls its own",
    "cudbgReportDriverInternalError": "debuggers set a breakpoint on it, and the driver calls its own",
    **dict.fromkeys(
        (
            "nscq_init",
            "nscq_path_compile",
            "nscq_path_release",
            "nscq_session_create",
            "nscq_session_destroy",
            "nscq_shutdown",
        ),
        "a function of libnvidia-nscq, which NVML 450 contains; preloaded, it would take the place of that library's",
    ),
}


@pytest.mark.parametrize("soname", LIBRARIES)
def test_every_function_of_every_listed_driver_is_exported(soname: str, symbols: ModuleType, native_out: Path) -> None:
    real = GENERATE.driver_symbols(LIBRARIES[soname], "function")
    own = symbols.exported(native_out / "share" / soname)
    assert len(real) > 300
    assert real - own.keys() - LEFT_OUT.keys() == set()
    assert LEFT_OUT.keys() & own.keys() == set()


@pytest.mark.parametrize("soname", LIBRARIES)
def test_every_function_of_local_driver_is_exported(soname: str, symbols: ModuleType, native_out: Path) -> None:
    found = find_drivers()
    path = {"libcuda.so.1": found.cuda, "libnvidia-ml.so.1": found.nvml}[soname]
    if not path:
        pytest.skip(f"this machine has no {soname}")
    real = symbols.exported(Path(path))
    functions = {name for name, kind in real.items() if kind == "function"}
    missing = functions - symbols.exported(native_out / "share" / soname).keys() - LEFT_OUT.keys()
    assert missing == set(), f"run native/driver_symbols.py {Path(path).resolve()}"


@pytest.mark.parametrize("soname", LIBRARIES)
def test_no_data_is_exported(soname: str, symbols: ModuleType, native_out: Path) -> None:
    """A debugger takes the first library that has the name, and the driver reads its own variable."""
    assert "data" not in symbols.exported(native_out / "share" / soname).values()


def test_every_omitted_function_is_in_a_listed_driver() -> None:
    listed = set().union(*(GENERATE.driver_symbols(library, "function") for library in LIBRARIES.values()))
    assert LEFT_OUT.keys() - listed == set()
    assert GENERATE.driver_symbols(GENERATE.CUDA, "data") > {"cudbgIpcFlag", "cudbgSessionId"}


def test_functions_of_the_debugger_interface_reach_the_driver(share: Path, driver: Path) -> None:
    names = ("cudbgGetAPI", "cudbgGetAPIVersion", "cudbgMain", "cudbgApiInit", "cuMemGetAttribute_v2", "cuEGLApiInit")
    numbers = {name: 1000 + at for at, name in enumerate(GENERATE.read_exports(GENERATE.CUDA))}
    said = run_python(f"print(*(getattr(cuda, name)() for name in {names}))", unleased(share, driver))
    assert said.split() == [str(numbers[name]) for name in names]


def test_functions_missing_in_older_driver_are_hidden(share: Path, tmp_path: Path) -> None:
    older = build_standin(tmp_path, without={"cudbgMain", "cuMemGetAttribute_v2"})
    asked = ("cudbgMain", "cuMemGetAttribute_v2", "cudbgGetAPI", "cuMemGetAttribute")
    said = run_python(f"cuda.cuInit(0); print(*(n for n in {asked} if hasattr(cuda, n)))", unleased(share, older))
    assert said.split() == ["cudbgGetAPI", "cuMemGetAttribute"]


def test_functions_missing_in_older_nvml_are_hidden(native_out: Path, tmp_path: Path) -> None:
    """Clients that look for NAME_v2 and take NAME where it is missing, take what this NVML has."""
    older = tmp_path / "libnvidia-ml.so.470.1"
    (tmp_path / "older.c").write_text(
        "int nvmlDeviceGetCount_v2(void) { return 7; }\nint nvmlDeviceGetComputeRunningProcesses(void) { return 8; }\n"
    )
    cc("-shared", "-fPIC", "-o", older, tmp_path / "older.c")
    program = """
import ctypes
before = hasattr(ctypes.CDLL("libnvidia-ml.so.1"), "nvmlDeviceGetComputeRunningProcesses_v3")
nvml = ctypes.CDLL("libnvidia-ml.so.1")  # another object: each remembers what it found
nvml.nvmlErrorString(0)
names = ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetCount_v2")
print(before, *(name for name in names if hasattr(nvml, name)))
"""
    environment = clean_environment() | {
        "LD_PRELOAD": str(native_out / "share/libnvidia-ml.so.1"),
        "GPUPOOL_NVML_DRIVER": str(older),
    }
    command = [sys.executable, "-S", "-c", program]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert ran.stdout.split() == ["True", "nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetCount_v2"], ran.stderr


def test_list_equals_output_of_its_script(symbols: ModuleType) -> None:
    text = (NATIVE / "generated" / GENERATE.DRIVER_SYMBOLS).read_text(encoding="ascii")
    sections = GENERATE.parse_symbols(text.splitlines())
    assert symbols.text_of(symbols.merge(sections, [])) == text


def test_library_is_added_to_the_list_and_replaced(symbols: ModuleType, tmp_path: Path) -> None:
    library = tmp_path / "libcuda.so.999.1.2"

    known = [GENERATE.Symbols("libcuda.so.1", "function", ("1.1", "999.1.2"), frozenset({"cuInit", "cuGone"}))]
    source = "int flag = 1; static int own(void) { return 1; } int cuInit(void) { return own(); }"
    (tmp_path / "driver.c").write_text(source)
    cc("-shared", "-fPIC", "-nostdlib", "-o", library, tmp_path / "driver.c")
    merged = symbols.merge(known, [library])
    assert [(one.soname, one.kind, one.versions, sorted(one.names)) for one in merged] == [
        ("libcuda.so.1", "data", ("999.1.2",), ["flag"]),
        ("libcuda.so.1", "function", ("1.1",), ["cuGone"]),
        ("libcuda.so.1", "function", ("1.1", "999.1.2"), ["cuInit"]),
    ]


def test_file_without_driver_is_refused(symbols: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1.2").write_text("no library")
    for file in (tmp_path / "libcuda.so.1.2", NATIVE / "generate.py"):
        with pytest.raises(symbols.ElfError):
            symbols.merge([], [file])
