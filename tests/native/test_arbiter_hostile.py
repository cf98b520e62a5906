"""gpupool-arbiter among processes that die, tenants that lie, and without its memory."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from arbiter_harness import HELLO, Arbiter, Tenant, eventually
from lease_folder import PAGE, SLOTS, owner_of

MIB = 1 << 20
FLOOD = """
import os, socket, struct, sys
folder = os.open(sys.argv[1], os.O_PATH)
bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
bell.setblocking(False)
while True:
    try:
        bell.sendto(struct.pack("IIQ", 2, 0, 1), f"/proc/self/fd/{folder}/bell")
    except OSError:
        pass
"""


@pytest.fixture
def arbiter(native_out: Path) -> Iterator[Arbiter]:
    with Arbiter(native_out / "gpupool-arbiter") as running:
        yield running


@pytest.fixture
def sleeper() -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Start processes that sleep, and end them afterwards."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(["sleep", "600"]))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def is_served(tenant: Tenant) -> bool:
    """Return whether the arbiter answers this tenant."""
    tenant.set_slot(0, "waiting", 1)
    tenant.ring()
    eventually(tenant.granted)
    tenant.work()
    tenant.drained()
    return True


def neighbour(arbiter: Arbiter, path: Path) -> Tenant:
    """Create a well-behaved tenant of the same GPU."""
    tenant = Tenant(path)
    tenant.claim(os.getpid())
    arbiter.add(tenant)
    return tenant


# -- deaths ------------------------------------------------------------------------------------------------------------


def test_memory_of_dead_process_is_released(
    arbiter: Arbiter, tmp_path: Path, sleeper: Callable[[], subprocess.Popen[bytes]]
) -> None:
    tenant, processes = Tenant(tmp_path / "a"), [sleeper() for _ in range(40)]
    for slot, process in enumerate(processes):
        tenant.claim(process.pid, slot, used_bytes=MIB)
        tenant.set_slot(slot, "launches", 3)
    arbiter.add(tenant)
    assert tenant.used_bytes() == 40 * MIB
    usage = arbiter.usage(tenant)
    assert usage is not None
    assert {one["pid"] for one in usage["processes"]} == {process.pid for process in processes}
    for process in processes[:30]:
        process.kill()
    assert eventually(lambda: tenant.used_bytes() == 10 * MIB) < 1.0
    assert sorted(tenant.owners()) == sorted(owner_of(process.pid) for process in processes[30:])
    eventually(lambda: (arbiter.usage(tenant) or {})["used_bytes"] == 10 * MIB)
    assert (arbiter.usage(tenant) or {})["launches"] == 120


def test_grant_of_dead_process_is_passed_on(
    arbiter: Arbiter, tmp_path: Path, sleeper: Callable[[], subprocess.Popen[bytes]]
) -> None:
    dying, other = Tenant(tmp_path / "a"), neighbour(arbiter, tmp_path / "b")
    process = sleeper()
    dying.claim(process.pid)
    arbiter.add(dying)
    dying.wait_for_grant()
    eventually(dying.granted)
    dying.work()
    process.kill()
    other.wait_for_grant()
    eventually(other.granted)
    eventually(lambda: dying.owners() == {})
    assert not dying.granted()


@pytest.mark.parametrize("told", [True, False], ids=["by its bell", "by a search"])
def test_processes_of_other_pid_namespaces_are_found(
    arbiter: Arbiter, tmp_path: Path, sleeper: Callable[[], subprocess.Popen[bytes]], told: bool
) -> None:
    tenant = Tenant(tmp_path / "a")
    if told:
        tenant.claim(os.getpid(), pid_ns=7)
        arbiter.add(tenant)
        tenant.ring(HELLO)
        eventually(lambda: tenant.slot(0)["host_pid"] == os.getpid())
        return
    process = sleeper()
    tenant.claim(process.pid, used_bytes=MIB, pid_ns=7)
    arbiter.add(tenant)
    eventually(lambda: tenant.slot(0)["host_pid"] == process.pid)
    process.kill()
    assert eventually(lambda: tenant.used_bytes() == 0) < 1.0


def test_missing_process_of_other_namespace_is_given_up(arbiter: Arbiter, tmp_path: Path) -> None:
    tenant = Tenant(tmp_path / "a")
    tenant.claim(os.getpid(), used_bytes=MIB, pid_ns=7)
    tenant.set_slot(0, "owner", owner_of(os.getpid()) ^ 1 << 40)
    arbiter.add(tenant)
    tenant.ring(HELLO)
    assert eventually(lambda: tenant.used_bytes() == 0) > 1.0


def test_process_with_reused_pid_is_distinguished(arbiter: Arbiter, tmp_path: Path) -> None:
    tenant = Tenant(tmp_path / "a")
    tenant.claim(os.getpid(), used_bytes=MIB)
    tenant.set_slot(0, "owner", owner_of(os.getpid()) + (1 << 22))
    arbiter.add(tenant)
    eventually(lambda: tenant.used_bytes() == 0)


def test_killed_arbiter_is_replaced(
    native_out: Path, tmp_path: Path, sleeper: Callable[[], subprocess.Popen[bytes]]
) -> None:
    tenant, process, survivor = Tenant(tmp_path / "a"), sleeper(), sleeper()
    for slot, one in enumerate((process, survivor)):
        tenant.claim(one.pid, slot, used_bytes=MIB)
    with Arbiter(native_out / "gpupool-arbiter") as first:
        first.add(tenant)
        tenant.wait_for_grant()
        eventually(tenant.granted)
        tenant.work()
        first.kill()
    process.kill()
    epoch = tenant.epoch()
    with Arbiter(native_out / "gpupool-arbiter") as second:
        second.add(tenant)
        assert eventually(lambda: tenant.used_bytes() == MIB) < 1.0
        tenant.wait_for_grant(slot=1)
        eventually(lambda: tenant.granted() and tenant.epoch() > epoch)


def test_arbiters_killed_during_repair_are_harmless(
    native_out: Path, tmp_path: Path, sleeper: Callable[[], subprocess.Popen[bytes]]
) -> None:
    tenant, survivor = Tenant(tmp_path / "a"), sleeper()
    tenant.claim(survivor.pid, SLOTS - 1, used_bytes=MIB)
    for number in range(12):
        processes = [sleeper() for _ in range(10)]
        for slot, process in enumerate(processes):
            if tenant.slot(slot)["owner"] == 0:
                tenant.claim(process.pid, slot, used_bytes=MIB)
        for process in processes:
            process.kill()
            process.wait()
        with Arbiter(native_out / "gpupool-arbiter") as arbiter:
            arbiter.tell(f"add {tenant.path}")
            time.sleep(number * 0.0005)
    with Arbiter(native_out / "gpupool-arbiter") as last:
        last.add(tenant)
        assert eventually(lambda: tenant.used_bytes() == MIB) < 1.0
        assert list(tenant.owners()) == [owner_of(survivor.pid)]


def test_arbiter_ends_with_its_parent(native_out: Path, tmp_path: Path) -> None:
    code = (
        "import os, subprocess, sys\n"
        "child = subprocess.Popen([sys.argv[1]], stdin=os.open('/dev/ptmx', os.O_RDWR), stdout=subprocess.DEVNULL)\n"
        "print(child.pid, flush=True)\n"
        "import time; time.sleep(600)\n"
    )
    command = [sys.executable, "-c", code, str(native_out / "gpupool-arbiter")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        time.sleep(0.2)
        assert Path(f"/proc/{pid}/cmdline").read_text()
        parent.send_signal(signal.SIGKILL)
    eventually(lambda: not Path(f"/proc/{pid}").exists() or "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text())


# -- lies --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, PAGE, 3 * PAGE])
def test_truncated_page_harms_only_its_tenant(arbiter: Arbiter, tmp_path: Path, size: int) -> None:
    liar, honest = neighbour(arbiter, tmp_path / "a"), neighbour(arbiter, tmp_path / "b")
    liar.wait_for_grant()
    eventually(liar.granted)
    os.truncate(liar.path / "status", size)
    assert is_served(honest)
    eventually(lambda: any("status page" in warning for warning in arbiter.warnings()))
    assert not liar.granted()
    assert is_served(honest)
    beat = liar.control_field("heartbeat")
    time.sleep(1)
    assert liar.control_field("heartbeat") - beat >= 8
    assert arbiter.alive()


def test_invalid_page_contents_harm_no_other_tenant(arbiter: Arbiter, tmp_path: Path) -> None:
    liar, honest = neighbour(arbiter, tmp_path / "a"), neighbour(arbiter, tmp_path / "b")
    noise = random.Random(7)
    before = arbiter.cpu_s()
    for _ in range(20):
        liar.status[PAGE:] = noise.randbytes(len(liar.status) - PAGE)
        liar.ring(HELLO, owner=noise.getrandbits(64))
        assert is_served(honest)
        time.sleep(0.05)
    assert arbiter.cpu_s() - before < 2
    liar.status[:PAGE] = bytes(PAGE)
    eventually(lambda: any("status page" in warning for warning in arbiter.warnings()))
    assert is_served(honest)


def test_tenant_that_claims_endless_work_is_skipped(arbiter: Arbiter, tmp_path: Path) -> None:
    liar, honest = neighbour(arbiter, tmp_path / "a"), neighbour(arbiter, tmp_path / "b")
    liar.set_slot(0, "busy", 1)
    liar.wait_for_grant()
    eventually(liar.granted)
    for _ in range(5):
        assert is_served(honest)


def test_bells_are_rate_limited(arbiter: Arbiter, tmp_path: Path) -> None:
    noisy, honest = neighbour(arbiter, tmp_path / "a"), neighbour(arbiter, tmp_path / "b")
    with subprocess.Popen([sys.executable, "-c", FLOOD, noisy.path]) as flood:
        try:
            time.sleep(0.5)
            before = arbiter.cpu_s()
            for _ in range(5):
                assert is_served(honest)
                time.sleep(0.2)
            assert arbiter.cpu_s() - before < 0.5
        finally:
            flood.kill()


def test_invalid_datagrams_are_ignored(arbiter: Arbiter, tmp_path: Path) -> None:
    tenant = neighbour(arbiter, tmp_path / "a")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bell:
        folder = os.open(tenant.path, os.O_PATH)
        for message in (b"", b"x", b"y" * 15, b"z" * 17, b"w" * 60000):
            bell.sendto(message, f"/proc/self/fd/{folder}/bell")
        os.close(folder)
    assert is_served(tenant)


def test_agent_that_does_not_read_does_not_block_arbiter(native_out: Path, tmp_path: Path) -> None:
    tenant = Tenant(tmp_path / "a")
    tenant.claim(os.getpid())
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([native_out / "gpupool-arbiter"], **pipes) as process:  # type: ignore[call-overload]
        assert process.stdin is not None
        for _ in range(20000):
            process.stdin.write(b"nonsense\n")
        process.stdin.write(f"add {tenant.path}\n".encode())
        process.stdin.flush()
        eventually((tenant.path / "bell").exists)
        assert is_served(tenant)
        process.kill()


def test_many_leases_work(arbiter: Arbiter, tmp_path: Path) -> None:
    tenants = [Tenant(tmp_path / str(number), gpu=number % 8) for number in range(150)]
    for tenant in tenants:
        tenant.claim(os.getpid())
        arbiter.tell(f"add {tenant.path}")
    for tenant in tenants:
        eventually((tenant.path / "bell").exists)
        assert is_served(tenant)
    before = [tenant.control_field("heartbeat") for tenant in tenants]
    time.sleep(1)
    after = [tenant.control_field("heartbeat") for tenant in tenants]
    assert all(b - a >= 8 for a, b in zip(before, after, strict=True))
    for tenant in tenants:
        arbiter.tell(f"remove {tenant.path}")
        tenant.close()
    assert arbiter.end() == 0
