"""The CUDA driver through ctypes: one context on one GPU, its memory, and the kernels of the checks.

``libcuda.so.1`` is all that is needed. Only child processes use it: a broken GPU can hang or end a process.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint32, c_uint64, c_void_p

from gpupool.verify.kernels import NAMES, PTX

OUT_OF_MEMORY = 2  # CUresult
_THREADS = 256  # of a block
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76  # CUdevice_attribute
_UUID_BYTES = 16

Value = c_uint64 | c_uint32 | c_float


class CudaError(Exception):
    """A call of the driver failed; the text has its name and the driver's name of the error."""

    def __init__(self, function: str, code: int, name: str) -> None:
        super().__init__(f"{function} failed: {name or code}")
        self.code = code


class Cuda:
    """The loaded driver. Raises OSError if there is none, ``CudaError`` if it does not start."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self._library.cuGetErrorName.argtypes = [c_int, POINTER(c_char_p)]
        self.call("cuInit", c_uint(0))

    def call(self, function: str, *arguments: object) -> None:
        """Call a function of the driver. Raises ``CudaError`` unless it succeeds."""
        code = int(getattr(self._library, function)(*arguments))
        if code:
            name = c_char_p()
            self._library.cuGetErrorName(code, byref(name))
            raise CudaError(function, code, (name.value or b"").decode(errors="replace"))

    @property
    def version(self) -> str:
        """Return the newest CUDA version that the driver supports, like ``13.0``."""
        number = c_int()
        self.call("cuDriverGetVersion", byref(number))
        return f"{number.value // 1000}.{number.value % 1000 // 10}"

    @property
    def count(self) -> int:
        """Return the number of GPUs that this process sees."""
        number = c_int()
        self.call("cuDeviceGetCount", byref(number))
        return number.value

    def can_access(self, one: int, other: int) -> bool:
        """Return whether one GPU can access the memory of another, by ordinal."""
        can = c_int()
        self.call("cuDeviceCanAccessPeer", byref(can), c_int(one), c_int(other))
        return can.value != 0

    def uuid_hex(self, ordinal: int) -> str:
        """Return the 32 hexadecimal digits of a GPU's UUID."""
        raw = (ctypes.c_ubyte * _UUID_BYTES)()
        self.call("cuDeviceGetUuid_v2", byref(raw), c_int(ordinal))
        return bytes(raw).hex()


class CudaContext:
    """The primary context of one of the GPUs that this process sees; it becomes current."""

    def __init__(self, cuda: Cuda, ordinal: int = 0) -> None:
        self.cuda = cuda
        self._device = c_int()
        self.handle, self._module = c_void_p(), c_void_p()
        cuda.call("cuDeviceGet", byref(self._device), c_int(ordinal))
        cuda.call("cuDevicePrimaryCtxRetain", byref(self.handle), self._device)
        self.use()
        cuda.call("cuModuleLoadData", byref(self._module), c_char_p(PTX.encode()))
        self._kernels = {name: self._kernel(name) for name in NAMES}

    def _kernel(self, name: str) -> c_void_p:
        kernel = c_void_p()
        self.cuda.call("cuModuleGetFunction", byref(kernel), self._module, c_char_p(name.encode()))
        return kernel

    def use(self) -> None:
        """Make the context current."""
        self.cuda.call("cuCtxSetCurrent", self.handle)

    @property
    def capability(self) -> float:
        """Return the compute capability, like 9.0."""
        parts = []
        for attribute in (_CAPABILITY_MAJOR, _CAPABILITY_MINOR):
            value = c_int()
            self.cuda.call("cuDeviceGetAttribute", byref(value), c_int(attribute), self._device)
            parts.append(value.value)
        return parts[0] + parts[1] / 10

    def memory_bytes(self) -> tuple[int, int]:
        """Return free and total memory."""
        free, total = c_size_t(), c_size_t()
        self.cuda.call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value, total.value

    @contextmanager
    def memory(self, size: int) -> Iterator[c_uint64]:
        """Allocate device memory, and free it at the end."""
        address = c_uint64()
        self.cuda.call("cuMemAlloc_v2", byref(address), c_size_t(size))
        try:
            yield address
        finally:
            self.cuda.call("cuMemFree_v2", address)

    @contextmanager
    def pinned(self, size: int) -> Iterator[c_void_p]:
        """Allocate pinned memory of the host, and free it at the end."""
        address = c_void_p()
        self.cuda.call("cuMemAllocHost_v2", byref(address), c_size_t(size))
        try:
            yield address
        finally:
            self.cuda.call("cuMemFreeHost", address)

    def upload(self, to: c_uint64, data: ctypes.Array[c_float] | ctypes.Array[c_uint]) -> None:
        """Copy an array to device memory."""
        self.cuda.call("cuMemcpyHtoD_v2", to, byref(data), c_size_t(ctypes.sizeof(data)))

    def download(self, data: ctypes.Array[c_float] | ctypes.Array[c_uint], source: c_uint64) -> None:
        """Copy device memory to an array; waits for all kernels before."""
        self.cuda.call("cuMemcpyDtoH_v2", byref(data), source, c_size_t(ctypes.sizeof(data)))

    def copy(self, to: c_uint64, host: c_void_p, size: int, *, back: bool) -> None:
        """Start a copy from pinned memory to the GPU, or back."""
        if back:
            self.cuda.call("cuMemcpyDtoHAsync_v2", host, to, c_size_t(size), None)
        else:
            self.cuda.call("cuMemcpyHtoDAsync_v2", to, host, c_size_t(size), None)

    def copy_to(self, other: CudaContext, to: c_uint64, source: c_uint64, size: int) -> None:
        """Start a copy from this GPU to another."""
        self.cuda.call("cuMemcpyPeerAsync", to, other.handle, source, self.handle, c_size_t(size), None)

    def launch(self, name: str, threads: int, values: Sequence[Value]) -> None:
        """Start a kernel with at least this many threads."""
        pointers = (c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        blocks = -(-threads // _THREADS)
        shape = [c_uint(number) for number in (blocks, 1, 1, _THREADS, 1, 1, 0)]
        self.cuda.call("cuLaunchKernel", self._kernels[name], *shape, None, pointers, None)

    def synchronize(self) -> None:
        """Wait for everything that was started."""
        self.cuda.call("cuCtxSynchronize")

    @contextmanager
    def timed(self) -> Iterator[list[float]]:
        """Measure the GPU time of the calls inside; the yielded list then has the seconds."""
        seconds: list[float] = []
        events = [c_void_p(), c_void_p()]
        for event in events:
            self.cuda.call("cuEventCreate", byref(event), c_uint(0))
        self.cuda.call("cuEventRecord", events[0], None)
        yield seconds
        self.cuda.call("cuEventRecord", events[1], None)
        self.cuda.call("cuEventSynchronize", events[1])
        milliseconds = c_float()
        self.cuda.call("cuEventElapsedTime", byref(milliseconds), *events)
        seconds.append(max(milliseconds.value, 1e-6) / 1000)
        for event in events:
            self.cuda.call("cuEventDestroy_v2", event)
