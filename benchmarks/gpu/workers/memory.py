"""The most memory that one allocation can have, by bisection, for one way to allocate."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from _driver import OUT_OF_MEMORY, CudaError, Gpu, driver, ok
from _worker import parser, say

STEP = 2 << 20
PITCH_WIDTH = 1 << 20
ARRAY_MOST = 16 << 30


def main() -> None:
    """Bisect between nothing and twice what the program sees."""
    made = parser(__doc__)
    made.add_argument("--way", choices=sorted(WAYS), required=True)
    options = made.parse_args()
    gpu = Gpu()
    free, total = gpu.settled_memory_mib()
    tries, low, high = 0, 0, int(total * 2) * (1 << 20) // STEP
    while high - low > 1:
        middle = (low + high) // 2
        tries += 1
        low, high = (middle, high) if WAYS[options.way](gpu, middle * STEP) else (low, middle)
    most = low * STEP / 2**20
    say(most_mib=most, before_mib=total - free, total_mib=total, tries=tries)


def _fits(allocate: Callable[[], Any], free: Callable[[Any], Any]) -> bool:
    try:
        got = allocate()
    except CudaError as refused:
        if refused.code != OUT_OF_MEMORY:
            raise
        return False
    free(got)
    return True


def _alloc(_gpu: Gpu, size: int) -> bool:
    return _fits(lambda: ok(driver.cuMemAlloc(size)), lambda got: ok(driver.cuMemFree(got)))


def _pitch(_gpu: Gpu, size: int) -> bool:
    rows = size // PITCH_WIDTH
    return _fits(lambda: ok(driver.cuMemAllocPitch(PITCH_WIDTH, rows, 16))[0], lambda got: ok(driver.cuMemFree(got)))


def _managed(_gpu: Gpu, size: int) -> bool:
    return _fits(lambda: ok(driver.cuMemAllocManaged(size, 1)), lambda got: ok(driver.cuMemFree(got)))


def _async(gpu: Gpu, size: int) -> bool:
    def free(got: Any) -> None:
        ok(driver.cuMemFreeAsync(got, gpu.stream))
        gpu.finish()
        ok(driver.cuMemPoolTrimTo(ok(driver.cuDeviceGetMemPool(gpu.device)), 0))

    return _fits(lambda: ok(driver.cuMemAllocAsync(size, gpu.stream)), free)


def _properties(gpu: Gpu) -> Any:
    wanted = driver.CUmemPoolProps()
    wanted.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    wanted.location.id = int(gpu.device)
    return wanted


def _pool(gpu: Gpu, size: int) -> bool:
    pool = ok(driver.cuMemPoolCreate(_properties(gpu)))

    def free(got: Any) -> None:
        ok(driver.cuMemFreeAsync(got, gpu.stream))
        gpu.finish()

    try:
        return _fits(lambda: ok(driver.cuMemAllocFromPoolAsync(size, pool, gpu.stream)), free)
    finally:
        ok(driver.cuMemPoolDestroy(pool))


def _vmm(gpu: Gpu, size: int) -> bool:
    wanted = driver.CUmemAllocationProp()
    wanted.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    wanted.location.id = int(gpu.device)
    return _fits(lambda: ok(driver.cuMemCreate(size, wanted, 0)), lambda got: ok(driver.cuMemRelease(got)))


def _array(_gpu: Gpu, size: int) -> bool:
    """In arrays of at most 16 GiB: none may be deeper than some thousand layers."""
    got: list[Any] = []
    try:
        for at in range(0, size, ARRAY_MOST):
            layers = min(ARRAY_MOST, size - at) // STEP
            if not _fits(partial(_layers, layers), got.append):
                return False
    finally:
        for array in got:
            ok(driver.cuArrayDestroy(array))
    return True


def _layers(count: int) -> Any:
    """Create a three-dimensional array with a number of layers of 2 MiB."""
    wanted = driver.CUDA_ARRAY3D_DESCRIPTOR()
    wanted.Width, wanted.Height, wanted.Depth = 1024, 512, count
    wanted.Format, wanted.NumChannels = driver.CUarray_format.CU_AD_FORMAT_FLOAT, 1
    return ok(driver.cuArray3DCreate(wanted))


WAYS: dict[str, Callable[[Gpu, int], bool]] = {
    "alloc": _alloc,
    "pitch": _pitch,
    "managed": _managed,
    "async": _async,
    "pool": _pool,
    "vmm": _vmm,
    "array": _array,
}

if __name__ == "__main__":
    main()
