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
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from itertools import permutations
from pathlib import Path

if __name__ == "__main__":  # the pool runs this file with a Python that need not know the package
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gpupool.verify.driver import OUT_OF_MEMORY, Cuda, CudaContext, CudaError, Value
from gpupool.verify.nvml import Nvml, NvmlError
from gpupool.verify.results import Check, CheckOptions, CheckOutcome, bus_bandwidth

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
_NCCL_LIBRARY = "libnccl.so.2"
_REDUCED_BYTES, _EMULATED_REDUCED_BYTES = 256 * _MIB, _MIB
_REDUCE_ROUNDS = 20
_UINT32, _SUM = c_int(3), c_int(0)  # ncclDataType_t, ncclRedOp_t
_NON_BLOCKING = c_uint(1)  # CUstream_flags
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
        pattern = (at, c_uint32(seed), c_uint32(step), words)
        for _ in range(_FILLS_BEFORE):  # they hide the time between the calls of the timed ones
            context.launch("fill_pattern_u32", words.value, pattern)
        with context.timed() as seconds:
            for _ in range(_FILLS):
                context.launch("fill_pattern_u32", words.value, pattern)
        fill_s = min(fill_s, seconds[0] / _FILLS)
        found = _compare(context, pattern, result)
        if found[0]:
            return _memory_note(found, seed, step), fill_s
    return "", fill_s


