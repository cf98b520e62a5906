"""Processes of a lease and their slots: one each, over fork and exec, and none where the pages are wrong."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lease_folder import SLOTS, UNIT, LeasedGpu, LeaseFolder, owner_of
from native_harness import clean_environment
from standin import run_python

SYSTEM_NOT_READY = 802
INIT = "import ctypes, os, sys; cuda = ctypes.CDLL('libcuda.so.1'); print(cuda.cuInit(0), flush=True); "
WAIT = "sys.stdin.readline(); "
HELLO = 1


@pytest.fixture
def lease(tmp_path: Path, driver: Path) -> Iterator[LeaseFolder]:
    gpus = [LeasedGpu(bytes(15) + bytes([number]), 1 << 30) for number in (1, 2)]
    with LeaseFolder(tmp_path / "lease", gpus, driver) as made:
        yield made


class Program:
    """A Python program under the library that talks in lines."""

    def __init__(self, source: str, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-c", source],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()


@pytest.fixture
def start(lease: LeaseFolder, share: Path) -> Iterator[Callable[[str], Program]]:
    programs: list[Program] = []

    def begin(source: str) -> Program:
        programs.append(Program(source, clean_environment() | lease.environment(share)))
        return programs[-1]

    yield begin
    for program in programs:
        program.process.kill()
        program.process.communicate()


def test_program_claims_one_slot_on_each_gpu_of_its_lease(lease: LeaseFolder, start: Callable[[str], Program]) -> None:
    program = start(INIT + WAIT)
    assert program.line() == "0"
    for gpu in (0, 1):
        assert list(lease.owners(gpu)) == [owner_of(program.pid)]
        slot = lease.slot(lease.owners(gpu)[owner_of(program.pid)], gpu)
        assert slot["pid_ns"] == Path("/proc/self/ns/pid").stat().st_ino


def test_program_without_cuinit_claims_no_slot(lease: LeaseFolder, share: Path) -> None:
    environment = clean_environment() | lease.environment(share)
    subprocess.run(["/bin/sh", "-c", "true; /bin/true"], env=environment, check=True)
    run_python("print(look_up('cuMemcpy', 7000)[0])", environment)
    assert not lease.owners()


def test_simultaneous_programs_have_separate_slots(lease: LeaseFolder, start: Callable[[str], Program]) -> None:
    programs = [start(INIT + WAIT) for _ in range(5)]
    assert [program.line() for program in programs] == ["0"] * 5
    assert set(lease.owners()) == {owner_of(program.pid) for program in programs}
    assert len(set(lease.owners().values())) == 5


def test_forked_child_attaches_at_its_first_driver_call(lease: LeaseFolder, start: Callable[[str], Program]) -> None:
    forking = "child = os.fork()\nif child == 0: print(os.getpid(), cuda.cuInit(0), flush=True)\n"
    program = start(INIT + WAIT + forking + WAIT)
    assert program.line() == "0"
    parent = dict(lease.owners())
    program.go_on()
    child, result = program.line().split()
    assert result == "0"
    assert set(lease.owners()) == {*parent, owner_of(int(child))}


def test_children_without_driver_use_claim_no_slot(lease: LeaseFolder, start: Callable[[str], Program]) -> None:
    children = """
import subprocess
for vfork in (True, False):
    subprocess._USE_VFORK = vfork
    subprocess.run(["/bin/true"], check=True)
if os.fork() == 0:
    os._exit(0)
