"""Request memory from the CUDA driver until it refuses: this shows the size of a slice, and that its limit is enforced.

Needs only Python: it calls the driver library directly, as every CUDA program finally does. On an emulated GPU a
simulation answers.
"""

import ctypes
import sys

MIB = 1 << 20
OUT_OF_MEMORY = 2


def main() -> int:
    """Allocate 64 MiB at a time; return 0 when the driver reports "out of memory", 1 without a GPU."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        sys.exit(f"no CUDA driver here: {error}")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    status = cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0)
    status = status or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    status = status or cuda.cuCtxSetCurrent(context)
    if status:
        sys.exit(f"the CUDA driver answers with error {status}")
    name, total = ctypes.create_string_buffer(96), ctypes.c_size_t()
    cuda.cuDeviceGetName(name, len(name), device)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device)
    print(f"{name.value.decode()} with {total.value // MIB} MiB")
    taken, pointer = 0, ctypes.c_uint64()
    while (status := cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(64 * MIB))) == 0:
        taken += 64
    print(f"{taken} MiB taken, then {'out of memory' if status == OUT_OF_MEMORY else f'error {status}'}")
    return 0 if status == OUT_OF_MEMORY else 1


if __name__ == "__main__":
    sys.exit(main())
