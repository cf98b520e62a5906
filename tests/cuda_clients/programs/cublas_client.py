"""cuBLAS through ctypes, without a framework: write what it finds as one JSON object.

Its kernels do not compute on an emulated GPU.
"""

import ctypes
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

SIZE, STEP = 64, 64 << 20
OUT_OF_MEMORY = 2


def fill(runtime: ctypes.CDLL) -> dict[str, Any]:
    """Take memory until the runtime refuses."""
    taken: list[ctypes.c_void_p] = []
    while True:
        pointer = ctypes.c_void_p()
        error = runtime.cudaMalloc(ctypes.byref(pointer), STEP)
        if error:
            break
        taken.append(pointer)
    for pointer in taken:
        runtime.cudaFree(pointer)
    name = {OUT_OF_MEMORY: "cudaErrorMemoryAllocation"}.get(error, str(error))
    return {"mib": len(taken) * (STEP >> 20), "error": name}


def memory(runtime: ctypes.CDLL) -> tuple[int, int]:
    """Return free and total memory in MiB."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    runtime.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total))
    return free.value >> 20, total.value >> 20


def main() -> None:
    places = importlib.util.find_spec("nvidia")
    assert places is not None
    folder = next(Path(place) / "cu13" / "lib" for place in places.submodule_search_locations or ())
    runtime = ctypes.CDLL(str(folder / "libcudart.so.13"))
    ctypes.CDLL(str(folder / "libcublasLt.so.13"), ctypes.RTLD_GLOBAL)
    blas = ctypes.CDLL(str(folder / "libcublas.so.13"))
    handle, version, pointers = ctypes.c_void_p(), ctypes.c_int(), [ctypes.c_void_p() for _ in range(3)]
    statuses = [blas.cublasCreate_v2(ctypes.byref(handle)), blas.cublasGetVersion_v2(handle, ctypes.byref(version))]
    statuses += [runtime.cudaMalloc(ctypes.byref(pointer), SIZE * SIZE * 4) for pointer in pointers]
    a, b, c = pointers
    one = ctypes.byref(ctypes.c_float(1.0))
    statuses.append(blas.cublasSaxpy_v2(handle, SIZE, one, a, 1, b, 1))
    statuses.append(blas.cublasSgemm_v2(handle, 0, 0, SIZE, SIZE, SIZE, one, a, SIZE, b, SIZE, one, c, SIZE))
    statuses.append(runtime.cudaDeviceSynchronize())
    statuses += [runtime.cudaFree(pointer) for pointer in pointers]
    found: dict[str, Any] = {"statuses": statuses, "version": f"{version.value // 10000}.{version.value // 100 % 100}"}
    found["total_mib"] = memory(runtime)[1]
    found["plain"] = fill(runtime)
    found["free_mib"] = memory(runtime)[0]
    sys.stdout.write(json.dumps(found))


main()
