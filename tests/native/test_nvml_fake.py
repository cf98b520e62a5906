"""The fake NVML shows pynvml the simulated GPUs and their use."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from native_harness import GIB, MIB
from nvml_harness import A100, LAST, MIG_2G, MIG_3G, T4, ask, cards_folder, holder_program, on_gpu


@pytest.fixture(scope="module")
def holder(native_out: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return holder_program(tmp_path_factory.mktemp("holder"))


class Fake:
    """The fake NVML about a folder of GPUs."""

    def __init__(self, library: Path, gpus: Path) -> None:
        self.library, self.gpus = library, gpus

    def ask(self, script: str) -> Any:
        return ask(self.library, script, {"GPUPOOL_FAKE_GPUS": str(self.gpus)})


@pytest.fixture
def fake(native_out: Path, tmp_path: Path) -> Fake:
    return Fake(native_out / "fake/libnvidia-ml.so.1", cards_folder(tmp_path / "gpus"))


def test_cards_are_found_in_every_way_and_say_that_they_are_emulated(fake: Fake) -> None:
    told = fake.ask("""
        early = code(nvmlDeviceGetCount)
        nvmlInit()
        handles = [nvmlDeviceGetHandleByIndex(i) for i in range(nvmlDeviceGetCount())]
        ways = [
            (nvmlDeviceGetHandleByUUID, nvmlDeviceGetUUID),
            (nvmlDeviceGetHandleBySerial, nvmlDeviceGetSerial),
            (nvmlDeviceGetHandleByPciBusId, lambda h: nvmlDeviceGetPciInfo(h).busId),
        ]
        found = [[nvmlDeviceGetIndex(by(name(h))) for h in handles] for by, name in ways]
        tell({
            "early": early,
            "names": [nvmlDeviceGetName(h) for h in handles],
            "uuids": [nvmlDeviceGetUUID(h) for h in handles],
            "bus": [nvmlDeviceGetPciInfo(h).busId for h in handles],
            "totals": [nvmlDeviceGetMemoryInfo(h).total for h in handles],
            "capability": nvmlDeviceGetCudaComputeCapability(handles[1]),
            "found": found,
            "unknown": [code(nvmlDeviceGetHandleByUUID, "GPU-0"), code(nvmlDeviceGetHandleByIndex, 3),
                        code(nvmlDeviceGetHandleByPciBusId, "0:9:0.0"), code(nvmlDeviceGetHandleBySerial, "x")],
            "rest": [code(nvmlDeviceGetFanSpeed, handles[0]), code(nvmlDeviceSetPowerManagementLimit, handles[0], 1)],
            "late": (nvmlShutdown(), code(nvmlDeviceGetCount))[1],
        })
    """)
    assert told["names"] == ["Fake T4 (emulated)", "Fake A100 (emulated)", "Fake T4 (emulated)"]
    assert told["uuids"] == [T4, A100, LAST]
    assert told["bus"] == ["00000000:01:00.0", "00000000:02:00.0", "00000000:03:00.0"]
    assert told["totals"] == [16 * GIB, 80 * GIB, 16 * GIB]
    assert told["capability"] == [8, 0]
    assert told["found"] == [[0, 1, 2]] * 3
    assert told["unknown"] == [6, 2, 6, 6]
    assert told["rest"] == [3, 3]
    assert told["early"] == told["late"] == 1


MEMORY_AND_PROCESSES = """
    nvmlInit()
    h = nvmlDeviceGetHandleByIndex(0)
    one, two = nvmlDeviceGetMemoryInfo(h), nvmlDeviceGetMemoryInfo(h, version=nvmlMemory_v2)
    tell({"v1": [one.total, one.used, one.free], "v2": [two.total, two.used, two.free, two.reserved],
          "pids": pids(h), "old": pids(h, nvmlDeviceGetComputeRunningProcesses_v2), "graphics":
          pids(h, nvmlDeviceGetGraphicsRunningProcesses)})
