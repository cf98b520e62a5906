"""Functions of the programs that use the fake driver through cuda.bindings."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from cuda.bindings import driver as cuda

MIB = 1 << 20
GLOBAL, RELAXED = (
    cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL,
    cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED,
)


def ok(answer: tuple[Any, ...]) -> Any:
    """Return the values of a call, which must succeed."""
    result, *rest = answer
    if result != cuda.CUresult.CUDA_SUCCESS:
        raise AssertionError(result)
    return rest[0] if len(rest) == 1 else rest


def name(answer: tuple[Any, ...]) -> str:
    """Return the name of the result of a call, without its prefix."""
    return str(answer[0].name).removeprefix("CUDA_").removeprefix("ERROR_")


def begin(device: int = 0) -> Any:
    """Initialise the driver and make the device's primary context current."""
    ok(cuda.cuInit(0))
    context = ok(cuda.cuDevicePrimaryCtxRetain(ok(cuda.cuDeviceGet(device))))
    ok(cuda.cuCtxSetCurrent(context))
    return context


def kernel(which: str) -> Any:
    """Return a kernel of some module."""
    return ok(cuda.cuModuleGetFunction(ok(cuda.cuModuleLoadData(b"any image\0")), which.encode()))


def launch(function: Any, stream: Any = 0, parameters: Any = 0) -> tuple[Any, ...]:
    """Launch one block of one thread."""
    answer: tuple[Any, ...] = cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, 0)
    return answer


def timed(work: Callable[[], object], stream: Any) -> tuple[float, float]:
    """Return the milliseconds around the work, measured by events and by the clock."""
    first, last = (ok(cuda.cuEventCreate(0)) for _ in range(2))
    start = time.monotonic_ns()
    ok(cuda.cuEventRecord(first, stream))
    work()
    ok(cuda.cuEventRecord(last, stream))
    ok(cuda.cuEventSynchronize(last))
    return ok(cuda.cuEventElapsedTime(first, last)), (time.monotonic_ns() - start) / 1e6


def free_bytes() -> int:
    """Return the free memory of cuMemGetInfo."""
    return int(ok(cuda.cuMemGetInfo())[0])


def tell(found: object) -> None:
    """Print the result for the test that started this program."""
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
