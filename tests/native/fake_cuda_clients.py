"""Programs that use the fake driver through cuda.bindings: `python fake_cuda_clients.py <function> [argument ...]`.

Each runs in a process of its own and prints what it found as one line of JSON.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from pathlib import Path

import fake_cuda_work_clients
from cuda.bindings import driver as cuda
from fake_cuda_prelude import MIB, begin, free_bytes, kernel, launch, name, ok, tell


def devices() -> object:
    """Return the driver's information about itself and its devices."""
    started = name(cuda.cuInit(0))
    if started != "SUCCESS":
        return started
    found = []
    for ordinal in range(ok(cuda.cuDeviceGetCount())):
        device = ok(cuda.cuDeviceGet(ordinal))
        text = ok(cuda.cuDeviceGetName(96, device)).split(b"\0")[0].decode()
        found.append((text, ok(cuda.cuDeviceGetUuid(device)).bytes.hex(), ok(cuda.cuDeviceTotalMem(device))))
    return found


def attributes() -> object:
    """Read attributes by which programs choose their kernels."""
    ok(cuda.cuInit(0))
    asked = cuda.CUdevice_attribute
    wanted = (
        asked.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
        asked.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        asked.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
        asked.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
        asked.CU_DEVICE_ATTRIBUTE_WARP_SIZE,
        asked.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        asked.CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED,
    )
    return [ok(cuda.cuDeviceGetAttribute(one, 0)) for one in wanted]


def without_context() -> object:
    """Call functions before cuInit, without a context, and after its end."""
    found = [name(cuda.cuDeviceGetCount())]
    ok(cuda.cuInit(0))
    found += [name(cuda.cuMemAlloc(1)), name(cuda.cuStreamCreate(0)), name(cuda.cuCtxSynchronize())]
    begin()
    found.append(name(cuda.cuMemAlloc(1)))
    ok(cuda.cuDevicePrimaryCtxReset(0))
    return [*found, name(cuda.cuMemAlloc(1))]


def limits() -> object:
    """Read all limits of a context and one beyond, set one for graphics, and read the green context of a stream."""
    driver = ctypes.CDLL("libcuda.so.1")
    begin()
    value, green = ctypes.c_size_t(1), ctypes.c_void_p(1)
    read = [(driver.cuCtxGetLimit(ctypes.byref(value), limit), value.value) for limit in range(11)]
    stream = driver.cuStreamGetGreenCtx(None, ctypes.byref(green))
    return {"read": read, "set": driver.cuCtxSetLimit(8, ctypes.c_size_t(1)), "green": [stream, green.value]}


def profiler_table() -> object:
    """Return the number of functions of the table that CUPTI needs, and the results of calling them."""
    driver, table = ctypes.CDLL("libcuda.so.1"), ctypes.POINTER(ctypes.c_void_p)()
    name = bytes.fromhex("7cb63f9b9ca48e42a484beb66e6aed7f")
    found = driver.cuGetExportTable(ctypes.byref(table), name)
    count = (table[0] or 0) // ctypes.sizeof(ctypes.c_void_p)
    results = {ctypes.CFUNCTYPE(ctypes.c_int)(table[at])() for at in range(1, count)}
    return [found, count, sorted(results), driver.cuGetExportTable(ctypes.byref(table), bytes(16)), bool(table)]


def memory() -> object:
    """Move bytes; counts are exact, and bad pointers are refused."""
    begin()
    before = free_bytes()
    pointer = ok(cuda.cuMemAlloc(1000))
    after_small = free_bytes()
    sent, got = (ctypes.c_uint8 * 1000)(*(i % 251 for i in range(1000))), (ctypes.c_uint8 * 1000)()
    ok(cuda.cuMemcpyHtoD(pointer, ctypes.addressof(sent), 1000))
    ok(cuda.cuMemsetD8(int(pointer) + 10, 7, 5))
    ok(cuda.cuMemcpyDtoH(ctypes.addressof(got), pointer, 1000))
    expected = bytes(sent[:10]) + b"\7" * 5 + bytes(sent[15:])
    base, size = ok(cuda.cuMemGetAddressRange(int(pointer) + 500))
    too_far = name(cuda.cuMemcpyHtoD(int(pointer) + 1, ctypes.addressof(sent), 1000))
    ok(cuda.cuMemFree(pointer))
    return {
        "small": before - after_small,
        "same": bytes(got) == expected,
        "range": [int(base) == int(pointer), size],
        "freed": before - free_bytes(),
        "errors": [too_far, name(cuda.cuMemFree(pointer)), name(cuda.cuMemFree(4096)), name(cuda.cuMemAlloc(0))],
    }