os.wait()
print("done", flush=True)
"""
    program = start(INIT + children + WAIT)
    assert (program.line(), program.line()) == ("0", "done")
    assert list(lease.owners()) == [owner_of(program.pid)]


def test_exec_keeps_the_slot_and_releases_its_memory(lease: LeaseFolder, start: Callable[[str], Program]) -> None:
    again = INIT + WAIT
    program = start(INIT + WAIT + f"os.execv(sys.executable, [sys.executable, '-S', '-c', {again!r}])")
    assert program.line() == "0"
    index = lease.owners()[owner_of(program.pid)]
    units = 7
    word = units << 30 | index << 23 | (lease.slot(index)["ledger"] + 1 & 0x7FFFFF)
    for name in ("intent", "ledger"):
        lease.set_slot(index, name, word)
    lease.set_slot(index, "busy", 1)
    struct.pack_into("<Q", lease.status, 4096, word)
    assert lease.used_bytes() == units * UNIT
    program.go_on()
    assert program.line() == "0"
    assert lease.owners() == {owner_of(program.pid): index}
    assert lease.used_bytes() == 0
    assert lease.slot(index)["busy"] == 0


def test_slot_of_same_pid_in_other_namespace_is_kept(lease: LeaseFolder, start: Callable[[str], Program]) -> None:
    program = start("import sys; " + WAIT + INIT + WAIT)
    lease.set_slot(3, "owner", owner_of(program.pid))
    lease.set_slot(3, "pid_ns", 4242)
    program.go_on()
    assert program.line() == "0"
    owners = [index for index in range(SLOTS) if lease.slot(index)["owner"] == owner_of(program.pid)]
    assert len(owners) == 2
    assert lease.slot(3)["pid_ns"] == 4242


def test_bell_rings_once_per_gpu_and_names_process(lease: LeaseFolder, start: Callable[[str], Program]) -> None:
    with lease.bell() as bell:
        program = start(INIT + WAIT)
        for gpu in (0, 1):
            message, extra, _, _ = bell.recvmsg(64, socket.CMSG_SPACE(12))
            assert struct.unpack("<IIQ", message) == (HELLO, gpu, owner_of(program.pid))
            assert struct.unpack("<3i", extra[0][2])[0] == program.pid


def test_bell_works_in_folder_with_long_name(tmp_path: Path, driver: Path, share: Path) -> None:
    deep = tmp_path / ("a" * 120)
    with LeaseFolder(deep, [LeasedGpu(bytes(16), 1 << 30)], driver) as lease, lease.bell() as bell:
        environment = clean_environment() | lease.environment(share)
        assert run_python("print(cuda.cuInit(0))", environment).strip() == "0"
        assert len(bell.recv(64)) == 16


def test_number_of_processes_is_limited_by_slots(lease: LeaseFolder, share: Path) -> None:
    for index in range(SLOTS):
        lease.set_slot(index, "owner", (index + 1) << 22 | 1)
    environment = clean_environment() | lease.environment(share)
    assert run_python("print(cuda.cuInit(0))", environment).strip() == str(SYSTEM_NOT_READY)


def test_full_lease_waits_for_slots_of_dead_processes(lease: LeaseFolder, start: Callable[[str], Program]) -> None:
    for index in range(SLOTS):
        lease.set_slot(index, "owner", (index + 1) << 22 | 1)
    program = start("print(flush=True); " + INIT + WAIT)
    assert program.line() == ""
    lease.set_slot(SLOTS - 1, "owner", 0)
    assert program.line() == "0"
    assert lease.owners()[owner_of(program.pid)] == SLOTS - 1


DAMAGES = ["no control", "no status", "control is a link", "magic", "abi", "control too short", "status too short"]
DAMAGES += ["status is a pipe", "driver's path is relative"]


def damaged(name: str, path: Path) -> None:
    """Make the lease's files unusable in one way."""
    control, status = path / "control", path / "status"
    match name:
        case "no control":
            control.unlink()
        case "no status":
            status.unlink()
        case "control is a link":
            control.rename(path / "elsewhere")
            control.symlink_to(path / "elsewhere")
        case "magic":
            control.write_bytes(b"x" + control.read_bytes()[1:])
        case "abi":
            status.write_bytes(status.read_bytes()[:8] + b"\x63" + status.read_bytes()[9:])
        case "control too short":
            os.truncate(control, control.stat().st_size - 1)
        case "status too short":
            os.truncate(status, 4096)
        case "status is a pipe":
            status.unlink()
            os.mkfifo(status)
        case "driver's path is relative":
            text = bytearray(control.read_bytes())
            text[144:145] = b"x"
            control.write_bytes(text)


@pytest.mark.parametrize("damage", DAMAGES)
def test_invalid_pages_refuse_cuda_with_a_message(damage: str, lease: LeaseFolder, share: Path) -> None:
    damaged(damage, lease.path)
    environment = clean_environment() | lease.environment(share)
    command = [sys.executable, "-S", "-c", INIT + "print(cuda.cuInit(0))"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.split() == [str(SYSTEM_NOT_READY)] * 2
    assert ran.stderr.count("CUDA is refused") == 1
    assert str(lease.path) in ran.stderr


def test_first_call_on_a_lazy_lease_waits_for_its_pages(lease: LeaseFolder, start: Callable[[str], Program]) -> None:
    control, waiting = lease.path / "control", lease.path / "waiting"
    control.rename(lease.path / "hidden")
    waiting.touch()
    program = start("import sys; print('ready', flush=True); " + INIT + WAIT)
    assert program.line() == "ready"
    for _ in range(200):
        if waiting.stat().st_size:
            break
        time.sleep(0.05)
    assert waiting.read_bytes() == b"1", "it asks once"
    time.sleep(0.3)
    assert not lease.owners(0), "it waits"
    (lease.path / "hidden").rename(control)
    assert program.line() == "0"
    assert list(lease.owners(0)) == [owner_of(program.pid)]


def test_program_of_a_lazy_lease_that_is_gone_does_not_wait_for_ever(
    lease: LeaseFolder, start: Callable[[str], Program]
) -> None:
    (lease.path / "control").rename(lease.path / "hidden")
    (lease.path / "waiting").touch()
    program = start(INIT + WAIT)
    time.sleep(0.3)
    (lease.path / "waiting").unlink()
    assert program.line() == str(SYSTEM_NOT_READY)
