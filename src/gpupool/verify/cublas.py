"""A product of matrices by cuBLAS, where the loader finds it: a known result, and the rate of frameworks."""

from __future__ import annotations

import ctypes
import struct
from ctypes import byref, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p

from gpupool.verify.driver import Cuda, CudaContext
from gpupool.verify.results import Check, CheckOptions, CheckOutcome

LIBRARIES = ("libcublas.so.13", "libcublas.so.12", "libcublas.so.11")
ROWS, EMULATED_ROWS = 4096, 64
ONE_BITS = struct.unpack("<I", struct.pack("<f", 1.0))[0]
WORD_BYTES = 4


class CublasError(OSError):
    """Raised when a function of cuBLAS fails."""


class Cublas:
    """A handle of cuBLAS for the current context. Raises ``OSError`` if the library is missing."""

    def __init__(self) -> None:
        self._library = _load()
        self._handle = c_void_p()
        self._call("cublasCreate_v2", byref(self._handle))

    def _call(self, function: str, *arguments: object) -> None:
        status = int(getattr(self._library, function)(*arguments))
        if status:
            raise CublasError(f"{function} failed with status {status}")

    @property
    def version(self) -> int:
        """Return the version as a number: 130100 for 13.1."""
        number = c_int()
        self._call("cublasGetVersion_v2", self._handle, byref(number))
        return number.value

    def multiply(self, a: c_uint64, b: c_uint64, c: c_uint64, rows: int) -> None:
        """Start a product of square matrices of 32-bit floats: C = A B."""
        one, zero, size = c_float(1.0), c_float(0.0), c_int(rows)
        plain = c_int(0)  # not transposed
        factors = (byref(one), a, size, b, size, byref(zero), c, size)
        self._call("cublasSgemm_v2", self._handle, plain, plain, size, size, size, *factors)


def _load() -> ctypes.CDLL:
    for name in LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise FileNotFoundError("the loader finds no libcublas")


def cublas(options: CheckOptions) -> list[Check]:
    """Multiply matrices of ones, whose product is exact, and measure."""
    context = CudaContext(Cuda())
    try:
        library = Cublas()
    except FileNotFoundError as error:
        return [Check("cublas", CheckOutcome.SKIPPED, str(error))]
    rows = EMULATED_ROWS if options.emulated else ROWS
    count = rows * rows
    product = (c_float * count)()
    with context.memory(3 * count * WORD_BYTES) as base:
        a, b, c = (c_uint64(base.value + part * count * WORD_BYTES) for part in range(3))
        context.cuda.call("cuMemsetD32_v2", a, c_uint(ONE_BITS), c_size_t(2 * count))
        context.cuda.call("cuMemsetD32_v2", c, c_uint(0), c_size_t(count))
        library.multiply(a, b, c, rows)  # the first product is slower
        with context.timed() as seconds:
            library.multiply(a, b, c, rows)
        context.download(product, c)
    values = {"gemm_tflop_s": 2 * rows**3 / seconds[0] / 1e12, "rows": float(rows)}
    found = bytes(product)
    if options.emulated and not any(found):
        return [Check("cublas", note="an emulated GPU does not compute the kernels of cuBLAS", values=values)]
    if found != struct.pack("<f", rows) * count:
        return [Check("cublas", CheckOutcome.FAIL, f"wrong product of matrices of {rows} rows", values)]
    return [Check("cublas", note=f"version {library.version}", values=values)]