def fill_card() -> object:
    """Allocate to the last unit, and not one more."""
    begin()
    rest = free_bytes() // 512 * 512
    over = name(cuda.cuMemAlloc(rest + 512))
    pointer = ok(cuda.cuMemAlloc(rest))
    ok(cuda.cuMemsetD8(int(pointer) + rest - 1, 1, 1))
    found = [over, name(cuda.cuMemAlloc(1)), free_bytes()]
    ok(cuda.cuMemFree(pointer))
    return [*found, free_bytes() == rest]


def hold(bytes_held: str) -> object:
    """Hold memory with unfinished work until it is killed."""
    begin()
    ok(cuda.cuMemAlloc(int(bytes_held)))
    spin = kernel("spin_3600ms")
    for _ in range(100):
        ok(launch(spin))
    tell(found=True)
    time.sleep(600)
    return None


def wait_for_free(wanted: str) -> object:
    """Return the seconds until this much memory is free and 1 ms of work is done."""
    begin()
    start = time.monotonic()
    while free_bytes() < int(wanted) and time.monotonic() - start < 10:
        time.sleep(0.01)
    waited = time.monotonic() - start
    ok(launch(kernel("spin_1ms")))
    ok(cuda.cuCtxSynchronize())
    return waited, free_bytes()


def pools() -> object:
    """Return reserved and used bytes of a pool during its life."""
    begin()
    stream = ok(cuda.cuStreamCreate(1))
    pool = ok(cuda.cuDeviceGetDefaultMemPool(0))
    ask = cuda.CUmemPool_attribute

    def now() -> tuple[int, int]:
        kinds = (ask.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, ask.CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
        reserved, used = (int(ok(cuda.cuMemPoolGetAttribute(pool, kind))) for kind in kinds)
        return reserved, used

    before, steps = free_bytes(), []
    first = ok(cuda.cuMemAllocAsync(MIB, stream))
    steps.append(now())
    second = ok(cuda.cuMemAllocAsync(40 * MIB, stream))
    steps.append(now())
    charged = before - free_bytes()
    ok(cuda.cuMemFreeAsync(second, stream))
    again = ok(cuda.cuMemAllocAsync(40 * MIB, stream))
    ok(cuda.cuMemFreeAsync(again, stream))
    steps.append(now())
    ok(cuda.cuStreamSynchronize(stream))
    steps.append(now())
    ok(cuda.cuMemPoolSetAttribute(pool, ask.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, cuda.cuuint64_t(64 * MIB)))
    ok(cuda.cuMemFreeAsync(first, stream))
    ok(cuda.cuStreamSynchronize(stream))
    steps.append(now())
    ok(cuda.cuMemPoolTrimTo(pool, 0))
    steps.append(now())
    return {"steps": steps, "charged": charged, "left": before - free_bytes(), "reused": int(again) == int(second)}


def limited_pool() -> object:
    """Use a pool with a largest size."""
    begin()
    properties = cuda.CUmemPoolProps()
    properties.allocType = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.maxSize = 10 * MIB
    pool = ok(cuda.cuMemPoolCreate(properties))
    stream = ok(cuda.cuStreamCreate(1))
    found = [name(cuda.cuMemAllocFromPoolAsync(10 * MIB + 1, pool, stream))]
    pointer = ok(cuda.cuMemAllocFromPoolAsync(10 * MIB, pool, stream))
    found.append(name(cuda.cuMemAllocFromPoolAsync(1, pool, stream)))
    ok(cuda.cuMemFreeAsync(pointer, stream))
    found.append(name(cuda.cuMemAllocFromPoolAsync(1, pool, stream)))
    return found


def virtual_memory() -> object:
    """Map physical memory twice; it is charged until its last handle and mapping are gone."""
    begin()
    properties = cuda.CUmemAllocationProp()
    properties.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    minimum = cuda.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    size = ok(cuda.cuMemGetAllocationGranularity(properties, minimum))
    before = free_bytes()
    charged = []
    handle = ok(cuda.cuMemCreate(size, properties, 0))
    charged.append(before - free_bytes())
    at = int(ok(cuda.cuMemAddressReserve(2 * size, 0, 0, 0)))
    unmapped = name(cuda.cuMemsetD8(at, 1, 1))
    ok(cuda.cuMemMap(at, size, 0, handle, 0))
    ok(cuda.cuMemMap(at + size, size, 0, handle, 0))
    access = cuda.CUmemAccessDesc()
    access.location = properties.location
    access.flags = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    ok(cuda.cuMemSetAccess(at, 2 * size, [access], 1))
    ok(cuda.cuMemsetD32(at, 0x01020304, 4))
    got = (ctypes.c_uint32 * 4)()
    ok(cuda.cuMemcpyDtoH(ctypes.addressof(got), at + size, 16))
    ok(cuda.cuMemRelease(handle))
    charged.append(before - free_bytes())
    early = name(cuda.cuMemAddressFree(at, 2 * size))
    ok(cuda.cuMemUnmap(at, size))
    charged.append(before - free_bytes())
    ok(cuda.cuMemUnmap(at + size, size))
    charged.append(before - free_bytes())
    ok(cuda.cuMemAddressFree(at, 2 * size))
    odd = name(cuda.cuMemCreate(size + 1, properties, 0))
    return {"size": size, "charged": charged, "seen": list(got), "errors": [unmapped, early, odd]}


def arrays() -> object:
    """Check that an array takes memory, and that bytes get there and back."""
    begin()
    before = free_bytes()
    descriptor = cuda.CUDA_ARRAY_DESCRIPTOR()
    descriptor.Width, descriptor.Height, descriptor.NumChannels = 100, 10, 1
    descriptor.Format = cuda.CUarray_format.CU_AD_FORMAT_FLOAT
    array = ok(cuda.cuArrayCreate(descriptor))
    taken = before - free_bytes()
    sent, got = (ctypes.c_float * 100)(*range(100)), (ctypes.c_float * 100)()
    ok(cuda.cuMemcpyHtoA(array, 0, ctypes.addressof(sent), 400))
    ok(cuda.cuMemcpyAtoH(ctypes.addressof(got), array, 0, 400))
    ok(cuda.cuArrayDestroy(array))
    return taken, list(got) == list(sent), before - free_bytes(), name(cuda.cuArrayDestroy(array))


def addresses() -> object:
    """Return the export of cuGetProcAddress for a name, a version and a flag, or the reason for none."""
    library = ctypes.CDLL("libcuda.so.1")
    exports = {ctypes.cast(getattr(library, one), ctypes.c_void_p).value: one for one in exported()}
    found = []
    for symbol, version, flag in (
        ("cuMemAlloc", 3020, 0),
        ("cuMemAlloc", 2000, 1),
        ("cuCtxCreate", 3020, 0),
        ("cuCtxCreate", 13000, 0),
        ("cuLaunchKernel", 13000, 1),
        ("cuLaunchKernel", 13000, 2),
        ("cuLaunchKernel", 4000, 2),
        ("cuMemcpyHtoD", 13000, 2),
        ("cuGetProcAddress", 13000, 0),
        ("cuGreenCtxCreate", 11000, 0),
        ("cuNothingOfTheKind", 13000, 0),
        ("cuMemAlloc", 99000, 0),
    ):
        pointer, status = ctypes.c_void_p(), ctypes.c_int(-1)
        arguments = (symbol.encode(), ctypes.byref(pointer), version, ctypes.c_uint64(flag), ctypes.byref(status))
        result = library.cuGetProcAddress_v2(*arguments)
        found.append([result, exports.get(pointer.value), status.value])
    return found


def exported() -> list[str]:
    """Return all names of the interface that the build knows."""
    listed = Path(__file__).parents[2] / "native/generated/cuda_api.txt"
    return [line.partition("(")[0] for line in listed.read_text(encoding="ascii").splitlines()]


def unsupported() -> object:
    """Call a function that is not simulated, and look up missing names."""
    library = ctypes.CDLL("libcuda.so.1")
    return library.cuGraphicsUnregisterResource(0), [one for one in exported() if not hasattr(library, one)]


def after_fork() -> object:
    """Check that a child of a process that used the driver cannot use it, and that its parent continues."""
    import os

    begin()
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, json.dumps([name(cuda.cuInit(0)), name(cuda.cuMemAlloc(1))]).encode())
        os._exit(0)
    child = json.loads(os.read(reader, 1000))
    os.wait()
    return {"child": child, "parent": name(cuda.cuMemAlloc(1))}


if __name__ == "__main__":
    tell(vars(fake_cuda_work_clients).get(sys.argv[1], globals().get(sys.argv[1]))(*sys.argv[2:]))
