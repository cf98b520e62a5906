"""CuPy: write what it finds as one JSON object."""

import json
import sys
from typing import Any

import cupy
import numpy as np

SOURCE = """
extern "C" __global__ void vector_add_f32(const float *a, const float *b, float *c, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) c[i] = a[i] + b[i];
}
"""
COUNT, STEP = 50_000, 64 << 20


def fill() -> dict[str, Any]:
    """Take memory until CuPy refuses."""
    taken = []
    try:
        while True:
            taken.append(cupy.empty(STEP, dtype=cupy.uint8))
    except (cupy.cuda.memory.OutOfMemoryError, cupy.cuda.runtime.CUDARuntimeError) as error:
        return {"mib": len(taken) * (STEP >> 20), "error": type(error).__name__}


def main() -> None:
    total = cupy.cuda.runtime.memGetInfo()[1]
    found: dict[str, Any] = {"devices": cupy.cuda.runtime.getDeviceCount(), "total_mib": total >> 20}
    host = np.arange(COUNT, dtype=np.float32)
    a, c = cupy.asarray(host), cupy.empty(COUNT, dtype=cupy.float32)
    add = cupy.RawKernel(SOURCE, "vector_add_f32")  # compiled by NVRTC
    launch = ((COUNT + 255) // 256,), (256,), (a, a, c, np.int32(COUNT))
    add(*launch)
    found["wrong"] = int((cupy.asnumpy(c) != 2 * host).sum())
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        add(launch[0], launch[1], (a, c, c, np.int32(COUNT)))
        graph = stream.end_capture()
    graph.launch(stream)
    graph.launch(stream)
    stream.synchronize()
    found["wrong_after_graph"] = int((cupy.asnumpy(c) != 4 * host).sum())
    first, second = cupy.cuda.Event(), cupy.cuda.Event()
    first.record()
    second.record()
    second.synchronize()
    found["timed"] = cupy.cuda.get_elapsed_time(first, second) >= 0
    found["plain"] = fill()
    cupy.get_default_memory_pool().free_all_blocks()
    with cupy.cuda.using_allocator(cupy.cuda.malloc_async):
        found["pool"] = fill()
    cupy.cuda.runtime.memPoolTrimTo(cupy.cuda.runtime.deviceGetDefaultMemPool(0), 0)
    found["free_mib"] = cupy.cuda.runtime.memGetInfo()[0] >> 20
    sys.stdout.write(json.dumps(found))


main()
