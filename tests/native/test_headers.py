"""The driver's ABI in native/ equals NVIDIA's headers, and no export of the driver is left out."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from native_harness import NATIVE, generator, header_folder

from requires import cc

GENERATED = NATIVE / "generated"
INTERNAL = "-D__CUDA_API_VERSION_INTERNAL"


@pytest.fixture(scope="module")
def headers() -> Path:
    folder = header_folder("cuda.h")
    if folder is None:
        pytest.skip("no cuda.h: install nvidia-cuda-runtime")
    return folder


def declared(header: Path, prefix: str, *options: str) -> set[str]:
    """Return the functions that the compiler sees declared in a header."""
    return set(re.findall(rf"\b({prefix}[A-Z]\w*)\s*\([^;{{}}]*\)\s*;", cc("-E", "-P", *options, header)))


def exports(library: Path) -> set[str]:
    command = ["nm", "-D", "--defined-only", str(library)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {line.split()[2] for line in listed.splitlines()}


def test_lists_have_all_functions_of_the_headers(headers: Path) -> None:
    for name, text in generator().make_lists([headers]).items():
        assert (GENERATED / name).read_text() == text, f"run native/generate.py lists {headers}"


def test_every_function_of_the_header_is_hooked_or_handed_on(headers: Path, native_out: Path) -> None:
    functions = declared(headers / "cuda.h", "cu", INTERNAL) | declared(headers / "cuda.h", "cu")
    assert len(functions) > 500
    assert functions - exports(native_out / "share/libcuda.so.1") == set()


def test_every_function_of_nvml_is_hooked_or_handed_on(native_out: Path) -> None:
    folder = header_folder("nvml.h")
    if folder is None:
        pytest.skip("no nvml.h: install nvidia-nvml-dev")
    functions = declared(folder / "nvml.h", "nvml", "-DNVML_NO_UNVERSIONED_FUNC_DEFS")
    assert len(functions) > 300
    assert functions - exports(native_out / "share/libnvidia-ml.so.1") == set()


@pytest.mark.parametrize("which", ["cuda", "nvml"])
def test_share_library_exports_exactly_the_list(which: str, native_out: Path) -> None:
    generate = generator()
    library = {"cuda": generate.CUDA, "nvml": generate.NVML}[which]
    file = {"cuda": "share/libcuda.so.1", "nvml": "share/libnvidia-ml.so.1"}[which]
    assert exports(native_out / file) == set(generate.read_exports(library)) | library.by_hand


@pytest.mark.parametrize("folder", ["share", "fake/cuda"])
def test_every_definition_has_the_type_of_the_real_header(folder: str, headers: Path, native_out: Path) -> None:
    """Compiled with the real header in the place of our declarations: a wrong prototype is an error there."""
    sources = sorted((NATIVE / folder).glob("*.c"))
    own = [f"-I{native_out}", *(f"-I{NATIVE / name}" for name in ("include", "common", folder, "fake", "."))]
    flags = ["-std=gnu11", "-fsyntax-only", "-D_GNU_SOURCE=", "-DGPUPOOL_CHECK_HEADERS", f"-I{headers}"]
    flags += ["-Wno-missing-braces"]  # CUmemLocation has an inner union there
    for source in sources:
        cc("-Wall", "-Wextra", "-Wmissing-prototypes", "-Werror", *flags, *own, source)


def test_oldest_and_newest_version_of_a_call_are_two_exports() -> None:
    rows = {(base, version, flag): export for base, version, flag, export in generator().read_versions()}
    assert rows["cuMemAlloc", 2000, 0] == "cuMemAlloc"
    assert rows["cuMemAlloc", 3020, 0] == "cuMemAlloc_v2"
    assert rows["cuCtxCreate", 3020, 0] == "cuCtxCreate_v2"
    assert rows["cuCtxCreate", 12050, 0] == "cuCtxCreate_v4"
    assert rows["cuLaunchKernel", 7000, 2] == "cuLaunchKernel_ptsz"
    assert rows["cuGetProcAddress", 12000, 0] == "cuGetProcAddress_v2"
