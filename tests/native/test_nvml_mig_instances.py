"""The fake NVML creates and destroys MIG instances under the conditions that nvml.h documents."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from native_harness import GIB, clean_environment
from nvml_harness import ask, holder_program, on_gpu

CARDS = """\
GPU-00000000-0000-0000-0000-000000000001 17179869184 40 7.5 134217728 Fake T4
GPU-EMULATED-00000000-0000-0000-0000-000000000002 85899345920 108 8.0 134217728 Fake A100
mig on
GPU-EMULATED-00000000-0000-0000-0000-000000000003 85899345920 132 9.0 134217728 Fake H100  # with an instance
mig MIG-EMULATED-00000000-0000-0000-0000-0000000000a1 42949672960 56 3g.40gb
GPU-EMULATED-00000000-0000-0000-0000-000000000004 42949672960 108 8.0 134217728 Fake A100  # MIG mode is off
"""
INSUFFICIENT, IN_USE, INVALID, NOT_SUPPORTED, NO_PERMISSION = 23, 19, 2, 3, 4
PRELUDE = """
from ctypes import byref, c_uint
nvmlInit()
empty, cut, off = (nvmlDeviceGetHandleByIndex(i) for i in (1, 2, 3))
profiles = {nvmlDeviceGetGpuInstanceProfileInfo(empty, i).name[4:]: nvmlDeviceGetGpuInstanceProfileInfo(empty, i)
            for i in range(NVML_GPU_INSTANCE_PROFILE_COUNT) if code(nvmlDeviceGetGpuInstanceProfileInfo, empty, i) == 0}
def room(card):
    return {name: nvmlDeviceGetGpuInstanceRemainingCapacity(card, info.id) for name, info in profiles.items()}
def devices(card):
    places = range(nvmlDeviceGetMaxMigDeviceCount(card))
    return [nvmlDeviceGetMigDeviceHandleByIndex(card, i) for i in places
            if code(nvmlDeviceGetMigDeviceHandleByIndex, card, i) == 0]
def compute_profile(made, slices):
    infos = (nvmlGpuInstanceGetComputeInstanceProfileInfo(made, i, 0) for i in range(5)
             if code(nvmlGpuInstanceGetComputeInstanceProfileInfo, made, i, 0) == 0)
    return next(info.id for info in infos if info.sliceCount == slices)
def create(card, name):
    made = nvmlDeviceCreateGpuInstance(card, profiles[name].id)
    return made, nvmlGpuInstanceCreateComputeInstance(made, compute_profile(made, profiles[name].sliceCount))
"""


class Fake:
    """The fake NVML about cards in MIG mode."""

    def __init__(self, library: Path, gpus: Path) -> None:
        self.library, self.gpus = library, gpus
        gpus.mkdir()
        (gpus / "gpus.conf").write_text(CARDS)

    def ask(self, script: str) -> Any:
        return ask(self.library, PRELUDE + script, {"GPUPOOL_FAKE_GPUS": str(self.gpus)})


@pytest.fixture
def fake(native_out: Path, tmp_path: Path) -> Fake:
    return Fake(native_out / "fake/libnvidia-ml.so.1", tmp_path / "gpus")


def test_profiles_and_places_are_those_of_an_a100(fake: Fake) -> None:
    told = fake.ask("""
def starts(info):
    count = c_uint(8)
    array = (c_nvmlGpuInstancePlacement_t * 8)()
    nvmlDeviceGetGpuInstancePossiblePlacements(empty, info.id, array, byref(count))
    return [each.start for each in array[:count.value]]
tell({"profiles": {n: [p.id, p.sliceCount, p.instanceCount, p.memorySizeMB] for n, p in profiles.items()},
      "starts": {n: starts(p) for n, p in profiles.items()}, "room": room(empty), "cut": room(cut),
      "modes": [nvmlDeviceGetMigMode(h) for h in (empty, cut, off)],
      "off": [code(nvmlDeviceGetGpuInstanceRemainingCapacity, off, 19), code(nvmlDeviceCreateGpuInstance, off, 19)],
      "unknown": [code(nvmlDeviceGetGpuInstanceProfileInfo, empty, 5),
                  code(nvmlDeviceGetGpuInstanceProfileInfo, empty, NVML_GPU_INSTANCE_PROFILE_COUNT)]})
""")
    assert told["profiles"] == {
        "1g.10gb": [19, 1, 7, 10240],
        "2g.20gb": [14, 2, 3, 20480],
        "3g.40gb": [9, 3, 2, 40960],
        "4g.40gb": [5, 4, 1, 40960],
        "7g.80gb": [0, 7, 1, 81920],
        "1g.10gb+me": [20, 1, 1, 10240],
        "1g.20gb": [15, 1, 4, 20480],
    }
    assert told["starts"]["2g.20gb"] == [0, 2, 4]
    assert told["starts"]["3g.40gb"] == [0, 4]
    assert told["room"] == {name: most for name, (_, _, most, _) in told["profiles"].items()}
    assert told["cut"] == {"1g.10gb": 3, "2g.20gb": 1, "3g.40gb": 1, "4g.40gb": 0, "7g.80gb": 0, "1g.10gb+me": 1} | {
        "1g.20gb": 2
    }
    assert told["modes"] == [[1, 1], [1, 1], [0, 0]]
    assert told["off"] == [NOT_SUPPORTED, NOT_SUPPORTED]
    assert told["unknown"] == [NOT_SUPPORTED, INVALID]


def test_gpu_instance_is_a_device_only_with_its_compute_instance(fake: Fake) -> None:
    told = fake.ask("""
