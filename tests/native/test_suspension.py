"""A real agent suspends and resumes programs on the simulated driver, also if processes are killed meanwhile."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from agent_share import MIB, UUID, Node, command_line, events, eventually, node_with, program, said, until_said
from node_harness import RefusedError

from gpupool.domain.errors import GpupoolError
from gpupool.domain.nodes.gpu import GpuShare
from gpupool.domain.work.program.supervision import ProcessSpec, ProcessStatus
from gpupool.node.host import process_tree
from gpupool.node.sharing.slices import suspension

pytest.importorskip("cuda.bindings")

# Stores numbers in GPU memory and reads them back again and again.
STEPS = """
import numpy as np
context()
size = 64 << 20
address = ok(d.cuMemAlloc(size))
wanted, found = np.arange(size // 4, dtype=np.uint32), np.zeros(size // 4, np.uint32)
ok(d.cuMemcpyHtoD(address, wanted, size))
say("pid", os.getpid())
while True:
    ok(d.cuMemcpyDtoH(found, address, size))
    say("step", bool((found == wanted).all()))
    time.sleep(0.02)
"""
TWO = "os.fork()\n" + STEPS
BLOCKED = """
context()
kernel = ok(d.cuModuleGetFunction(ok(d.cuModuleLoadData(b"any image\\0")), b"spin_3600ms"))
while True:
    ok(d.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0))
    say("blocked")
    ok(d.cuCtxSynchronize())
