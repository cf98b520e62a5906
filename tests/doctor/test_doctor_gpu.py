import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_nvml import DRIVER_NOT_LOADED, MIB, UNKNOWN, FakeCard, FakeNvml

from gpupool.daemon.doctor import gpu
from gpupool.daemon.doctor.gpu import devices, gpus, slices
from gpupool.daemon.doctor.run import DoctorContext, Finding, Severity
from gpupool.node.sharing.drivers import DriverPaths


def look(context: DoctorContext, nvml: FakeNvml) -> dict[str, Finding]:
    return {finding.check: finding for finding in gpus(replace(context, nvml=nvml))}


def plug_in_card(context: DoctorContext, vendor: str = "0x10de", kind: str = "0x030200") -> None:
    device = context.root / "sys/bus/pci/devices/0000:01:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text(vendor + "\n")
    (device / "class").write_text(kind + "\n")


@pytest.mark.parametrize(
    ("missing", "cuda", "level"),
    [
        (None, "/usr/lib/libcuda.so.1", Severity.OK),
        (None, "", Severity.WARNING),
        ("Install a compiler.", "/usr/lib/libcuda.so.1", Severity.WARNING),
    ],
)
def test_enforcement_of_slices_is_reported(
    context: DoctorContext, monkeypatch: pytest.MonkeyPatch, missing: str | None, cuda: str, level: Severity
) -> None:
    monkeypatch.setattr(gpu.native, "missing", lambda: missing)
    monkeypatch.setattr(gpu, "find_drivers", lambda: DriverPaths(cuda, ""))
    (found,) = slices(replace(context, nvml=FakeNvml(FakeCard("GPU-a"))))
    assert found.level is level
    assert missing is None or found.remedy == missing


def test_healthy_gpu_passes(context: DoctorContext) -> None:
    found = look(context, FakeNvml(FakeCard("GPU-a"), FakeCard("GPU-b")))
    assert {finding.level for finding in found.values()} == {Severity.OK}
    assert found["driver"].sentence == "2 GPUs (Tesla T4, Tesla T4), driver 550.54.15, CUDA 12.4."


def test_emulation_needs_no_driver(context: DoctorContext) -> None:
    (found,) = gpus(replace(context, emulate=True, nvml=FakeNvml(init_fails=DRIVER_NOT_LOADED)))
    assert (found.level, "emulated" in found.sentence) == (Severity.OK, True)


def test_missing_gpu_is_a_warning(context: DoctorContext) -> None:
    plug_in_card(context, vendor="0x8086")
    found = look(context, FakeNvml(init_fails=12))["driver"]
    assert (found.level, "emulate one" in found.sentence) == (Severity.WARNING, True)


def test_gpu_with_failing_driver_is_a_problem(context: DoctorContext) -> None:
    plug_in_card(context)
    found = look(context, FakeNvml(init_fails=DRIVER_NOT_LOADED))["driver"]
    assert (found.level, "not loaded" in found.sentence) == (Severity.PROBLEM, True)
    assert found.remedy


def test_failed_query_is_a_warning(context: DoctorContext) -> None:
    card = FakeCard("GPU-a", fails={"nvmlDeviceGetUtilizationRates": UNKNOWN})
    assert look(context, FakeNvml(card))["driver"].level is Severity.WARNING


@pytest.mark.parametrize(
    ("change", "level"), [({"uncorrected": 2}, Severity.PROBLEM), ({"retirement_pending": 1}, Severity.WARNING)]
)
def test_unhealthy_gpu_is_reported(context: DoctorContext, change: dict[str, Any], level: Severity) -> None:
    found = look(context, FakeNvml(FakeCard("GPU-a"), FakeCard("GPU-b", **change)))["gpu-health"]
    assert (found.level, found.sentence.startswith("GPU 1 (Tesla T4): ")) == (level, True)


def test_foreign_processes_are_named_and_jobs_of_pool_are_not(context: DoctorContext) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as job:
        nvml = FakeNvml(FakeCard("GPU-a", processes=[(job.pid, 300 * MIB)]))
        stranger = look(context, nvml)["gpus-in-use"]
        folder = context.node_state.replicas / "w0000000001.0.0"
        folder.mkdir(parents=True)
        record = {"pid": os.getpid(), "start": 1, "boot_id": "x", "notes": [], "cgroups": []}
        (folder / "shepherd.json").write_text(json.dumps(record))
        own = look(context, nvml)["gpus-in-use"]
        job.kill()
    assert stranger.level is Severity.WARNING
    assert f"(pid {job.pid})" in stranger.sentence
    assert "300 MiB" in stranger.sentence
    assert own.level is Severity.OK


def make_devices(root: Path, *names: str) -> None:
    for name in names:
        (root / "dev" / name).touch(mode=0o666)


def test_device_files_are_checked_only_with_a_gpu(context: DoctorContext) -> None:
    assert [finding.level for finding in devices(context)] == [Severity.OK]
    plug_in_card(context)
    (found,) = devices(context)
    assert (found.level, "nvidia-uvm" in found.sentence) == (Severity.PROBLEM, True)
    assert [finding.level for finding in devices(replace(context, emulate=True))] == [Severity.OK]


def test_existing_device_files_pass(context: DoctorContext) -> None:
    plug_in_card(context)
    make_devices(context.root, "nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm")
    (found,) = devices(context)
    assert (found.level, "2 GPUs" in found.sentence) == (Severity.OK, True)


def test_inaccessible_device_files_are_a_problem(context: DoctorContext, monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in_card(context)
    make_devices(context.root, "nvidia0", "nvidiactl", "nvidia-uvm")
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "nvidiactl")
    (found,) = devices(context)
    assert (found.level, found.sentence) == (Severity.PROBLEM, "This user may not open /dev/nvidiactl.")
