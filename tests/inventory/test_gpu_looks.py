"""Samples of GPUs from NVML; values that NVML does not report are left out."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

from fake_nvml import MIB, NOT_FOUND, NOT_SUPPORTED, UNKNOWN, FakeCard, FakeMig, FakeNvml, NVMLError

from gpupool.domain.nodes.telemetry import GpuSample
from gpupool.node.inventory.emulated import EmulatedInventory
from gpupool.node.inventory.nvml import NvmlInventory
from gpupool.node.ports import GpuUsageSample, Meter


class MeasuringNvml(FakeNvml):
    """Cards that draw power, and tell whose their time is; ``asked`` counts the calls."""

    def __init__(self, *cards: FakeCard) -> None:
        super().__init__(*cards)
        self.asked: Counter[str] = Counter()
        self.since_us: list[int] = []
        self.rows: list[tuple[int, int, int]] | None = []  # pid, percent, time stamp

    def _call(self, name: str, function: Any, *args: Any, **kwargs: Any) -> Any:
        self.asked[name] += 1
        return super()._call(name, function, *args, **kwargs)

    def nvmlDeviceGetPowerUsage(self, handle: FakeCard) -> int:  # noqa: N802 - the names are NVML's
        return 70_500

    def nvmlDeviceGetTemperature(self, handle: FakeCard, sensor: int) -> int:  # noqa: N802
        assert sensor == 0
        return 55

    def nvmlDeviceGetClockInfo(self, handle: FakeCard, kind: int) -> int:  # noqa: N802
        return {1: 1500, 2: 5000}[kind]

    def nvmlDeviceGetProcessUtilization(self, handle: FakeCard, since_us: int) -> list[Any]:  # noqa: N802
        self.since_us.append(since_us)
        if self.rows is None:
            raise NVMLError(NOT_SUPPORTED)
        if not self.rows:
            raise NVMLError(NOT_FOUND)
        return [SimpleNamespace(pid=pid, smUtil=percent, timeStamp=at) for pid, percent, at in self.rows]


def only_look(nvml: FakeNvml) -> GpuUsageSample:
    (look,) = NvmlInventory("n1", nvml).look()
    return look


def test_gpu_sample_has_all_values() -> None:
    nvml = MeasuringNvml(FakeCard("GPU-a", utilisation=42, used_mib=300, processes=[(10, 100 * MIB), (11, None)]))
    nvml.rows = [(10, 30, 5_000_000), (10, 50, 6_000_000), (11, 2, 6_000_000)]
    inventory = NvmlInventory("n1", nvml)
    assert isinstance(inventory, Meter)
    (look,) = inventory.look()
    assert look.sample == GpuSample("GPU-a", 42.0, 300, 2, 70.5, 55.0, 1500, 5000, xids=0)
    assert (look.memory, look.percent) == ({10: 100 * MIB, 11: 0}, {10: 40.0, 11: 2.0})
    inventory.look()
    assert nvml.since_us[1] == 6_000_000, "earlier values are not queried again"


def test_no_compute_process_is_a_valid_answer() -> None:
    assert only_look(MeasuringNvml(FakeCard("GPU-a"))).percent == {}


def test_unsupported_value_is_none_and_not_queried_again() -> None:
    nvml = MeasuringNvml(FakeCard("GPU-a", fails={"nvmlDeviceGetPowerUsage": NOT_SUPPORTED}))
    nvml.rows = None
    inventory = NvmlInventory("n1", nvml)
    for _ in range(3):
        (look,) = inventory.look()
    assert (look.sample.power_w, look.sample.temperature_c, look.percent) == (None, 55.0, None)
    assert (nvml.asked["nvmlDeviceGetPowerUsage"], nvml.asked["nvmlDeviceGetProcessUtilization"]) == (1, 1)
    assert nvml.asked["nvmlDeviceGetTemperature"] == 3


def test_temporary_error_is_retried() -> None:
    card = FakeCard("GPU-a", utilisation=42, fails={"nvmlDeviceGetUtilizationRates": UNKNOWN})
    inventory = NvmlInventory("n1", MeasuringNvml(card))
    assert inventory.look()[0].sample.utilisation_percent is None
    card.fails.clear()
    assert inventory.look()[0].sample.utilisation_percent == 42.0


def test_older_nvml_without_functions_is_supported() -> None:
    sample = only_look(FakeNvml(FakeCard("GPU-a", utilisation=7))).sample
    assert sample == GpuSample("GPU-a", 7.0, 0, xids=0)


def test_mig_instances_are_sampled_without_utilisation() -> None:
    mig = [FakeMig("MIG-1", "NVIDIA A100 MIG 3g.40gb", 40_000), FakeMig("MIG-2", "NVIDIA A100 MIG 3g.40gb", 40_000)]
    looks = NvmlInventory("n1", FakeNvml(FakeCard("GPU-a", mig=mig))).look()
    assert [(look.sample.gpu_uuid, look.sample.utilisation_percent) for look in looks] == [
        ("MIG-1", None),
        ("MIG-2", None),
    ]


def test_emulated_gpus_have_no_samples() -> None:
    assert EmulatedInventory.open("n1", "2xT4").look() == ()