"""


@pytest.fixture(scope="module")
def shared_node(native_out: Path) -> Iterator[Node]:
    with node_with(native_out) as made:
        yield made


@pytest.fixture
def own_node(native_out: Path) -> Iterator[Node]:
    with node_with(native_out) as made:
        yield made


@pytest.fixture
def node(shared_node: Node) -> Iterator[Node]:
    yield shared_node
    for status in shared_node.ask("list"):
        shared_node.ask("stop", key=status["key"], grace_s=0)
        shared_node.ended(status["key"])


def suspendable(text: str, permille: int = 500) -> ProcessSpec:
    """Return the spec of a program that has its GPU from the start."""
    made = program(text, permille=permille)
    return replace(made, suspendable=True, lease=made.epoch, gpu_epoch=made.epoch + 100_000)


def status_of(node: Node, wanted: ProcessSpec) -> ProcessStatus:
    found = node.status(wanted.key)
    assert found is not None
    return found


def suspend(node: Node, wanted: ProcessSpec, epoch: int = 0, grace_s: float = 10.0) -> None:
    node.ask("suspend", key=wanted.key, epoch=epoch or wanted.gpu_epoch, grace_s=grace_s)


def suspended(node: Node, wanted: ProcessSpec) -> bool:
    return status_of(node, wanted).suspended_gpu == UUID and status_of(node, wanted).gpu_epoch == 0


def start_stepping(node: Node) -> ProcessSpec:
    """Start a program that stores numbers in GPU memory and reads them again and again."""
    wanted = suspendable(STEPS)
    node.start(wanted)
    until_said(node, wanted.key, "step")
    return wanted


def start_suspended(node: Node) -> ProcessSpec:
    """Start such a program and suspend it."""
    wanted = start_stepping(node)
    suspend(node, wanted)
    eventually(lambda: suspended(node, wanted), "it is suspended")
    return wanted


def attach(node: Node, wanted: ProcessSpec, epoch: int, shares: tuple[GpuShare, ...] = ()) -> None:
    given = [asdict(share) for share in shares or wanted.gpus]
    node.ask("attach_gpus", key=wanted.key, epoch=epoch, shares=given)


def steps(node: Node, wanted: ProcessSpec) -> int:
    lines = said(node, wanted.key)
    assert "step False" not in lines, "its GPU memory has changed"
    return lines.count("step True")


def goes_on(node: Node, wanted: ProcessSpec) -> None:
    before = steps(node, wanted)
    eventually(lambda: steps(node, wanted) > before + 2, "the program continues")


def stands_still(node: Node, wanted: ProcessSpec) -> None:
    before = steps(node, wanted)
    time.sleep(0.4)
    assert steps(node, wanted) <= before + 1


def free_mib(node: Node) -> int:
    """Return the free memory of the whole card, as a program outside of the pool sees it."""
    code = (
        "from cuda.bindings import driver as d; d.cuInit(0); "
        "d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(d.cuDeviceGet(0)[1])[1]); print(d.cuMemGetInfo()[1] >> 20)"
    )
    out = subprocess.run([sys.executable, "-c", code], env=outside(node), capture_output=True, text=True, check=True)
    return int(out.stdout)


def outside(node: Node) -> dict[str, str]:
    """Return the environment of a program on the simulated driver that the pool does not know."""
    native = os.environ["GPUPOOL_NATIVE"]
    folder = next(path for path in node.root.rglob("gpus.conf")).parent
    return {**os.environ, "LD_LIBRARY_PATH": f"{native}/fake", "GPUPOOL_FAKE_GPUS": str(folder)}


def test_memory_leaves_the_gpu_and_comes_back(node: Node) -> None:
    wanted = start_stepping(node)
    full = free_mib(node)
    suspend(node, wanted)
    eventually(lambda: suspended(node, wanted), "it is suspended")
    status = status_of(node, wanted)
    assert (status.gpu_returned, status.gpu_wanted_at is not None) == (wanted.gpu_epoch, True)
    assert free_mib(node) >= full + 64
    stands_still(node, wanted)
    attach(node, wanted, wanted.gpu_epoch + 1)
    status = status_of(node, wanted)
    assert (status.suspended_gpu, status.gpu_epoch) == ("", wanted.gpu_epoch + 1)
    goes_on(node, wanted)
    assert free_mib(node) <= full + 1


def test_all_processes_of_a_lease_are_suspended(node: Node) -> None:
    wanted = suspendable(TWO)
    node.start(wanted)
    eventually(lambda: len([line for line in said(node, wanted.key) if line.startswith("pid")]) == 2, "both run")
    before = free_mib(node)
    suspend(node, wanted)
    eventually(lambda: suspended(node, wanted), "both are suspended")
    assert free_mib(node) >= before + 128
    stands_still(node, wanted)
    attach(node, wanted, wanted.gpu_epoch + 1)
    goes_on(node, wanted)


def test_requests_are_idempotent_and_older_ones_ignored(node: Node) -> None:
    wanted = start_stepping(node)
    suspend(node, wanted, epoch=wanted.gpu_epoch - 1)
    goes_on(node, wanted)
    for _ in range(3):
        suspend(node, wanted)
    eventually(lambda: suspended(node, wanted), "it is suspended")
    suspend(node, wanted)
    with pytest.raises(RefusedError, match="stale"):
        attach(node, wanted, wanted.gpu_epoch)
    for _ in range(2):
        attach(node, wanted, wanted.gpu_epoch + 1)
    goes_on(node, wanted)


def test_program_gets_no_other_gpu_than_its_own(node: Node) -> None:
    wanted = start_suspended(node)
    (share,) = wanted.gpus
    with pytest.raises(RefusedError, match="needs"):
        attach(node, wanted, wanted.gpu_epoch + 1, (replace(share, gpu_uuid="GPU-" + "0" * 32),))
    stands_still(node, wanted)


def test_call_that_does_not_end_prevents_a_suspension(node: Node) -> None:
    wanted = suspendable(BLOCKED)
    node.start(wanted)
    until_said(node, wanted.key, "blocked")
    suspend(node, wanted, grace_s=0.5)
    eventually(lambda: status_of(node, wanted).not_suspended, "a refusal")
    assert "did not end in time" in status_of(node, wanted).not_suspended
    before = len(said(node, wanted.key))
    eventually(lambda: len(said(node, wanted.key)) > before, "it continues")
    assert status_of(node, wanted).gpu_epoch == wanted.gpu_epoch


def test_lost_helper_process_is_replaced(node: Node) -> None:
    wanted = suspendable(BLOCKED)
    node.start(wanted)
    until_said(node, wanted.key, "blocked")
    suspend(node, wanted, grace_s=20)
    os.kill(eventually(lambda: helper_pid(node), "a helper"), signal.SIGKILL)
    eventually(lambda: status_of(node, wanted).not_suspended or suspended(node, wanted), "an answer")
    if not suspended(node, wanted):
        before = len(said(node, wanted.key))
        eventually(lambda: len(said(node, wanted.key)) > before, "it continues")
        suspend(node, wanted, grace_s=20)
        eventually(lambda: suspended(node, wanted), "it is suspended")


def test_helper_that_dies_during_a_step_loses_no_program(node: Node) -> None:
    wanted = start_suspended(node)
    pid = eventually(lambda: helper_pid(node), "a helper")
    os.kill(pid, signal.SIGSTOP)  # so that it has the request when it dies
    killing = threading.Timer(0.5, os.kill, (pid, signal.SIGKILL))
    killing.start()
    attach(node, wanted, wanted.gpu_epoch + 1)
    killing.join()
    goes_on(node, wanted)
    pid = eventually(lambda: helper_pid(node), "a helper")
    os.kill(pid, signal.SIGSTOP)
    suspend(node, wanted, wanted.gpu_epoch + 1)
    time.sleep(0.5)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: suspended(node, wanted), "it is suspended")


def helper_pid(node: Node) -> int | None:
    assert node.process is not None
    own = [p for p in process_tree.scan().values() if p.ppid == node.process.pid and p.state not in "ZX"]
    return next((p.pid for p in own if b"checkpoint_process.py" in command_line(p.pid)), None)


def test_process_of_another_lease_in_a_slot_is_not_touched(node: Node) -> None:
    """A program can write its own status page."""
    victim, wanted = suspendable(STEPS, 250), suspendable(STEPS, 250)
    for one in (victim, wanted):
        node.start(one)
        until_said(node, one.key, "step")
    folders = {int(path.name.partition("-")[0]): path for path in (node.run / "leases").iterdir()}
    theirs = (folders[victim.lease] / "status").read_bytes()
    with (folders[wanted.lease] / "status").open("r+b") as page:
        page.seek(8192 + 256)  # its second slot
        page.write(theirs[8192 : 8192 + 256])
    suspend(node, wanted)
    eventually(lambda: suspended(node, wanted), "it is suspended")
    goes_on(node, victim)
    stands_still(node, wanted)


def test_program_waits_for_room_that_a_foreign_process_takes(node: Node) -> None:
    wanted = start_suspended(node)
    code = (
        "import sys; from cuda.bindings import driver as d; d.cuInit(0); "
        "d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(d.cuDeviceGet(0)[1])[1]); "
        "print(d.cuMemAlloc(d.cuMemGetInfo()[1] - (16 << 20))[0], flush=True); sys.stdin.read()"
    )
    pipe = subprocess.PIPE
    foreign = subprocess.Popen([sys.executable, "-c", code], env=outside(node), stdin=pipe, stdout=pipe)
    try:
        assert foreign.stdout is not None
        assert foreign.stdout.readline()
        with pytest.raises(RefusedError, match="out of memory"):
            attach(node, wanted, wanted.gpu_epoch + 1)
        stands_still(node, wanted)
    finally:
        foreign.kill()
        foreign.communicate()
    attach(node, wanted, wanted.gpu_epoch + 1)
    goes_on(node, wanted)


def test_suspended_program_is_stopped_like_any_other(node: Node) -> None:
    wanted = start_stepping(node)
    full = free_mib(node)
    suspend(node, wanted)
    eventually(lambda: suspended(node, wanted), "it is suspended")
    node.ask("stop", key=wanted.key, grace_s=5)
    assert node.ended(wanted.key).signal == signal.SIGTERM
    assert free_mib(node) > full


@pytest.mark.parametrize("seed", range(4))
def test_kills_of_the_agent_at_any_moment_lose_nothing(own_node: Node, seed: int) -> None:
    """The record of the program decides: with GPUs its processes run, without them they are suspended."""
    node, rng, epoch = own_node, random.Random(seed), 0
    wanted = start_stepping(node)
    epoch = wanted.gpu_epoch
    for _ in range(4):
        suspend(node, wanted, epoch)
        time.sleep(rng.random() * 0.5)
        node.down(signal.SIGKILL)
        node.up()
        status = status_of(node, wanted)
        if status.gpu_epoch:
            goes_on(node, wanted)
            suspend(node, wanted, epoch)
        eventually(lambda: suspended(node, wanted), "it is suspended")
        stands_still(node, wanted)
        epoch += 1
        assert node.caller is not None
        node.caller.sock.settimeout(0.001 + rng.random() * 0.1)
        with contextlib.suppress(TimeoutError):
            attach(node, wanted, epoch)
        node.down(signal.SIGKILL)
        node.up()
        if not status_of(node, wanted).gpu_epoch:
            attach(node, wanted, epoch)
        goes_on(node, wanted)
    assert not events(node, "slices not watched")


def test_suspension_needs_room_in_the_memory_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 8000000 kB\nMemAvailable: 1100000 kB\n")
    monkeypatch.setattr(suspension, "MEMINFO", meminfo)
    suspension.require_room(40 * MIB, None, ())
    with pytest.raises(GpupoolError, match="50 MiB of memory are free for it, and 80 MiB are needed"):
        suspension.require_room(80 * MIB, None, ())
    meminfo.write_text("MemAvailable: 99000000 kB\n")
    own = [os.getpid()]
    with pytest.raises(GpupoolError, match=" 0 MiB of memory are free for it"):
        suspension.require_room(MIB, 1, own)
    suspension.require_room(MIB, 4096, own)
