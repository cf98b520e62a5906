"""For programs of a lease in memory tests: calls by result code, and what the fake driver has on its books.

Imported by the tests and, by way of PYTHONPATH, by the programs that they start under the share library.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lease_folder import LeasedGpu, LeaseFolder
from native_harness import FakeGpu, clean_environment, fake_gpus_folder

MIB = 1 << 20
BLOCK = 2 * MIB
KINDS = ("context", "plain", "pool", "vmm", "array", "graph")
OOM, SUCCESS, INVALID_VALUE, SYSTEM_NOT_READY = 2, 0, 1, 802
_PROCESSES_AT, _PROCESS_BYTES, _PROCESSES = 4096, 256, 512


def driver_books(gpus: Path, pid: int = 0, gpu: int = 0) -> dict[str, int]:
    """Return the bytes that the fake driver has given to live processes, by kind; `pid`: only to this one."""
    sums = dict.fromkeys(KINDS, 0)
    state = (gpus / f"gpu-{gpu}.state").read_bytes()
    for slot in range(_PROCESSES):
        at = _PROCESSES_AT + slot * _PROCESS_BYTES
        live, owner = struct.unpack_from("<II", state, at)
        if live == 1 and pid in (0, owner):
            for kind, held in zip(KINDS, struct.unpack_from("<6Q", state, at + 48), strict=True):
                sums[kind] += held
    return sums


def pool_changes() -> int:
    """Return how often the pools of this process took memory of the simulated card or gave some back."""
    state = (Path(os.environ["GPUPOOL_FAKE_GPUS"]) / "gpu-0.state").read_bytes()
    slots = range(_PROCESSES_AT, _PROCESSES_AT + _PROCESSES * _PROCESS_BYTES, _PROCESS_BYTES)
    (own,) = [at for at in slots if struct.unpack_from("<II", state, at) == (1, os.getpid())]
    return sum(struct.unpack_from("<QQ", state, own + 128))


@dataclass(frozen=True, slots=True)
class Slice:
    """A lease of the first of some simulated GPUs and how to start programs in it."""

    lease: LeaseFolder
    gpus: Path
    out: Path

    def environment(self) -> dict[str, str]:
        """Return the environment of a program of the lease."""
        own = self.lease.environment(self.out / "share/libcuda.so.1")
        modules = f"{Path(__file__).parent}:{Path(__file__).parents[1]}"
        return clean_environment() | own | {"GPUPOOL_FAKE_GPUS": str(self.gpus), "PYTHONPATH": modules}

    def start(self, source: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """Start a Python program that sees the slice; it may import everything here. Empty variables are taken away."""
        program = "from memory_client import *\n" + textwrap.dedent(source)
        environment = {name: text for name, text in (self.environment() | variables).items() if text}
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", program, *arguments]
        return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def run(self, source: str, *arguments: str, **variables: str) -> str:
        """Run one to its end, which must be good; its output."""
        process = self.start(source, *arguments, **variables)
        out, error = process.communicate(timeout=100)
        assert process.returncode == 0, f"{out}\n{error}"
        return out

    def driver_total(self) -> int:
        """Return the memory that the driver has given to all processes."""
        return sum(driver_books(self.gpus).values())


def make_slice(folder: Path, out: Path, limit: int, context_bytes: int = 128 * MIB, *, nvml: bool = True) -> Slice:
    """Create a slice of a simulated GPU of 16 GiB; close its lease afterwards."""
    gpu = FakeGpu(context_bytes=context_bytes)
    gpus = fake_gpus_folder(folder / "gpus", [gpu])
    leased = LeasedGpu(gpu.uuid_bytes, memory_limit_bytes=limit, context_bytes=context_bytes, uuid_text=gpu.uuid)
    drivers = (out / "fake/libcuda.so.1", out / "fake/libnvidia-ml.so.1" if nvml else "")
    lease = LeaseFolder(folder / "lease", [leased], *drivers)
    return Slice(lease, gpus, out)


# -- in programs of the lease ---------------------------------------------------------------------------------------


def cuda() -> Any:
    """Import the client's module; the tests themselves run without a driver."""
    from cuda.bindings import driver

    return driver


def value(result: tuple[Any, ...]) -> Any:
    """Return the values of a call, which must have succeeded."""
    assert int(result[0]) == SUCCESS, result[0]
    return result[1] if len(result) == 2 else result[1:]


def code(result: tuple[Any, ...]) -> int:
    """Return the result code of a call."""
    return int(result[0])


def begin() -> Any:
    """Initialise the driver and make the first device's primary context current."""
    cu = cuda()
    value(cu.cuInit(0))
    value(cu.cuCtxSetCurrent(value(cu.cuDevicePrimaryCtxRetain(0))))
    return cu


def used() -> int:
    """Return the memory that the slice shows as used."""
    available, total = value(cuda().cuMemGetInfo())
    return int(total - available)


def free() -> int:
    """Return the memory that the slice shows as free."""
    return int(value(cuda().cuMemGetInfo())[0])


def held() -> int:
    """Return the memory that the fake driver has given to this process."""
    return sum(driver_books(Path(os.environ["GPUPOOL_FAKE_GPUS"]), os.getpid()).values())


def physical(size: int) -> Any:
    """Return a request of cuMemCreate on the first device."""
    cu = cuda()
    properties = cu.CUmemAllocationProp()
    properties.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = 0
    return cu.cuMemCreate(size, properties, 0)


def new_pool() -> Any:
    """Create a memory pool on the first device."""
    cu = cuda()
    properties = cu.CUmemPoolProps()
    properties.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = 0
    return value(cu.cuMemPoolCreate(properties))


def array(width: int, height: int, depth: int = 0, levels: int = 0, flags: int = 0) -> tuple[Any, ...]:
    """Create an array of floats; with `levels` a mipmapped one."""
    cu = cuda()
    shape = cu.CUDA_ARRAY3D_DESCRIPTOR()
    shape.Width, shape.Height, shape.Depth, shape.NumChannels, shape.Flags = width, height, depth, 1, flags
    shape.Format = cu.CUarray_format.CU_AD_FORMAT_FLOAT
    return cu.cuMipmappedArrayCreate(shape, levels) if levels else cu.cuArray3DCreate(shape)
