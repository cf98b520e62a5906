import importlib.metadata
import sys

import pytest
from fake_nvml import DRIVER_NOT_LOADED, FakeCard, FakeNvml

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.node import agent_main
from gpupool.node.agent_main import open_inventory
from gpupool.node.inventory.emulated import EmulatedInventory


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """Replace the machine's pynvml by this one."""
    nvml = FakeNvml(FakeCard("GPU-a"))
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return nvml


def test_real_gpus_are_used_if_present(driver: FakeNvml) -> None:
    report = open_inventory(None, "n1").report()
    assert (report.emulated, [gpu.uuid for gpu in report.gpus]) == (False, ["GPU-a"])


def test_requested_emulation_has_no_warning(driver: FakeNvml) -> None:
    report = open_inventory("2xV100", "n1").report()
    assert (report.emulated, len(report.gpus), report.warnings) == (True, 2, ())
    assert len(open_inventory("", "n1").report().gpus) == 1


def test_missing_gpus_are_emulated_with_a_warning(driver: FakeNvml) -> None:
    driver.init_fails = DRIVER_NOT_LOADED
    report = open_inventory(None, "n1").report()
    assert (report.emulated, [gpu.model for gpu in report.gpus]) == (True, ["Tesla T4"])
    (warning,) = report.warnings
    assert "installed but not loaded" in warning
    assert "run on the CPU" in warning


def test_invalid_emulation_is_refused(driver: FakeNvml) -> None:
    with pytest.raises(GpupoolError) as caught:
        open_inventory("4xNothing", "n1")
    assert caught.value.code is ErrorCode.INVALID_REQUEST


class OtherMakersInventory(EmulatedInventory):
    """Stands for an inventory that a package adds."""


class UselessInventory(EmulatedInventory):
    @classmethod
    def open(cls, node_name: str, options: str) -> "UselessInventory":
        raise GpupoolError(ErrorCode.UNSUPPORTED, "Not on this machine.")


def test_inventories_of_packages_precede_emulation(driver: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.init_fails = DRIVER_NOT_LOADED
    points = importlib.metadata.EntryPoints(
        importlib.metadata.EntryPoint(name, f"{__name__}:{cls}", agent_main.INVENTORIES)
        for name, cls in (("none", "UselessInventory"), ("other", "OtherMakersInventory"))
    )
    monkeypatch.setattr(agent_main, "entry_points", lambda group: points.select(group=group))
    assert type(open_inventory(None, "n1")) is OtherMakersInventory
