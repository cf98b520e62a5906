"""Programs for tests of cuCheckpointProcess*: one that uses a GPU step by step, and one that checkpoints others."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
from cuda.bindings import driver as cuda
from fake_cuda_prelude import MIB, begin, free_bytes, kernel, launch, name, ok, tell

CALLS: dict[str, Any] = {
    "lock": cuda.cuCheckpointProcessLock,
    "checkpoint": cuda.cuCheckpointProcessCheckpoint,
    "restore": cuda.cuCheckpointProcessRestore,
    "unlock": cuda.cuCheckpointProcessUnlock,
}


def stepping(mib: str) -> None:
    """Fill memory; then for each line of input read it back and print whether it is unchanged."""
    begin()
    size = int(mib) * MIB
    address = ok(cuda.cuMemAlloc(size))
    wanted = np.arange(size // 4, dtype=np.uint32)
    ok(cuda.cuMemcpyHtoD(address, wanted, size))
    tell("ready")
    for _ in sys.stdin:
        found = np.zeros_like(wanted)
        ok(cuda.cuMemcpyDtoH(found, address, size))
        tell(bool((found == wanted).all()))


def holding(free_mib: str) -> None:
    """Leave only so much of the GPU's memory to others."""
    begin()
    ok(cuda.cuMemAlloc(free_bytes() - int(free_mib) * MIB))
    tell("ready")
    sys.stdin.read()


def controlling(pid: str) -> None:
    """For each line of input make that call and print its result, the state then, and the GPU's free memory in MiB."""
    begin()
    other = os.getpid() if pid == "self" else int(pid)
    for line in sys.stdin:
        word, _, timeout = line.strip().partition(" ")
        args = None
        if timeout:
            args = cuda.CUcheckpointLockArgs()
            args.timeoutMs = int(timeout)
        result = name(CALLS[word](other, args))
        state = cuda.cuCheckpointProcessGetState(other)
        tell([result, int(state[1]) if name(state) == "SUCCESS" else None, free_bytes() // MIB])


def waiting() -> None:
    """Stay inside a call for as long as a kernel lasts."""
    begin()
    ok(launch(kernel("spin_3600ms")))
    tell("ready")
    ok(cuda.cuCtxSynchronize())
    tell("done")


if __name__ == "__main__":
    {"stepping": stepping, "holding": holding, "controlling": controlling, "waiting": waiting}[sys.argv[1]](
        *sys.argv[2:]
    )
