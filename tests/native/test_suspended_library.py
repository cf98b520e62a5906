"""The share library in a suspended lease: each call of the driver asks for the GPU and waits until it is back."""

from __future__ import annotations

import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lease_folder import LeaseFolder

pytest.importorskip("cuda.bindings")

# Makes the calls that its input names: through the exports of the library, or as NVIDIA's Python package finds them.
PROGRAM = """
import ctypes, sys
from cuda.bindings import driver as d
cuda = ctypes.CDLL("libcuda.so.1")
def ok(result):
    assert result[0] == 0, result
    return result[1] if len(result) > 1 else None
ok(d.cuInit(0))
device = ok(d.cuDeviceGet(0))
ok(d.cuCtxSetCurrent(ok(d.cuDevicePrimaryCtxRetain(device))))
data, count = ctypes.create_string_buffer(64), ctypes.c_int()
address = ok(d.cuMemAlloc(64))
CALLS = {
    "hook": lambda: ok(d.cuMemAlloc(512)),
    "hook by name": lambda: cuda.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(512)),
    "looked up": lambda: ok(d.cuMemcpyDtoH(bytearray(64), address, 64)),
    "export": lambda: cuda.cuMemcpyDtoH_v2(data, ctypes.c_uint64(int(address)), ctypes.c_size_t(64)),
    "query": lambda: cuda.cuDeviceGetCount(ctypes.byref(count)),
}
print("ready", flush=True)
for line in sys.stdin:
    if line.strip() == "leave":
        break
    CALLS[line.strip()]()
    print("done", flush=True)
"""
CALLS = ["hook", "hook by name", "looked up", "export", "query"]


class Program:
    """The program; it is killed at the end."""

    def __init__(self, environment: dict[str, str]) -> None:
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", PROGRAM]
        self.process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def is_silent(self, seconds: float) -> bool:
        return not select.select([self.process.stdout], [], [], seconds)[0]


@pytest.fixture
def waiting(lease: LeaseFolder) -> Path:
    """Make the lease suspendable; return the file to which its processes write that they wait."""
    lease.set_header("suspendable", 1)
    path = lease.path / "waiting"
    path.touch()
    return path


@pytest.fixture
def start(
    lease: LeaseFolder, leased_environment: Callable[[LeaseFolder], dict[str, str]]
) -> Iterator[Callable[[], Program]]:
    programs: list[Program] = []

    def begin() -> Program:
        programs.append(Program(leased_environment(lease)))
        return programs[-1]

    yield begin
    for program in programs:
        program.process.kill()
        program.process.communicate()


@pytest.mark.parametrize("call", CALLS)
def test_call_asks_for_the_gpu_and_waits(
    lease: LeaseFolder, waiting: Path, start: Callable[[], Program], call: str
) -> None:
    program = start()
    assert program.line() == "ready"
    program.tell(call)
    assert program.line() == "done"
    assert waiting.stat().st_size == 0
    lease.set_header("suspended", 1)
    program.tell(call)
    assert program.is_silent(0.5)
    assert waiting.stat().st_size == 1
    lease.set_header("suspended", 0)
    assert program.line() == "done"


def test_program_that_begins_meanwhile_waits(lease: LeaseFolder, waiting: Path, start: Callable[[], Program]) -> None:
    lease.set_header("suspended", 1)
    program = start()
    deadline = time.monotonic() + 60
    while waiting.stat().st_size == 0:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert program.is_silent(0.3)
    lease.set_header("suspended", 0)
    assert program.line() == "ready"


def test_calls_are_counted(lease: LeaseFolder, waiting: Path, start: Callable[[], Program]) -> None:
    assert waiting.exists()
    program = start()
    assert program.line() == "ready"
    (index,) = lease.owners().values()
    for call in CALLS:
        before = lease.slot(index)["calls"]
        program.tell(call)
        assert program.line() == "done"
        assert lease.slot(index)["calls"] > before, call
    before = lease.slot(index)["calls"]
    time.sleep(0.5)
    assert lease.slot(index)["calls"] == before, "an unused program makes no calls"


def test_program_leaves_while_it_is_suspended(lease: LeaseFolder, waiting: Path, start: Callable[[], Program]) -> None:
    assert waiting.exists()
    program = start()
    assert program.line() == "ready"
    lease.set_header("suspended", 1)
    program.tell("leave")
    assert program.process.wait(20) == 0


def test_other_leases_are_not_affected(lease: LeaseFolder, start: Callable[[], Program]) -> None:
    program = start()
    assert program.line() == "ready"
    lease.set_header("suspended", 1)
    for call in CALLS:
        program.tell(call)
        assert program.line() == "done"
    (index,) = lease.owners().values()
    assert lease.slot(index)["calls"] == 0


def test_lease_that_is_gone_ends_the_wait(lease: LeaseFolder, waiting: Path, start: Callable[[], Program]) -> None:
    program = start()
    assert program.line() == "ready"
    lease.set_header("suspended", 1)
    program.tell("query")
    assert program.is_silent(0.3)
    for path in (lease.path / "control", waiting):
        path.unlink()
    assert program.line() == "done"
