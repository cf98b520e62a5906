"""Error counters of GPUs: read every ten seconds, and absent where the driver has none."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from fake_nvml import NOT_SUPPORTED, FakeCard, FakeNvml

from gpupool.domain.nodes.telemetry import GpuSample
from gpupool.node.inventory.counters import INTERVAL_S, SLOWDOWN_REASONS, CounterReader
from gpupool.node.inventory.nvml import NvmlInventory
from gpupool.services.metrics import families

SAMPLE = GpuSample("GPU-1", 50.0, 100)


class CountingNvml(FakeNvml):
    """Two links with errors, a narrow PCIe link, and slow clocks; ``asked`` counts the calls."""

    def __init__(self, *cards: FakeCard, **options: Any) -> None:
        super().__init__(*cards, **options)
        self.asked: Counter[str] = Counter()
        self.reasons = 0x4 | 0x40
        self.corrected = 5

    def _call(self, name: str, function: Any, *args: Any, **kwargs: Any) -> Any:
        self.asked[name] += 1
        return super()._call(name, function, *args, **kwargs)

    def nvmlDeviceGetTotalEccErrors(self, handle: FakeCard, kind: int, counter: int) -> int:  # noqa: N802 - of NVML
        assert counter == 0
        return [self.corrected, 0][kind]

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: FakeCard) -> int:  # noqa: N802
        return self.reasons

    def nvmlDeviceGetPcieReplayCounter(self, handle: FakeCard) -> int:  # noqa: N802
        return 9

    def nvmlDeviceGetCurrPcieLinkGeneration(self, handle: FakeCard) -> int:  # noqa: N802
        return 4

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: FakeCard) -> int:  # noqa: N802
        return 8

    def nvmlDeviceGetNvLinkState(self, handle: FakeCard, link: int) -> int:  # noqa: N802
        return int(link < 2)

    def nvmlDeviceGetNvLinkErrorCounter(self, handle: FakeCard, link: int, kind: int) -> int:  # noqa: N802
        return link + kind


@pytest.fixture
def nvml() -> CountingNvml:
    return CountingNvml(FakeCard("GPU-1"))


def test_counters_are_read(nvml: CountingNvml) -> None:
    found = CounterReader(nvml, lambda: 0.0).add(SAMPLE, nvml.cards[0], 3)
    assert (found.utilisation_percent, found.memory_used_mib) == (50.0, 100)
    assert (found.xids, found.ecc_corrected, found.ecc_uncorrected) == (3, 5, 0)
    assert found.slowdown == "power,thermal"
    assert (found.pcie_replays, found.pcie_generation, found.pcie_width) == (9, 4, 8)
    assert found.nvlink_errors == (0 + 1 + 2 + 3) + (1 + 2 + 3 + 4)


def test_counters_are_read_again_after_the_interval(nvml: CountingNvml) -> None:
    now = [0.0]
    reader = CounterReader(nvml, lambda: now[0])
    reader.add(SAMPLE, nvml.cards[0], 0)
    nvml.corrected, now[0] = 6, INTERVAL_S - 1
    assert reader.add(SAMPLE, nvml.cards[0], 0).ecc_corrected == 5
    asked = nvml.asked.total()
    now[0] = INTERVAL_S
    assert reader.add(SAMPLE, nvml.cards[0], 0).ecc_corrected == 6
    assert nvml.asked.total() > asked


def test_unsupported_counters_are_absent_and_older_names_work(nvml: CountingNvml) -> None:
    for name in ("nvmlDeviceGetPcieReplayCounter", "nvmlDeviceGetNvLinkState", "nvmlDeviceGetTotalEccErrors"):
        nvml.fails[name] = NOT_SUPPORTED
    nvml.lacks = frozenset({"nvmlDeviceGetCurrentClocksEventReasons"})
    now = [0.0]
    reader = CounterReader(nvml, lambda: now[0])
    found = reader.add(SAMPLE, nvml.cards[0], 0)
    assert (found.pcie_replays, found.nvlink_errors, found.ecc_corrected, found.slowdown) == (None, None, None, None)
    assert found.pcie_width == 8
    before, now[0] = nvml.asked["nvmlDeviceGetNvLinkState"], INTERVAL_S
    reader.add(SAMPLE, nvml.cards[0], 0)
    assert nvml.asked["nvmlDeviceGetNvLinkState"] == before, "a GPU without links is not asked again"


def test_samples_of_the_inventory_count_xids(nvml: CountingNvml) -> None:
    inventory = NvmlInventory("n1", nvml)
    inventory.report()
    nvml.xids += [(nvml.cards[0], 13), (nvml.cards[0], 79)]
    inventory.gpus(frozenset())
    [look] = inventory.look()
    assert (look.sample.xids, look.sample.pcie_width) == (2, 8)


def test_reasons_of_metrics_are_those_of_the_reader() -> None:
    assert families.SLOWDOWN_REASONS == SLOWDOWN_REASONS
