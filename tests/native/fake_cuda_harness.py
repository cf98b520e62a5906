"""Starts programs on the fake driver and reads the state that they share."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from native_harness import clean_environment

CLIENTS = Path(__file__).parent / "fake_cuda_clients.py"
_PROCESSES_AT, _PROCESS_BYTES, _PROCESSES = 4096, 256, 512
_KINDS = 6


@dataclass(frozen=True, slots=True)
class Pool:
    """Simulated GPUs and the driver that shows them."""

    driver: Path  # the folder of libcuda.so.1
    gpus: Path

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of a program that finds this driver."""
        return clean_environment() | {"LD_LIBRARY_PATH": str(self.driver), "GPUPOOL_FAKE_GPUS": str(self.gpus)} | more

    def start(self, function: str, *arguments: object, **more: str) -> subprocess.Popen[str]:
        """Start one of the clients as a process that answers commands."""
        command = [sys.executable, str(CLIENTS), function, *map(str, arguments)]
        return subprocess.Popen(
            command, env=self.environment(**more), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, function: str, *arguments: object, **more: str) -> Any:
        """Return the result of one of the clients."""
        command = [sys.executable, str(CLIENTS), function, *map(str, arguments)]
        ran = subprocess.run(
            command, env=self.environment(**more), capture_output=True, text=True, timeout=60, check=False
        )
        assert ran.returncode == 0, ran.stderr[-3000:]
        return json.loads(ran.stdout.splitlines()[-1])


@dataclass(frozen=True, slots=True)
class Counters:
    """Of one process on one GPU, as fake/gpus.h lays them out."""

    live: bool
    pid: int
    served_ns: int
    kernels: int
    memory_bytes: int


def counters(pool: Pool, gpu: str = "0") -> dict[int, Counters]:
    """Return all processes that have used the GPU, by pid."""
    page = (pool.gpus / f"gpu-{gpu}.state").read_bytes()
    found = {}
    for slot in range(_PROCESSES):
        at = _PROCESSES_AT + slot * _PROCESS_BYTES
        state, pid, _, served, kernels = struct.unpack_from("<IIQQQ", page, at)
        if state:
            memory = sum(struct.unpack_from(f"<{_KINDS}Q", page, at + 48))
            found[pid] = Counters(state == 1, pid, served, kernels, memory)
    return found
