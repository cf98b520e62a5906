"""Keep a pattern in GPU memory and compare it after each pause: status 0 if it never changed.

Its lease is suspended in the pauses. It needs only the C library's loader, because it is started often.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time

SIZE = 1 << 20
PAUSE_S = 2.5  # longer than the time after which the chaos test's lazy jobs return their GPUs


def main() -> int:
    """Use CUDA as often as the first argument says; return the exit status."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context, address = ctypes.c_void_p(), ctypes.c_uint64()
    begun = (cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context))
    pattern, found = os.urandom(SIZE), ctypes.create_string_buffer(SIZE)
    size = ctypes.c_size_t(SIZE)
    stored = (cuda.cuMemAlloc_v2(ctypes.byref(address), size), cuda.cuMemcpyHtoD_v2(address, pattern, size))
    if any(begun) or any(stored):
        return 7
    for _ in range(int(sys.argv[1])):
        time.sleep(PAUSE_S)
        ctypes.memset(found, 0, SIZE)
        if cuda.cuMemcpyDtoH_v2(found, address, size) != 0 or found.raw != pattern:
            return 8
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
