import importlib.metadata
import sys

import pytest
from fake_nvml import DRIVER_NOT_LOADED, FakeCard, FakeNvml

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.node.inventory import choose
from gpupool.node.inventory.choose import open_inventory
from gpupool.node.inventory.emulated import EmulatedInventory


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """The machine's pynvml is this one."""
    nvml = FakeNvml(FakeCard("GPU-a"))
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return nvml


def test_real_gpus_are_used_when_there_are_any(driver: FakeNvml) -> None:
    report = open_inventory(None, "n1").report()
    assert (report.emulated, [gpu.uuid for gpu in report.gpus]) == (False, ["GPU-a"])


def test_emulation_that_is_asked_for_wins_and_warns_nobody(driver: FakeNvml) -> None:
    report = open_inventory("2xV100", "n1").report()
    assert (report.emulated, len(report.gpus), report.warnings) == (True, 2, ())
    assert len(open_inventory("", "n1").report().gpus) == 1


def test_without_gpus_one_is_emulated_with_a_warning_that_says_why(driver: FakeNvml) -> None:
    driver.init_fails = DRIVER_NOT_LOADED
    report = open_inventory(None, "n1").report()
    assert (report.emulated, [gpu.model for gpu in report.gpus]) == (True, ["Tesla T4"])
    (warning,) = report.warnings
    assert "installed but not loaded" in warning
    assert "run on the CPU" in warning


def test_a_bad_emulation_is_refused(driver: FakeNvml) -> None:
    with pytest.raises(GpupoolError) as caught:
        open_inventory("4xNothing", "n1")
    assert caught.value.code is ErrorCode.INVALID_REQUEST


class OtherMakersInventory(EmulatedInventory):
    """Stands for an inventory that a package adds."""


class UselessInventory(EmulatedInventory):
    @classmethod
    def open(cls, node_name: str, options: str) -> "UselessInventory":
        raise GpupoolError(ErrorCode.UNSUPPORTED, "Not on this machine.")


def test_inventories_that_packages_add_are_tried_before_emulating(
    driver: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.init_fails = DRIVER_NOT_LOADED
    points = importlib.metadata.EntryPoints(
        importlib.metadata.EntryPoint(name, f"{__name__}:{cls}", choose.ENTRY_POINTS)
        for name, cls in (("none", "UselessInventory"), ("other", "OtherMakersInventory"))
    )
    monkeypatch.setattr(choose, "entry_points", lambda group: points.select(group=group))
    assert type(open_inventory(None, "n1")) is OtherMakersInventory
