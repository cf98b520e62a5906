"""A helper process of the agent that suspends other processes: ``cuCheckpointProcess*`` of the CUDA driver.

It is started with the path of the driver's library and initialises it once, because that takes seconds on a large
machine. It creates no context, so it uses no memory of a GPU. Each line of input is a request ``{"call", "pid",
"timeout_ms"}``, answered by a line ``{"result", "state"}``: the call's CUresult, and the state of the process
afterwards (None: the driver does not know it). It runs as the agent, ends with it, and loads nothing else of gpupool.

States and structures are those of ``cuda.h`` (CUprocessState, CUcheckpointLockArgs); a null pointer stands for default
arguments. See "Checkpointing" in NVIDIA's CUDA Driver API.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from typing import Any

_PR_SET_PDEATHSIG = 1
_NOT_SUPPORTED = 801
CALLS = {
    "lock": "cuCheckpointProcessLock",
    "checkpoint": "cuCheckpointProcessCheckpoint",
    "restore": "cuCheckpointProcessRestore",
    "unlock": "cuCheckpointProcessUnlock",
}


class _LockArgs(ctypes.Structure):
    """CUcheckpointLockArgs."""

    _fields_ = (("timeout_ms", ctypes.c_uint), ("reserved0", ctypes.c_uint), ("reserved1", ctypes.c_uint64 * 7))


def answer(driver: ctypes.CDLL, request: dict[str, Any]) -> dict[str, int | None]:
    """Make the call of a request (``state`` only asks) and return the answer."""
    pid, result = ctypes.c_int(int(request["pid"])), 0
    if request["call"] != "state":
        locks = request["call"] == "lock"
        arguments = ctypes.byref(_LockArgs(timeout_ms=int(request["timeout_ms"]))) if locks else None
        result = getattr(driver, CALLS[request["call"]])(pid, arguments)
    state = ctypes.c_int()
    known = driver.cuCheckpointProcessGetState(pid, ctypes.byref(state)) == 0
    return {"result": result, "state": state.value if known else None}


def main() -> None:
    """Answer requests until the input ends."""
    agent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != agent:  # it died before the call
        return
    driver = ctypes.CDLL(sys.argv[1])
    usable = hasattr(driver, "cuCheckpointProcessLock")  # drivers from 570
    _reply({"result": driver.cuInit(0) if usable else _NOT_SUPPORTED, "state": None})
    for line in sys.stdin:
        _reply(answer(driver, json.loads(line)))


def _reply(answer: dict[str, int | None]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
