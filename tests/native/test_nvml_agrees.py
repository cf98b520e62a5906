"""NVML and CUDA show a tenant the same memory, to the byte."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from lease_folder import LeaseFolder
from native_harness import GIB, MIB

pytest.importorskip("cuda.bindings.driver", reason="NVIDIA's Python client is not installed")

SCRIPT = """
import json, os
import pynvml as n
from cuda.bindings import driver

def ok(result):
    assert result[0] == driver.CUresult.CUDA_SUCCESS, result
    return result[1:] if len(result) != 2 else result[1]

def both():
    free, total = ok(driver.cuMemGetInfo())
    one, two = n.nvmlDeviceGetMemoryInfo(h), n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2)
    assert (one.total, one.free, one.used) == (two.total, two.free, two.used) == (total, free, total - free)
    return total - free

n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
ok(driver.cuInit(0))
device = ok(driver.cuDeviceGet(0))
assert ok(driver.cuDeviceTotalMem(device)) == n.nvmlDeviceGetMemoryInfo(h).total
bus = ok(driver.cuDeviceGetPCIBusId(32, device)).split(b"\\0")[0].decode()
same = n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByPciBusId(bus)) == n.nvmlDeviceGetUUID(h)
name = ok(driver.cuDeviceGetName(96, device)).split(b"\\0")[0].decode()
ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(device))))
used = [both()]
for size in (1, 5 << 20, 300 << 20, (5 << 20) + 513):
    pointer = ok(driver.cuMemAlloc(size))
    used.append(both())
ok(driver.cuMemFree(pointer))
used.append(both())
result, _ = driver.cuMemAlloc(2 << 30)
assert result == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY
used.append(both())
mine = [p.usedGpuMemory for p in n.nvmlDeviceGetComputeRunningProcesses(h) if p.pid == os.getpid()]
print(json.dumps({"used": used, "bus": same, "names": [name, n.nvmlDeviceGetName(h)], "mine": mine}))
"""


def test_memory_processes_and_identity_agree(
    native_out: Path, lease: LeaseFolder, leased_environment: Callable[[LeaseFolder], dict[str, str]]
) -> None:
    env = leased_environment(lease)
    env["LD_PRELOAD"] += f":{native_out / 'share/libnvidia-ml.so.1'}"
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    used = told["used"]
    assert used == sorted(used[:5]) + used[5:]
    assert used[5] == used[6] == used[3]
    assert used[3] >= used[0] + 305 * MIB
    assert used[4] < GIB
    assert told["bus"] is True
    assert told["names"][0] == told["names"][1]
    assert len(told["mine"]) == 1
    assert told["mine"][0] >= 305 * MIB