def _compare(
    context: CudaContext, pattern: tuple[c_uint64, c_uint32, c_uint32, c_uint32], result: c_uint64
) -> list[int]:
    """Compare memory with a pattern (address, seed, step, words).

    Return the number of wrong words, the index of the first, and the bits that differ in any.
    """
    found = (c_uint * 3)(0, _ALL_BITS, 0)
    context.upload(result, found)
    context.launch("compare_pattern_u32", pattern[-1].value, (*pattern, result))
    context.download(found, result)
    return list(found)


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
    seed, step, words = c_uint32(_PATTERNS[-1][0]), c_uint32(_PATTERNS[-1][1]), c_uint32(size // _WORD_BYTES)
    source.use()
    with source.memory(size) as ours:
        source.launch("fill_pattern_u32", words.value, (ours, seed, step, words))
        source.synchronize()
        target.use()
        with target.memory(size) as theirs, target.memory(3 * _WORD_BYTES) as result:
            source.use()
            fastest_s = math.inf
            for _ in range(_COPIES):
                with source.timed() as seconds:
                    source.copy_to(target, theirs, ours, size)
                fastest_s = min(fastest_s, seconds[0])
            target.use()
            wrong = _compare(target, (theirs, seed, step, words), result)[0]
    source.use()
    return wrong, fastest_s


class CublasError(OSError):
    """Raised when a function of cuBLAS fails."""


class Cublas:
    """A handle of cuBLAS for the current context. Raises ``OSError`` if the library is missing."""

    def __init__(self) -> None:
        self._library = _load(*_CUBLAS_LIBRARIES)
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


def _load(*names: str) -> ctypes.CDLL:
    """Load the first of these libraries that the loader or a package of this Python has."""
    in_packages = (path for name in names for folder in sys.path for path in Path(folder).glob(f"nvidia/*/lib/{name}"))
    for name in (*names, *map(str, in_packages)):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise FileNotFoundError(f"neither the loader nor a package of Python has {names[0].partition('.')[0]}")


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
        return [Check("cublas", CheckOutcome.SKIPPED, "an emulated GPU does not compute the kernels of cuBLAS")]
    if found != struct.pack("<f", rows) * count:
        return [Check("cublas", CheckOutcome.FAIL, f"wrong product of matrices of {rows} rows", values)]
    return [Check("cublas", note=f"version {library.version}", values=values)]


class NcclError(OSError):
    """Raised when a function of NCCL fails."""


class Nccl:
    """NCCL with one rank for each of the contexts. Raises ``OSError`` if the library is missing."""

    def __init__(self) -> None:
        os.environ["NCCL_SOCKET_IFNAME"] = "lo"  # all ranks are in this process
        self._library = _load(_NCCL_LIBRARY)
        for name, types in (("ncclGetErrorString", [c_int]), ("ncclGetLastError", [c_void_p])):
            getattr(self._library, name).argtypes = types
            getattr(self._library, name).restype = c_char_p
        self._ranks: list[tuple[c_void_p, c_void_p]] = []

    def _call(self, function: str, *arguments: object) -> None:
        status = int(getattr(self._library, function)(*arguments))
        if status:
            texts = (self._library.ncclGetErrorString(status), self._library.ncclGetLastError(None))
            reason = ": ".join(text.decode(errors="replace").strip() for text in texts if text)
            raise NcclError(f"{function} failed: {reason}")

    @property
    def version(self) -> str:
        """Return the version, like ``2.32.3``."""
        number = c_int()
        self._call("ncclGetVersion", byref(number))
        return f"{number.value // 10000}.{number.value // 100 % 100}.{number.value % 100}"

    def start(self, contexts: Sequence[CudaContext]) -> None:
        """Connect the GPUs of these contexts, which must be the first GPUs in their order."""
        count = len(contexts)
        ranks = (c_void_p * count)()
        self._call("ncclCommInitAll", ranks, c_int(count), (c_int * count)(*range(count)))
        for context, rank in zip(contexts, ranks, strict=True):
            context.use()
            stream = c_void_p()
            context.cuda.call("cuStreamCreate", byref(stream), _NON_BLOCKING)
            self._ranks.append((c_void_p(rank), stream))

    def add_up(self, blocks: Sequence[tuple[c_uint64, c_uint64]], words: int) -> None:
        """Start an all-reduce: the second block of each rank gets the sum of the first blocks of all ranks."""
        self._call("ncclGroupStart")
        for (rank, stream), (own, total) in zip(self._ranks, blocks, strict=True):
            self._call("ncclAllReduce", own, total, c_size_t(words), _UINT32, _SUM, rank, stream)
        self._call("ncclGroupEnd")

    def close(self) -> None:
        """Release the ranks."""
        for rank, _ in self._ranks:
            self._call("ncclCommDestroy", rank)


class _RankMemory:
    """The memory of one rank: its pattern, and the sums. ``stack`` releases it."""

    def __init__(self, context: CudaContext, pattern: tuple[int, int], words: int, stack: ExitStack) -> None:
        context.use()
        self.context, self._words = context, c_uint32(words)
        sizes = (words * _WORD_BYTES, words * _WORD_BYTES, 3 * _WORD_BYTES)
        self.own, self.sums, self._result = (stack.enter_context(context.memory(size)) for size in sizes)
        context.launch("fill_pattern_u32", words, (self.own, *map(c_uint32, pattern), self._words))
        context.cuda.call("cuMemsetD32_v2", self.sums, c_uint(0), c_size_t(words))
        context.synchronize()

    def sums_are(self, seed: int, step: int) -> bool:
        """Return whether the sums are this pattern; both numbers are taken modulo 2^32."""
        self.context.use()
        return not _compare(self.context, (self.sums, c_uint32(seed), c_uint32(step), self._words), self._result)[0]


def nccl(options: CheckOptions) -> list[Check]:
    """Add up a pattern of each visible GPU by an all-reduce, compare the sums, and measure."""
    cuda = Cuda()
    try:
        library = Nccl()
    except FileNotFoundError as error:
        return [Check("nccl", CheckOutcome.SKIPPED, str(error))]
    count = cuda.count
    contexts = [CudaContext(cuda, ordinal) for ordinal in range(count)]
    try:
        library.start(contexts)
    except NcclError as error:
        return [Check("nccl", CheckOutcome.SUSPECT, f"NCCL {library.version} does not start: {error}")]
    words = (_EMULATED_REDUCED_BYTES if options.emulated else _REDUCED_BYTES) // _WORD_BYTES
    patterns = [(_PATTERNS[-1][0] + rank, _PATTERNS[-1][1] + rank) for rank in range(count)]  # all are different
    with ExitStack() as stack:
        ranks = [_RankMemory(*pair, words, stack) for pair in zip(contexts, patterns, strict=True)]
        round_s = _measure_reduce(library, ranks, words)
        seed, step = map(sum, zip(*patterns, strict=True))
        wrong = [cuda.uuid_hex(ordinal) for ordinal, rank in enumerate(ranks) if not rank.sums_are(seed, step)]
        if wrong and options.emulated and all(rank.sums_are(0, 0) for rank in ranks):
            note = f"an emulated GPU does not compute the kernels of NCCL; version {library.version} started"
            return [Check("nccl", CheckOutcome.SKIPPED, note, {"ranks": float(count)})]
    library.close()
    size = words * _WORD_BYTES
    values = {"ranks": float(count), "size_mib": size / _MIB, "round_ms": 1000 * round_s}
    if wrong:
        return [Check("nccl", CheckOutcome.FAIL, f"wrong sums on {', '.join(wrong)}", values)]
    if count == 1:
        return [Check("nccl", note=f"version {library.version}; one GPU sends nothing", values=values)]
    values["bus_gib_s"] = bus_bandwidth(size / _GIB, round_s, count)
    return [Check("nccl", note=f"version {library.version}", values=values)]


def _measure_reduce(library: Nccl, ranks: Sequence[_RankMemory], words: int) -> float:
    """Return the seconds of one all-reduce; the first, which is slower, is not counted."""
    started = 0.0
    for rounds in (1, _REDUCE_ROUNDS):
        started = time.monotonic()
        for _ in range(rounds):
            library.add_up([(rank.own, rank.sums) for rank in ranks], words)
        for rank in ranks:
            rank.context.use()
            rank.context.synchronize()
    return (time.monotonic() - started) / _REDUCE_ROUNDS


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
    "nccl": nccl,
    "burn": burn,
    "slice-memory": slice_memory,
}


def main(arguments: list[str]) -> int:
    """Run one check and print its result."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    output = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # NCCL prints messages if it is configured so
    name, options = arguments[0], CheckOptions(**json.loads(arguments[1]))
    try:
        found: Sequence[object] = peers() if name == "peers" else [check.to_dict() for check in CHECKS[name](options)]
    except (CudaError, NvmlError, OSError) as error:
        if name == "peers":
            raise
        found = [Check(name, CheckOutcome.FAIL, str(error)).to_dict()]
    os.write(output, json.dumps(found).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
