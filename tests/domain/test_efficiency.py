"""Efficiency: percentages of the request, and the smaller requests that would do."""

from __future__ import annotations

import pytest

from gpupool.domain.units import parse_memory_mib
from gpupool.domain.work.efficiency import GrantedGpus, MeasuredUse, efficiency_of
from gpupool.domain.work.workload import Limits

HOUR = 3600.0
SLICE = GrantedGpus(1, 8192, 500)
WHOLE = GrantedGpus(1, 16384, 1000)
TWO = GrantedGpus(2, 16384, 1000)
BUSY = MeasuredUse(HOUR, busy_s=1700, cpu_s=900, gpu_memory_mib=1126, memory_mib=2048)


@pytest.mark.parametrize(
    ("measured", "gpus", "limits", "options"),
    [
        (BUSY, SLICE, Limits(), ["-m 1536"]),
        (MeasuredUse(HOUR, busy_s=1700, gpu_memory_mib=5000), SLICE, Limits(), []),
        (MeasuredUse(HOUR, busy_s=3500, gpu_memory_mib=1126), WHOLE, Limits(), []),  # it needs the time of a whole GPU
        (MeasuredUse(HOUR, busy_s=300, idle_s=100, gpu_memory_mib=1126), WHOLE, Limits(), ["-m 1536"]),
        (MeasuredUse(HOUR, busy_s=300, gpu_memory_mib=4000), TWO, Limits(), ["-m 2560"]),
        (MeasuredUse(HOUR, busy_s=600, idle_s=3000, gpu_memory_mib=15000), WHOLE, Limits(), [""]),
        (MeasuredUse(HOUR, cpu_s=3600), GrantedGpus(), Limits(cpus=8, memory_mib=None), ["--cpus 2"]),
        (MeasuredUse(HOUR, cpu_s=5.5 * 3600), GrantedGpus(), Limits(cpus=8), []),
        (MeasuredUse(HOUR, memory_mib=3000), GrantedGpus(), Limits(memory_mib=32768), ["--memory 3840"]),
        (MeasuredUse(HOUR, memory_mib=30000), GrantedGpus(), Limits(memory_mib=32768), []),
        (MeasuredUse(59.0, gpu_memory_mib=100), SLICE, Limits(cpus=64), []),  # too short
        (MeasuredUse(), GrantedGpus(), Limits(), []),
    ],
)
def test_suggestions(measured: MeasuredUse, gpus: GrantedGpus, limits: Limits, options: list[str]) -> None:
    found = efficiency_of(measured, gpus, limits)
    assert [one.option for one in found.suggestions] == options
    for one in found.suggestions:
        assert one.option in one.sentence


def test_sentence_has_request_use_and_option() -> None:
    [one] = efficiency_of(BUSY, SLICE, Limits()).suggestions
    assert one.sentence == "Requested 8 GiB of GPU memory, used 1.1 GiB; -m 1536 would do."
    assert parse_memory_mib(one.option.split()[1]) > BUSY.gpu_memory_mib


def test_percentages_are_of_the_request() -> None:
    found = efficiency_of(BUSY, SLICE, Limits(cpus=1, memory_mib=4096))
    assert found.gpu_percent == pytest.approx(100 * 1700 / 1800)
    assert found.gpu_memory_percent == pytest.approx(100 * 1126 / 8192)
    assert (found.cpu_percent, found.memory_percent) == (25.0, 50.0)
    unmeasured = efficiency_of(MeasuredUse(HOUR), SLICE, Limits())
    assert (unmeasured.gpu_percent, unmeasured.cpu_percent, unmeasured.memory_percent) == (None, None, None)


@pytest.mark.parametrize(
    ("gpus", "amount"),
    [
        (GrantedGpus(1, 6553, 400), "Held 0.40 GPU for"),
        (WHOLE, "Held 1 GPU for"),
        (TWO, "Held 2 GPUs for"),
        (GrantedGpus(2, 8192, 500), "Held 0.50 of each of 2 GPUs for"),
    ],
)
def test_idle_sentence_names_the_part_that_was_held(gpus: GrantedGpus, amount: str) -> None:
    [one] = efficiency_of(MeasuredUse(HOUR, idle_s=HOUR), gpus, Limits()).suggestions
    assert one.sentence.startswith(amount)
