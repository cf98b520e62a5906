from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from lease_folder import LeasedGpu, LeaseFolder
from native_harness import NATIVE, FakeGpu, build_native, clean_environment, fake_gpus_folder, generator
from standin import build_standin


@pytest.fixture(scope="session")
def native_out() -> Path:
    """Return the folder with all native files, built from the present sources."""
    return build_native()


@pytest.fixture
def share(native_out: Path) -> Path:
    """Return the share library."""
    return native_out / "share/libcuda.so.1"


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a driver that only reports which of its functions was called."""
    return build_standin(tmp_path_factory.mktemp("standin"))


@pytest.fixture
def fake_gpus(tmp_path: Path) -> Path:
    """Return a folder with one simulated GPU, for GPUPOOL_FAKE_GPUS."""
    return fake_gpus_folder(tmp_path / "gpus")


@pytest.fixture
def lease(native_out: Path, tmp_path: Path) -> Iterator[LeaseFolder]:
    """Yield a lease of 1 GiB of that GPU, without an arbiter; compute is not gated."""
    leased = LeasedGpu(FakeGpu().uuid_bytes, memory_limit_bytes=1 << 30, uuid_text=FakeGpu().uuid)
    drivers = (native_out / "fake/libcuda.so.1", native_out / "fake/libnvidia-ml.so.1")
    with LeaseFolder(tmp_path / "lease", [leased], *drivers) as made:
        yield made


@pytest.fixture
def leased_environment(share: Path, fake_gpus: Path) -> Callable[[LeaseFolder], dict[str, str]]:
    """Return a function that creates the environment of a program of a lease, on the fake driver."""

    def environment(of: LeaseFolder) -> dict[str, str]:
        own = of.environment(share)
        return clean_environment() | own | {"GPUPOOL_FAKE_GPUS": str(fake_gpus)}

    return environment


@pytest.fixture(scope="session")
def symbols() -> ModuleType:
    """Return native/driver_symbols.py as a module."""
    spec = importlib.util.spec_from_file_location("driver_symbols", NATIVE / "driver_symbols.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "generate", generator())
        patch.setitem(sys.modules, "driver_symbols", module)
        spec.loader.exec_module(module)
    return module
