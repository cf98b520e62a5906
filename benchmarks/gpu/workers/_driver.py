"""The CUDA driver through ``cuda.bindings``: one context, and kernels whose work is counted in rounds of a loop.

The loop has a fixed number of rounds: a kernel that watched a clock would end too early while others have the GPU.
"""

from __future__ import annotations

import ctypes
import sys
import time
from typing import Any

from _worker import need, say

driver: Any = need("cuda.bindings.driver")
OK = driver.CUresult.CUDA_SUCCESS
OUT_OF_MEMORY = driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY
THREADS = 256
BLOCKS_PER_PROCESSOR = 8  # full at every compute capability
WARM_UP_US = 200_000
BETWEEN_LOOKS_S = 1.5
LONGEST_SETTLING_S = 30.0

# spin_ns: its parameter is the number of rounds. The trap keeps the loop from being optimised away; it is never
# reached, for a sum of products of positive numbers grows beyond all bounds.
PTX = """
.version 7.0
.target sm_{target}
.address_size 64
.visible .entry empty() {{ ret; }}
.visible .entry spin_ns(.param .u64 rounds) {{
    .reg .pred %more, %never;
    .reg .u64 %left;
    .reg .f32 %a;
    ld.param.u64 %left, [rounds];
    mov.f32 %a, 0f3F800000;
again:
    setp.eq.u64 %more, %left, 0;
    @%more bra done;
    fma.rn.f32 %a, %a, %a, %a;
    fma.rn.f32 %a, %a, %a, %a;
    fma.rn.f32 %a, %a, %a, %a;
    fma.rn.f32 %a, %a, %a, %a;
    sub.u64 %left, %left, 1;
    bra again;
done:
    setp.eq.f32 %never, %a, 0f12345678;
    @%never trap;
    ret;
}}
"""


class CudaError(RuntimeError):
    """The driver refused."""

    def __init__(self, code: Any) -> None:
        super().__init__(str(code))
        self.code = code


def ok(answer: tuple[Any, ...]) -> Any:
    """Return the result of a driver call; raise ``CudaError``."""
    if answer[0] != OK:
        raise CudaError(answer[0])
    return answer[1] if len(answer) == 2 else answer[1:]


class Gpu:
    """The first GPU that this program sees, with a context and the two kernels."""

    def __init__(self) -> None:
        try:
            ok(driver.cuInit(0))
        except Exception as error:  # noqa: BLE001 - no library, no device, no permission: there is no CUDA here
            say(skip=f"the CUDA driver does not start here: {error}")
        self.device = ok(driver.cuDeviceGet(0))
        self.context = ok(driver.cuDevicePrimaryCtxRetain(self.device))
        ok(driver.cuCtxSetCurrent(self.context))
        attribute = driver.CUdevice_attribute
        major = self._get(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
        minor = self._get(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
        self.processors = self._get(attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
        self.stream = ok(driver.cuStreamCreate(1))
        module = ok(driver.cuModuleLoadData(PTX.format(target=min(major * 10 + minor, 80)).encode() + b"\0"))
        self._spin = ok(driver.cuModuleGetFunction(module, b"spin_ns"))
        self._empty = ok(driver.cuModuleGetFunction(module, b"empty"))

    def _get(self, attribute: Any) -> int:
        return int(ok(driver.cuDeviceGetAttribute(attribute, self.device)))

    def spin(self, rounds: int) -> None:
        """Launch a kernel that fills the GPU for a number of rounds."""
        blocks = self.processors * BLOCKS_PER_PROCESSOR
        values = ((rounds,), (ctypes.c_uint64,))
        ok(driver.cuLaunchKernel(self._spin, blocks, 1, 1, THREADS, 1, 1, 0, self.stream, values, 0))

    def empty(self) -> None:
        """Launch a kernel that does nothing."""
        ok(driver.cuLaunchKernel(self._empty, 1, 1, 1, 32, 1, 1, 0, self.stream, 0, 0))

    def finish(self) -> None:
        """Wait for all that was launched."""
        ok(driver.cuStreamSynchronize(self.stream))

    def milliseconds(self, rounds: int, launches: int) -> float:
        """Measure the GPU time of launches with events; correct only on an otherwise unused GPU."""
        first, last = ok(driver.cuEventCreate(0)), ok(driver.cuEventCreate(0))
        ok(driver.cuEventRecord(first, self.stream))
        for _ in range(launches):
            self.spin(rounds)
        ok(driver.cuEventRecord(last, self.stream))
        ok(driver.cuEventSynchronize(last))
        return float(ok(driver.cuEventElapsedTime(first, last)))

    def memory_mib(self) -> tuple[float, float]:
        """Return free and total memory as the program sees it, MiB."""
        free, total = ok(driver.cuMemGetInfo())
        return int(free) / 2**20, int(total) / 2**20

    def settled_memory_mib(self) -> tuple[float, float]:
        """Return the same once two looks agree: the agent compares the slice with the driver only once a second."""
        seen, deadline = self.memory_mib(), time.monotonic() + LONGEST_SETTLING_S
        while True:
            time.sleep(BETWEEN_LOOKS_S)
            before, seen = seen, self.memory_mib()
            if before == seen:
                return seen
            if time.monotonic() > deadline:
                sys.exit(f"the free memory of the slice still changes after {LONGEST_SETTLING_S:g} s")
