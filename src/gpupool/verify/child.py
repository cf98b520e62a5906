"""The checks that use CUDA, in a process of their own: ``child.py CHECK OPTIONS``, with options as JSON.

The GPU to check is the first of ``CUDA_VISIBLE_DEVICES``. Prints a JSON list of checks, or for ``peers`` one of pairs.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import resource
import struct
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from ctypes import byref, c_float, c_int, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from itertools import permutations
from pathlib import Path

if __name__ == "__main__":  # the pool runs this file with a Python that need not know the package
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gpupool.verify.driver import OUT_OF_MEMORY, Cuda, CudaContext, CudaError, Value
from gpupool.verify.nvml import Nvml, NvmlError
from gpupool.verify.results import Check, CheckOptions, CheckOutcome

_MIB = 1024 * 1024
_GIB = 1024 * _MIB
_WORD_BYTES = 4
_VECTOR_ELEMENTS = 50_000
_MATRIX_ROWS = 256
_ALL_BITS = 0xFFFFFFFF
_ALPHA = 3.0
# Seed and step of each pattern: all zeros, all ones, alternating bits, and a different word at each address.
_PATTERNS = ((0, 0), (_ALL_BITS, 0), (0x55555555, 0), (0xAAAAAAAA, 0), (0x12345678, 0x9E3779B1))
_MAX_PATTERN_BYTES, _EMULATED_PATTERN_BYTES = _GIB, 16 * _MIB
_COPY_BYTES, _EMULATED_COPY_BYTES = 256 * _MIB, 16 * _MIB
_BURN_ROWS, _EMULATED_BURN_ROWS = 4096, 128
_MEMORY_PART = 0.8  # of the free memory, from level 2
_EMULATED_BLOCKS = 4
_COPIES = 4
_FILLS_BEFORE, _FILLS = 4, 2
_MIN_ROUNDS = 2
_SLICE_SIZES_MIB = (256, 32, 2)  # of allocations
_CUBLAS_LIBRARIES = ("libcublas.so.13", "libcublas.so.12", "libcublas.so.11")
_PRODUCT_ROWS, _EMULATED_PRODUCT_ROWS = 4096, 64
_ONE_BITS = struct.unpack("<I", struct.pack("<f", 1.0))[0]


def compute(_options: CheckOptions) -> list[Check]:
    """Create a context and compare the results of three kernels with exact values."""
    started = time.monotonic()
    cuda = Cuda()
    context = CudaContext(cuda)
    start_ms = (time.monotonic() - started) * 1000
    free, total = context.memory_bytes()
    values = {"start_ms": start_ms, "memory_mib": total / _MIB, "free_mib": free / _MIB}
    opened = Check("context", values=values | {"compute_capability": context.capability})
    return [opened, _vector_add(context), _saxpy(context), _matmul(context)]


def _vector_add(context: CudaContext) -> Check:
    count = _VECTOR_ELEMENTS
    one = (c_float * count)(*range(count))
    other = (c_float * count)(*(2 * i for i in range(count)))
    with context.memory(3 * count * _WORD_BYTES) as base:
        a, b, c = (c_uint64(base.value + part * count * _WORD_BYTES) for part in range(3))
        context.upload(a, one)
        context.upload(b, other)
        context.launch("vector_add_f32", count, (a, b, c, c_uint32(count)))
        context.download(one, c)
    return _exact("vector-add", sum(one[i] != 3 * i for i in range(count)), count)


def _saxpy(context: CudaContext) -> Check:
    count = _VECTOR_ELEMENTS
    y = (c_float * count)(*range(count))
    with context.memory(2 * count * _WORD_BYTES) as x_at:
        y_at = c_uint64(x_at.value + count * _WORD_BYTES)
        context.upload(x_at, y)
        context.upload(y_at, y)
        context.launch("saxpy_f32", count, (c_float(_ALPHA), x_at, y_at, c_uint32(count)))
        context.download(y, y_at)
    return _exact("saxpy", sum(y[i] != (_ALPHA + 1) * i for i in range(count)), count)


def _matmul(context: CudaContext) -> Check:
    """Multiply matrices of small integers, exact in float, and check the product by a vector (Freivalds)."""
    rows = _MATRIX_ROWS
    size = rows * rows
    a = (c_float * size)(*((i * 7 + i // rows) % 5 - 2 for i in range(size)))
    b = (c_float * size)(*((i * 3 + i // rows) % 7 - 3 for i in range(size)))
    c = (c_float * size)()
    with context.memory(3 * size * _WORD_BYTES) as base:
        at = [c_uint64(base.value + part * size * _WORD_BYTES) for part in range(3)]
        context.upload(at[0], a)
        context.upload(at[1], b)
        arguments: list[Value] = [*at, c_uint32(rows)]
        context.launch("matmul_f32", size, arguments)  # the first launch is slower
        with context.timed() as seconds:
            context.launch("matmul_f32", size, arguments)
        context.download(c, at[2])
    vector = [(i * 37) % 11 - 5 for i in range(rows)]
    wanted = _times(list(a), _times(list(b), vector))
    wrong = sum(one != other for one, other in zip(_times(list(c), vector), wanted, strict=True))
    check = _exact("matmul", wrong, rows)
    return Check(check.name, check.outcome, check.note, {"matmul_gflops": 2 * rows**3 / seconds[0] / 1e9})


def _times(matrix: list[float], vector: list[float] | list[int]) -> list[float]:
    """Return the product of a square matrix and a vector."""
    rows = len(vector)
    return [
        sum(x * y for x, y in zip(matrix[row * rows : (row + 1) * rows], vector, strict=True)) for row in range(rows)
    ]


def _exact(name: str, wrong: int, count: int) -> Check:
    if wrong:
        return Check(name, CheckOutcome.FAIL, f"{wrong} of {count} results are wrong")
    return Check(name)


def memory(options: CheckOptions) -> list[Check]:
    """Fill memory with patterns and compare it: one block, and from level 2 most of the free memory."""
    context = CudaContext(Cuda())
    free, _ = context.memory_bytes()
    size = min(_EMULATED_PATTERN_BYTES if options.emulated else _MAX_PATTERN_BYTES, free // 2)
    size = size // _WORD_BYTES * _WORD_BYTES
    count = 1 if options.level == 1 else max(1, int(_MEMORY_PART * free) // size)
    if options.emulated:
        count = min(count, _EMULATED_BLOCKS)
    tested = {"tested_mib": count * size / _MIB}
    rates = []
    with ExitStack() as stack:
        result = stack.enter_context(context.memory(3 * _WORD_BYTES))
        for block in range(count):  # all are kept, so that each has other addresses
            at = stack.enter_context(context.memory(size))
            note, fill_s = _test_block(context, at, size, result)
            if note:
                return [Check("memory", CheckOutcome.FAIL, f"{note}, block {block} of {count}", tested)]
            rates.append(size / _GIB / fill_s)
    return [Check("memory", values=tested | {"memory_gib_s": max(rates)})]


def _test_block(context: CudaContext, at: c_uint64, size: int, result: c_uint64) -> tuple[str, float]:
    """Return which words of a block changed (empty: none), and the seconds of the fastest fill."""
    words = c_uint32(size // _WORD_BYTES)
    fill_s = math.inf
    for seed, step in _PATTERNS:
        found = (c_uint * 3)(0, _ALL_BITS, 0)
        context.upload(result, found)
        pattern = (at, c_uint32(seed), c_uint32(step), words)
        for _ in range(_FILLS_BEFORE):  # they hide the time between the calls of the timed ones
            context.launch("fill_pattern_u32", words.value, pattern)
        with context.timed() as seconds:
            for _ in range(_FILLS):
                context.launch("fill_pattern_u32", words.value, pattern)
        fill_s = min(fill_s, seconds[0] / _FILLS)
        context.launch("compare_pattern_u32", words.value, (*pattern, result))
        context.download(found, result)
        if found[0]:
            return _memory_note(list(found), seed, step), fill_s
    return "", fill_s


def _memory_note(found: list[int], seed: int, step: int) -> str:
    wrong, first, bits = found
    words = f"{wrong} word{'s' if wrong != 1 else ''}"
    pattern = f"pattern {seed:#010x}" if not step else f"address pattern {seed:#010x}"
    return f"{words} of memory changed: first at offset {first * _WORD_BYTES:#x}, bits {bits:#010x}, {pattern}"


def copies(options: CheckOptions) -> list[Check]:
    """Measure copies between pinned memory and the GPU."""
    context = CudaContext(Cuda())
    free, _ = context.memory_bytes()
    size = min(_EMULATED_COPY_BYTES if options.emulated else _COPY_BYTES, free // 2)
    rates = {}
    with context.memory(size) as device, context.pinned(size) as host:
        for name, back in (("host_to_device_gib_s", False), ("device_to_host_gib_s", True)):
            rates[name] = size / _GIB / min(_copy_s(context, device, host, size, back=back) for _ in range(_COPIES))
    return [Check("copies", values=rates)]


def _copy_s(context: CudaContext, device: c_uint64, host: c_void_p, size: int, *, back: bool) -> float:
    context.copy(device, host, size, back=back)  # hides the time between the calls of the timed copy
    with context.timed() as seconds:
        context.copy(device, host, size, back=back)
    return seconds[0]


def peer_copies(options: CheckOptions) -> list[Check]:
    """Copy a pattern from the first GPU to each other that it can access, compare it there, and measure."""
    cuda = Cuda()
    source = CudaContext(cuda)
    size = _EMULATED_COPY_BYTES if options.emulated else _COPY_BYTES
    rates = []
    for ordinal in range(1, cuda.count):
        if not cuda.can_access(0, ordinal):
            continue
        target = CudaContext(cuda, ordinal)
        source.use()
        if cuda.can_access(ordinal, 0):
            cuda.call("cuCtxEnablePeerAccess", target.handle, c_uint(0))
        wrong, copy_s = _copy_to_peer(source, target, size)
        if wrong:
            note = f"{wrong} words changed in a copy to another GPU ({cuda.uuid_hex(ordinal)})"
            return [Check("peer-copies", CheckOutcome.FAIL, note)]
        rates.append(size / _GIB / copy_s)
    if not rates:
        return [Check("peer-copies", CheckOutcome.SKIPPED, "no other GPU can be accessed")]
    return [Check("peer-copies", values={"least_peer_gib_s": min(rates), "most_peer_gib_s": max(rates)})]


def _copy_to_peer(source: CudaContext, target: CudaContext, size: int) -> tuple[int, float]:
    """Return the number of words that changed in a copy, and the seconds of the fastest copy."""
    seed, step = _PATTERNS[-1]
    words = c_uint32(size // _WORD_BYTES)
    found = (c_uint * 3)(0, _ALL_BITS, 0)
    source.use()
    with source.memory(size) as ours:
        source.launch("fill_pattern_u32", words.value, (ours, c_uint32(seed), c_uint32(step), words))
        source.synchronize()
        target.use()
        with target.memory(size) as theirs, target.memory(3 * _WORD_BYTES) as result:
            target.upload(result, found)
            source.use()
            fastest_s = math.inf
            for _ in range(_COPIES):
                with source.timed() as seconds:
                    source.copy_to(target, theirs, ours, size)
                fastest_s = min(fastest_s, seconds[0])
            target.use()
            pattern = (theirs, c_uint32(seed), c_uint32(step), words, result)
            target.launch("compare_pattern_u32", words.value, pattern)
            target.download(found, result)
    source.use()
    return found[0], fastest_s


class CublasError(OSError):
    """Raised when a function of cuBLAS fails."""


class Cublas:
    """A handle of cuBLAS for the current context. Raises ``OSError`` if the library is missing."""

    def __init__(self) -> None:
        self._library = _load_cublas()
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


def _load_cublas() -> ctypes.CDLL:
    for name in _CUBLAS_LIBRARIES:
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
    rows = _EMULATED_PRODUCT_ROWS if options.emulated else _PRODUCT_ROWS
    count = rows * rows
    product = (c_float * count)()
    with context.memory(3 * count * _WORD_BYTES) as base:
        a, b, c = (c_uint64(base.value + part * count * _WORD_BYTES) for part in range(3))
        context.cuda.call("cuMemsetD32_v2", a, c_uint(_ONE_BITS), c_size_t(2 * count))
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


def burn(options: CheckOptions) -> list[Check]:
    """Multiply matrices for a time; each product must equal the first, bit by bit."""
    context = CudaContext(Cuda())
    rows = _EMULATED_BURN_ROWS if options.emulated else _BURN_ROWS
    size = rows * rows
    device = Nvml().device_of(os.environ["CUDA_VISIBLE_DEVICES"])
    factors = (c_float * size)(*((i * 7919 % 1009) / 1009 for i in range(size)))
    product = (c_float * size)()
    reference, rounds, hottest_c, highest_mw = b"", 0, 0, 0
    started = time.monotonic()
    with context.memory(2 * size * _WORD_BYTES) as base:
        c = c_uint64(base.value + size * _WORD_BYTES)
        context.upload(base, factors)
        while time.monotonic() < started + options.burn_s or rounds < _MIN_ROUNDS:
            context.launch("matmul_f32", size, (base, base, c, c_uint32(rows)))
            context.download(product, c)
            rounds += 1
            reference = reference or bytes(product)
            hottest_c = max(hottest_c, device.temperature_c or 0)
            highest_mw = max(highest_mw, device.power_mw or 0)
            if bytes(product) != reference:
                return [Check("burn", CheckOutcome.FAIL, f"product {rounds} differs from the first at {hottest_c} °C")]
    seconds = time.monotonic() - started
    values = {"seconds": seconds, "rounds": float(rounds), "max_temperature_c": float(hottest_c)}
    return [Check("burn", values=values | {"max_power_w": highest_mw / 1000})]


def slice_memory(_options: CheckOptions) -> list[Check]:
    """Allocate until the driver refuses: a slice must get its memory and no more."""
    limit_mib = int(os.environ["GPUPOOL_GPU_MEMORY_MIB"])
    context = CudaContext(Cuda())
    _, total = context.memory_bytes()
    values = {"limit_mib": float(limit_mib), "total_mib": total / _MIB}
    allocated_mib = 0
    with ExitStack() as stack:
        for size_mib in _SLICE_SIZES_MIB:
            try:
                while allocated_mib <= limit_mib:
                    stack.enter_context(context.memory(size_mib * _MIB))
                    allocated_mib += size_mib
            except CudaError as error:
                if error.code != OUT_OF_MEMORY:
                    raise
    values["allocated_mib"] = float(allocated_mib)
    if allocated_mib > limit_mib or total > limit_mib * _MIB:
        return [Check("slice-memory", CheckOutcome.FAIL, "the slice gets more memory than its limit", values)]
    if allocated_mib < limit_mib // 2:
        return [Check("slice-memory", CheckOutcome.SUSPECT, "the slice gets less than half of its memory", values)]
    return [Check("slice-memory", values=values)]


def peers() -> list[tuple[str, str, bool]]:
    """Return for each ordered pair of visible GPUs, by the digits of their UUIDs, whether one can access the other."""
    cuda = Cuda()
    names = [cuda.uuid_hex(ordinal) for ordinal in range(cuda.count)]
    return [(names[i], names[j], cuda.can_access(i, j)) for i, j in permutations(range(len(names)), 2)]


CHECKS: dict[str, Callable[[CheckOptions], list[Check]]] = {
    "compute": compute,
    "memory": memory,
    "copies": copies,
    "peer-copies": peer_copies,
    "cublas": cublas,
    "burn": burn,
    "slice-memory": slice_memory,
}


def main(arguments: list[str]) -> int:
    """Run one check and print its result."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    name, options = arguments[0], CheckOptions(**json.loads(arguments[1]))
    if name == "peers":
        sys.stdout.write(json.dumps(peers()))
        return 0
    try:
        found = CHECKS[name](options)
    except (CudaError, NvmlError, OSError) as error:
        found = [Check(name, CheckOutcome.FAIL, str(error))]
    sys.stdout.write(json.dumps([check.to_dict() for check in found]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
