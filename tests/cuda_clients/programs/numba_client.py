"""numba-cuda: write what it finds as one JSON object. Its kernels have names of its own, so none computes here."""

import json
import sys
from typing import Any

import numpy as np
from numba import cuda
from numba.cuda.cudadrv.driver import CudaAPIError

COUNT, STEP = 50_000, 64 << 20


@cuda.jit("void(float32[:], float32[:], float32[:])")
def add(a: Any, b: Any, c: Any) -> None:
    i = cuda.grid(1)
    if i < c.size:
        c[i] = a[i] + b[i]


def fill() -> dict[str, Any]:
    """Take memory until the driver refuses."""
    taken = []
    try:
        while True:
            taken.append(cuda.device_array(STEP, dtype=np.uint8))
    except CudaAPIError as error:
        return {"mib": len(taken) * (STEP >> 20), "error": error.code.name}


def main() -> None:
    memory = cuda.current_context().get_memory_info()
    found: dict[str, Any] = {"devices": len(cuda.gpus), "total_mib": memory.total >> 20}
    host = np.arange(COUNT, dtype=np.float32)
    a = cuda.to_device(host)
    found["copied"] = bool((a.copy_to_host() == host).all())
    stream, first, second = cuda.stream(), cuda.event(), cuda.event()
    first.record(stream)
    add[(COUNT + 255) // 256, 256, stream](a, a, a)
    second.record(stream)
    stream.synchronize()
    found["timed"] = cuda.event_elapsed_time(first, second) >= 0
    found["plain"] = fill()
    cuda.current_context().deallocations.clear()
    found["free_mib"] = cuda.current_context().get_memory_info().free >> 20
    sys.stdout.write(json.dumps(found))


main()