"""


def test_memory_and_processes_are_those_of_the_shared_state_until_they_are_killed(fake: Fake, holder: Path) -> None:
    with (
        on_gpu(holder, fake.gpus, (0, -1), 3 * GIB) as one,
        on_gpu(holder, fake.gpus, (0, -1), 512 * MIB) as two,
        on_gpu(holder, fake.gpus, (2, -1), GIB),
    ):
        used = 3 * GIB + 512 * MIB
        told = fake.ask(MEMORY_AND_PROCESSES)
        assert told["v1"] == [16 * GIB, used, 16 * GIB - used]
        assert told["v2"] == [16 * GIB, used, 16 * GIB - used, 0]
        assert told["pids"] == told["old"] == sorted([[one.pid, 3 * GIB], [two.pid, 512 * MIB]])
        assert told["graphics"] == []
        one.kill()
        one.wait()
        told = fake.ask(MEMORY_AND_PROCESSES)
        assert told["pids"] == [[two.pid, 512 * MIB]]
        assert told["v1"][1] == 512 * MIB


def test_busy_gpu_and_its_processes_show_use(fake: Fake, holder: Path) -> None:
    script = """
        import time
        nvmlInit()
        h = nvmlDeviceGetHandleByIndex(0)
        for _ in range(100):
            rate = nvmlDeviceGetUtilizationRates(h).gpu
            if rate >= 50: break
            time.sleep(0.05)
        samples = [(s.pid, s.smUtil) for s in nvmlDeviceGetProcessUtilization(h, 0)]
        idle = nvmlDeviceGetUtilizationRates(nvmlDeviceGetHandleByIndex(2)).gpu
        tell([rate, samples, idle])
    """
    hour_ns = 3600 * 10**9
    with (
        on_gpu(holder, fake.gpus, (0, -1), MIB, hour_ns) as busy,
        on_gpu(holder, fake.gpus, (0, -1), MIB) as quiet,
    ):
        rate, samples, idle = fake.ask(script)
    assert rate >= 50
    assert idle == 0
    shares = dict(samples)
    assert shares[quiet.pid] == 0
    assert shares[busy.pid] >= 50


def test_mig_instances_have_names_memory_and_processes_of_their_own(fake: Fake, holder: Path) -> None:
    script = """
        nvmlInit()
        card = nvmlDeviceGetHandleByIndex(1)
        assert nvmlDeviceGetMigMode(card) == [1, 1]
        found = []
        for i in range(nvmlDeviceGetMaxMigDeviceCount(card)):
            if code(nvmlDeviceGetMigDeviceHandleByIndex, card, i) == 0:
                found.append(nvmlDeviceGetMigDeviceHandleByIndex(card, i))
        parent = nvmlDeviceGetDeviceHandleFromMigDeviceHandle(found[1])
        attributes = nvmlDeviceGetAttributes(found[0])
        tell({"uuids": [nvmlDeviceGetUUID(h) for h in found], "names": [nvmlDeviceGetName(h) for h in found],
              "totals": [nvmlDeviceGetMemoryInfo(h).total for h in found],
              "by uuid": [nvmlDeviceGetUUID(nvmlDeviceGetHandleByUUID(nvmlDeviceGetUUID(h))) for h in found],
              "parent": nvmlDeviceGetUUID(parent), "pids": [pids(h) for h in [card, *found]],
              "used": nvmlDeviceGetMemoryInfo(card).used,
              "attributes": [attributes.gpuInstanceSliceCount, attributes.memorySizeMB],
              "ids": [p.gpuInstanceId for p in nvmlDeviceGetComputeRunningProcesses(card)],
              "whole": code(nvmlDeviceGetMigMode, nvmlDeviceGetHandleByIndex(0)),
              "rates": code(nvmlDeviceGetUtilizationRates, card)})
    """
    with on_gpu(holder, fake.gpus, (1, 1), GIB) as process:
        told = fake.ask(script)
    assert told["uuids"] == told["by uuid"] == [MIG_3G, MIG_2G]
    assert told["names"] == ["Fake A100 MIG 3g.40gb (emulated)", "Fake A100 MIG 2g.20gb (emulated)"]
    assert told["totals"] == [40 * GIB, 20 * GIB]
    assert told["attributes"] == [3, 40 * 1024]
    assert told["parent"] == A100
    assert told["pids"] == [[[process.pid, GIB]], [], [[process.pid, GIB]]]
    assert told["used"] == GIB
    assert told["ids"] == [2]
    assert (told["whole"], told["rates"]) == (3, 3)


def test_without_a_description_there_is_no_driver(native_out: Path, tmp_path: Path) -> None:
    library = native_out / "fake/libnvidia-ml.so.1"
    assert ask(library, "tell(code(nvmlInit))", {}) == 9
    assert ask(library, "tell(code(nvmlInit))", {"GPUPOOL_FAKE_GPUS": str(tmp_path)}) == 9


def test_every_export_of_the_list_is_there(native_out: Path) -> None:
    listed = (native_out / "generated/nvml_exports.h").read_text()
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", native_out / "fake/libnvidia-ml.so.1"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    there = {line.split()[-1] for line in symbols.splitlines()}
    assert {line[10:-1] for line in listed.splitlines()} <= there


def test_cards_have_peer_access_except_over_nvlink_and_for_a_card_with_that_fault(fake: Fake) -> None:
    (fake.gpus / "faults.conf").write_text("1 no-peer\n")
    told = fake.ask("""
        nvmlInit()
        handles = [nvmlDeviceGetHandleByIndex(i) for i in range(3)]
        kinds = (0, NVML_P2P_CAPS_INDEX_WRITE, NVML_P2P_CAPS_INDEX_NVLINK)
        status = lambda one, other: [nvmlDeviceGetP2PStatus(handles[one], handles[other], kind) for kind in kinds]
        tell({"itself": status(0, 0), "other": status(0, 2), "broken": status(0, 1),
              "not_supported": NVML_P2P_STATUS_NOT_SUPPORTED})
    """)
    none = told["not_supported"]
    assert told["itself"] == told["other"] == [0, 0, none]
    assert told["broken"] == [none, none, none]
