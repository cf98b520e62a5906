"""The share library in the driver's place: it is found by that name and hands on what it does not guard."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from lease_folder import LeasedGpu, LeaseFolder
from native_harness import clean_environment, generator
from standin import WRITTEN_OUT, build_standin, run_python, unleased

NO_DEVICE, NOT_FOUND, SYSTEM_NOT_READY = 100, 500, 802


@pytest.fixture
def own_lease(tmp_path: Path, driver: Path) -> Iterator[LeaseFolder]:
    with LeaseFolder(tmp_path / "lease", [LeasedGpu(bytes(15) + b"\1", 1 << 30)], driver) as made:
        yield made


def leased(lease: LeaseFolder, share: Path) -> dict[str, str]:
    return clean_environment() | lease.environment(share)


def hooks() -> list[str]:
    generate = generator()
    return [str(name) for name in generate.hooks_of(generate.CUDA)]


def test_dlopen_of_driver_gets_share_library(share: Path, driver: Path) -> None:
    source = "print(cuda.cuInit(0), file_of(address('cuInit')), file_of(address('cuMemcpy')))"
    assert run_python(source, unleased(share, driver)).split() == ["0", str(share), str(share)]


def test_every_export_reaches_the_driver(share: Path, driver: Path) -> None:
    generate = generator()
    aside = {*hooks(), *WRITTEN_OUT}
    plain = {name: 1000 + at for at, name in enumerate(generate.read_exports(generate.CUDA)) if name not in aside}
    source = "import json; print(json.dumps({name: getattr(cuda, name)() for name in json.loads(sys.argv[1])}))"
    said = run_python(source, unleased(share, driver), json.dumps(list(plain)))
    assert json.loads(said) == plain
    assert len(plain) > 400


def test_first_call_keeps_arguments_of_all_types(share: Path, driver: Path) -> None:
    said = run_python(
        """
        wide = [ctypes.c_uint64(n) for n in range(1, 13)]
        floats = (ctypes.c_void_p(7), ctypes.c_float(1.5), ctypes.c_float(2.25))
        for _ in range(2):
            print(cuda.cuTensorMapEncodeTiled(*wide), cuda.cuTexRefSetMipmapLevelClamp(*floats))
        """,
        unleased(share, driver),
    )
    assert said.split() == ["0"] * 4


def test_lookups_give_the_hook_of_exactly_the_function_that_the_driver_meant(share: Path, driver: Path) -> None:
    generate = generator()
    guarded = set(hooks())
    rows = [row for row in generate.read_versions() if row[3] in guarded]
    source = """
    import json
    for base, version, flag, export in json.loads(sys.argv[1]):
        result, pointer, status = look_up(base, version, flag)
        assert (result, status) == (0, 0) and pointer == address(export), (base, version, flag, export)
    print("all")
    """
    assert run_python(source, unleased(share, driver), json.dumps(rows)).strip() == "all"
    assert len(rows) >= 2


def test_lookup_of_unguarded_function_returns_driver_pointer(share: Path, driver: Path) -> None:
    said = run_python(
        """
        for name, version in (("cuMemcpy", 7000), ("cuProfilerStart", 4000), ("cuFutureThing", 13050)):
            result, pointer, status = look_up(name, version)
            print(file_of(pointer))
        future = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(look_up("cuFutureThing", 13050)[1])
        print(future(41))
        """,
        unleased(share, driver),
    )
    assert said.split() == [str(driver)] * 3 + ["42"]


def test_failed_lookup_of_driver_is_returned_unchanged(share: Path, driver: Path) -> None:
    said = run_python("print(look_up('cuNoSuchThing', 13000), look_up('cuMemAlloc', 1000))", unleased(share, driver))
    assert said.split(") (") == [f"({NOT_FOUND}, None, 1", f"{NOT_FOUND}, None, 1)\n"]


def test_lookups_lead_back_to_the_hooked_lookup(share: Path, driver: Path) -> None:
    for version, export in ((12000, "cuGetProcAddress_v2"), (11030, "cuGetProcAddress")):
        source = f"print(look_up('cuGetProcAddress', {version})[1] == address('{export}'))"
        assert run_python(source, unleased(share, driver)).strip() == "True"


@pytest.mark.skipif("cuMemAlloc_v2" not in hooks(), reason="memory is not guarded in this tree")
def test_lookup_of_unexported_address_still_returns_hook(share: Path, own_lease: LeaseFolder) -> None:
    source = "cuda.cuInit(0); print(look_up('cuMemAlloc', 13000)[1] == address('cuMemAlloc_v2'))"
    said = run_python(source, leased(own_lease, share) | {"STANDIN_MODE": "private"})
    assert said.strip() == "True"
    assert own_lease.tenant("unhooked_count") == 1


@pytest.mark.skipif("cuMemAlloc_v2" not in hooks(), reason="memory is not guarded in this tree")
def test_newer_version_of_guarded_function_is_returned_and_counted(share: Path, own_lease: LeaseFolder) -> None:
    source = "cuda.cuInit(0); print(ctypes.CFUNCTYPE(ctypes.c_int)(look_up('cuMemAlloc', 14000)[1])())"
    said = run_python(source, leased(own_lease, share) | {"STANDIN_MODE": "newer"})
    assert said.strip() == "9"
    assert own_lease.tenant("unhooked_count") == 1


def test_exports_that_an_older_driver_lacks_are_hidden(share: Path, tmp_path: Path) -> None:
    older = build_standin(tmp_path, without={"cuCtxGetDevice_v2", "cuEventElapsedTime_v2", "cuLaunchKernelEx"})
    source = """
    cuda.cuInit(0)
    asked = ("cuCtxGetDevice_v2", "cuEventElapsedTime_v2", "cuLaunchKernelEx", "cuCtxGetDevice", "cuLaunchKernel")
    print(*(name for name in asked if hasattr(cuda, name)), cuda.cuCtxGetDevice(0) >= 1000)
    """
    assert run_python(source, unleased(share, older)).split() == ["cuCtxGetDevice", "cuLaunchKernel", "True"]


def test_name_without_version_also_leads_to_share_library(share: Path, driver: Path, tmp_path: Path) -> None:
    (tmp_path / "libcuda.so").symlink_to(driver)
    both = f"{share}:{share.with_suffix('')}"
    environment = unleased(share, driver) | {"LD_PRELOAD": both, "LD_LIBRARY_PATH": str(tmp_path)}
    source = """
    plain = ctypes.CDLL("libcuda.so")
    print(plain.cuInit(0), file_of(ctypes.cast(plain.cuInit, ctypes.c_void_p).value))
    """
    assert run_python(source, environment).split() == ["0", str(share)]


def test_without_a_driver_there_is_no_device(share: Path) -> None:
    said = run_python("print(cuda.cuInit(0), cuda.cuMemcpy(0, 0, 0))", unleased(share, Path("/nowhere/libcuda.so.1")))
    assert said.split() == [str(NO_DEVICE), str(NOT_FOUND)]


def test_clients_that_look_up_all_functions_see_missing_driver(share: Path) -> None:
    source = """
    result, pointer, status = look_up("cuInit", 12000)
    print(result, status, ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint)(pointer)(0), look_up("cuMemcpy", 12000)[0])
    """
    said = run_python(source, unleased(share, Path("/nowhere/libcuda.so.1")))
    assert said.split() == ["0", "0", str(NO_DEVICE), str(NOT_FOUND)]


def test_library_does_not_mistake_itself_for_driver(share: Path) -> None:
    assert run_python("print(cuda.cuInit(0))", unleased(share, share)).strip() == str(NO_DEVICE)


def test_lease_without_driver_is_refused(share: Path, tmp_path: Path) -> None:
    with LeaseFolder(tmp_path / "lease", [LeasedGpu(bytes(16), 1 << 30)], "/nowhere/libcuda.so.1") as lease:
        assert run_python("print(cuda.cuInit(0))", leased(lease, share)).strip() == str(SYSTEM_NOT_READY)