made = nvmlDeviceCreateGpuInstance(empty, profiles["3g.40gb"].id)
before = len(devices(empty))
small = code(nvmlGpuInstanceCreateComputeInstance, made, compute_profile(made, 1))
compute = nvmlGpuInstanceCreateComputeInstance(made, compute_profile(made, 3))
[device] = devices(empty)
info = nvmlGpuInstanceGetInfo(made)
half = code(nvmlGpuInstanceDestroy, made)
by_id = nvmlGpuInstanceGetInfo(nvmlDeviceGetGpuInstanceById(empty, info.id)).profileId
told = {"before": before, "small": small, "name": nvmlDeviceGetName(device), "id": nvmlDeviceGetGpuInstanceId(device),
        "info": [info.id, info.profileId, info.placement.start, info.placement.size], "half": half, "by id": by_id,
        "memory": nvmlDeviceGetMemoryInfo(device).total, "room": room(empty)}
nvmlComputeInstanceDestroy(compute)
gone = code(nvmlDeviceGetUUID, device)
nvmlGpuInstanceDestroy(made)
tell({**told, "gone": gone, "left": len(devices(empty)), "again": code(nvmlGpuInstanceDestroy, made),
      "empty": room(empty)["7g.80gb"]})
""")
    assert (told["before"], told["small"]) == (0, NOT_SUPPORTED)
    assert told["name"] == "Fake A100 MIG 3g.40gb (emulated)"
    assert told["info"] == [told["id"], 9, 0, 4]
    assert told["by id"] == 9
    assert told["memory"] == 40 * GIB
    assert told["room"]["4g.40gb"] == 0
    assert told["half"] == IN_USE
    assert (told["gone"], told["left"], told["again"], told["empty"]) == (INVALID, 0, INVALID, 1)


def test_instances_do_not_overlap_and_a_described_one_can_be_destroyed(fake: Fake) -> None:
    told = fake.ask("""
for name in ("3g.40gb", "2g.20gb", "1g.10gb"):
    create(empty, name)
full = [code(nvmlDeviceCreateGpuInstance, empty, profiles[name].id) for name in ("1g.10gb", "2g.20gb")]
array, count = (c_nvmlGpuInstance_t * 2)(), c_uint(2)
nvmlDeviceGetGpuInstances(cut, profiles["3g.40gb"].id, array, byref(count))
compute, found = (c_nvmlComputeInstance_t * 1)(), c_uint(1)
nvmlGpuInstanceGetComputeInstances(array[0], compute_profile(array[0], 3), compute, byref(found))
nvmlComputeInstanceDestroy(compute[0])
nvmlGpuInstanceDestroy(array[0])
tell({"full": full, "names": [nvmlDeviceGetName(d) for d in devices(empty)], "count": [count.value, found.value],
      "room": room(cut)["7g.80gb"]})
""")
    assert told["full"] == [INSUFFICIENT, INSUFFICIENT]
    assert [name.split()[3] for name in told["names"]] == ["3g.40gb", "2g.20gb", "1g.10gb"]
    assert told["count"] == [1, 1]
    assert told["room"] == 1
    assert fake.ask("tell(len(devices(empty)))") == 3, "another process sees them"


def test_process_on_an_instance_keeps_it(fake: Fake, native_out: Path, tmp_path: Path) -> None:
    uuid = fake.ask("""
create(empty, "7g.80gb"); made, compute = create(cut, "1g.10gb")
number = nvmlGpuInstanceGetInfo(made).id
tell(nvmlDeviceGetUUID(next(d for d in devices(cut) if nvmlDeviceGetGpuInstanceId(d) == number)))
""")
    with on_gpu(holder_program(tmp_path), fake.gpus, (1, 0), GIB) as process:
        told = fake.ask("""
[device] = devices(empty)
made = nvmlDeviceGetGpuInstanceById(empty, nvmlDeviceGetGpuInstanceId(device))
array, count = (c_nvmlComputeInstance_t * 1)(), c_uint(1)
nvmlGpuInstanceGetComputeInstances(made, compute_profile(made, 7), array, byref(count))
tell([pids(device), code(nvmlComputeInstanceDestroy, array[0])])
""")
    assert told == [[[process.pid, GIB]], IN_USE]
    driver = native_out / "fake/libcuda.so.1"
    script = (
        "import ctypes; cuda = ctypes.CDLL('libcuda.so.1'); count, size = ctypes.c_int(), ctypes.c_size_t();"
        "assert cuda.cuInit(0) == 0; cuda.cuDeviceGetCount(ctypes.byref(count));"
        "cuda.cuDeviceTotalMem_v2(ctypes.byref(size), 0); print(count.value, size.value)"
    )
    env = clean_environment() | {"GPUPOOL_FAKE_GPUS": str(fake.gpus), "LD_LIBRARY_PATH": str(driver.parent)}
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env=env | {"CUDA_VISIBLE_DEVICES": uuid},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout.split() == ["1", str(10 * GIB)], ran.stderr


def test_memory_of_a_place_is_that_of_its_present_instance(fake: Fake) -> None:
    totals = fake.ask("""
totals = []
for name in ("1g.10gb", "4g.40gb"):
    made, compute = create(empty, name)
    totals.append(nvmlDeviceGetMemoryInfo(devices(empty)[0]).total)
    nvmlComputeInstanceDestroy(compute)
    nvmlGpuInstanceDestroy(made)
tell(totals)
""")
    assert totals == [10 * GIB, 40 * GIB]


@pytest.mark.parametrize(("fault", "expected"), [("mig-denied", NO_PERMISSION), ("no-compute-instance", INSUFFICIENT)])
def test_faults_refuse_a_step(fake: Fake, fault: str, expected: int) -> None:
    (fake.gpus / "faults.conf").write_text(f"1 {fault}\n")
    assert fake.ask('tell(code(create, empty, "1g.10gb"))') == expected
