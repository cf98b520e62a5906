from __future__ import annotations

import json
import os
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from agent_share import (
    PRELUDE,
    UUID,
    Node,
    arbiter_pid,
    events,
    eventually,
    node_with,
    notes_with,
    program,
    said,
    until_said,
)

from gpupool.domain.work.program.supervision import ExitReason
from gpupool.node.sharing.slices import pages
from gpupool.node.sharing.slices.lease_folder import LeaseFolder

SLICE_MIB = 1638
WORKERS = Path(__file__).parents[2] / "benchmarks/gpu/workers"
UNHOOKED_OFFSET = 24  # of a GPU's status page
ALLOCATE_ALL = 'device = context(); say("total", ok(d.cuDeviceTotalMem(device)) >> 20); say("got", fill())\n'
ON_COMMAND = 'context(); say("got", fill())\nwhile True:\n    time.sleep(0.1); say("still", fill(1))\n'


@pytest.fixture(scope="module")
def node(native_out: Path) -> Iterator[Node]:
    with node_with(native_out) as made:
        yield made


@pytest.fixture
def own_node(native_out: Path) -> Iterator[Node]:
    with node_with(native_out) as made:
        yield made


def leases(node: Node) -> list[Path]:
    folder = node.run / "leases"
    return list(folder.iterdir()) if folder.exists() else []


def test_program_sees_and_gets_only_its_slice(node: Node) -> None:
    wanted = program(ALLOCATE_ALL)
    report = node.run_to_end(wanted)
    assert (report.reason, report.exit_code) == (ExitReason.EXITED, 0), said(node, wanted.key)
    total, got = (int(line.split()[1]) for line in said(node, wanted.key))
    assert total == SLICE_MIB
    assert SLICE_MIB - 64 - 128 - 8 <= got <= SLICE_MIB - 128  # its context is inside the slice
    status = node.status(wanted.key)
    assert status is not None
    assert (status.mode, "limits its memory" in status.guarantee) == ("share", True)
    assert not [note for note in status.notes if "advisory" in note]


def test_lease_pages_are_removed_with_the_last_program(node: Node) -> None:
    first, second = (program('context(); say("in"); time.sleep(60)\n', lease=777) for _ in range(2))
    for wanted in (first, second):
        node.start(wanted)
        until_said(node, wanted.key, "in")
    found = [path for path in leases(node) if path.name.startswith("777-")]
    assert len(found) == 1
    node.ask("stop", key=first.key, grace_s=1)
    node.ended(first.key)
    assert found[0].exists()
    node.ask("stop", key=second.key, grace_s=1)
    node.ended(second.key)
    eventually(lambda: not found[0].exists(), "the folder goes")


def test_programs_of_one_lease_share_one_slice(node: Node) -> None:
    first = program('context(); say("got", fill()); time.sleep(60)\n', lease=888)
    node.start(first)
    until_said(node, first.key, "got")
    second = program('ok(d.cuInit(0)); say("ctx", int(d.cuDevicePrimaryCtxRetain(0)[0]))\n', lease=888)
    node.run_to_end(second)
    assert said(node, second.key)[-1] == "ctx 2"  # not even a context fits
    node.ask("stop", key=first.key, grace_s=1)
    node.ended(first.key)


def test_lease_pages_are_accessible_to_owner_only(node: Node) -> None:
    wanted = program('say("in"); time.sleep(60)\n')
    node.start(wanted)
    until_said(node, wanted.key, "in")
    (folder,) = leases(node)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "control", folder / "status")}
    assert modes == {folder.name: 0o711, "control": 0o644, "status": 0o600}
    assert stat.S_IMODE((node.run / "leases").stat().st_mode) == 0o700  # 0711 in a pool of several users
    assert len(folder.name.partition("-")[2]) >= 12
    node.ask("stop", key=wanted.key, grace_s=1)
    node.ended(wanted.key)


def test_twenty_slices_of_a_twentieth_get_their_share(node: Node) -> None:
    wanted = [program('context(); say("got", fill(16)); time.sleep(60)\n', permille=50) for _ in range(20)]
    for one in wanted:
        node.start(one)
    got = [int(until_said(node, one.key, "got")[0].split()[1]) for one in wanted]
    for one in wanted:
        node.ask("stop", key=one.key, grace_s=0)
    for one in wanted:
        node.ended(one.key)
    assert min(got) >= 819 - 128 - 24
    assert max(got) <= 819 - 128


@pytest.mark.parametrize("victim", ["arbiter", "agent", "program"])
def test_limits_hold_again_after_any_kill(own_node: Node, victim: str) -> None:
    node = own_node
    holder = program(ON_COMMAND, lease=5)
    node.start(holder)
    until_said(node, holder.key, "still")
    other = program(ALLOCATE_ALL, lease=5)
    pid = arbiter_pid(node)
    assert pid is not None
    (folder,) = leases(node)
    pages_of = LeaseFolder(5, folder, 1)
    if victim == "arbiter":
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: arbiter_pid(node) not in {None, pid}, "another arbiter")
    elif victim == "agent":
        node.down(signal.SIGKILL)
        node.up()
        eventually(lambda: arbiter_pid(node) not in {None, pid}, "another arbiter")
    beat = pages_of.heartbeat()
    eventually(lambda: pages_of.heartbeat() != beat, "the arbiter minds the lease")
    if victim == "program":
        status = node.status(holder.key)
        assert status is not None
        assert status.pid is not None
        node.start(keeper := program('say("in"); time.sleep(60)\n', lease=5))
        until_said(node, keeper.key, "in")
        os.kill(status.pid, signal.SIGKILL)
        node.ended(holder.key)
        eventually(lambda: not pages_of.read_slots(0), "its slot is given back")
        node.run_to_end(other)
        assert int(until_said(node, other.key, "got")[0].split()[1]) >= SLICE_MIB - 128 - 72
        node.ask("stop", key=keeper.key, grace_s=0)
        return
    lines = len(said(node, holder.key))
    eventually(lambda: len(said(node, holder.key)) > lines + 3, "the program continues")
    assert set(said(node, holder.key)[-3:]) == {"still 0"}
    node.ask("stop", key=holder.key, grace_s=0)
    node.ended(holder.key)
    eventually(lambda: not leases(node), "the folder goes")


ROUND_THE_LIBRARY = """
if os.environ.pop("LD_PRELOAD", None):
    os.environ["LD_PRELOAD"] = os.environ["REAL"]
    os.execv(sys.executable, [sys.executable, "-c", os.environ["SELF"]])
"""
GREEDY = 'context(); say("got", sum(d.cuMemAlloc(64 << 20)[0] == 0 for _ in range(40)) * 64); time.sleep(60)\n'


def test_program_that_bypasses_library_is_warned_and_stopped(node: Node, native_out: Path) -> None:
    neighbour = program('context(); say("in")\nwhile True: time.sleep(0.2); say("here")\n', permille=250)
    node.start(neighbour)
    until_said(node, neighbour.key, "here")
    env = {"REAL": str(native_out / "fake/libcuda.so.1"), "SELF": PRELUDE + GREEDY}
    rogue = program(ROUND_THE_LIBRARY, env=env)
    node.start(rogue)
    assert until_said(node, rogue.key, "got")[0] == "got 2560"  # more than its slice
    eventually(lambda: notes_with(node, rogue.key, "more than the"), "a warning")
    report = node.ended(rogue.key)
    assert report.signal == signal.SIGTERM
    assert notes_with(node, rogue.key, "was asked to stop")
    steps = [e["step"] for e in events(node, "share exceeded")]
    assert steps[:2] == ["warn", "term"]
    before = len(said(node, neighbour.key))
    eventually(lambda: len(said(node, neighbour.key)) > before, "the neighbour continues")
    status = node.status(neighbour.key)
    assert status is not None
    assert not [note for note in status.notes if UUID in note]
    node.ask("stop", key=neighbour.key, grace_s=0)
    node.ended(neighbour.key)


FILL_WHAT_IS_SHOWN = """
context()
free, total = d.cuMemGetInfo()[1:]
size = int(free * 0.97)
say("shown", free >> 20, total >> 20)
say("got", int(d.cuMemAlloc(size)[0]), size >> 20)
"""
GROW = """
for _ in range(8):
    ok(d.cuModuleLoadData(b"any image"))
say("grown")
"""
GO_ON = """
while True:
    time.sleep(0.1)
    say("free", d.cuMemGetInfo()[1] >> 20, int(d.cuMemAlloc(64 << 20)[0]))
"""
BIG_CONTEXT_MIB = 600


@pytest.fixture
def rogue_ended(node: Node, native_out: Path) -> Callable[[], None]:
    """Return a function that waits for the agent to end a program that goes round the library.

    By then the watch has run often enough to end any other program that it would end.
    """

    def wait() -> None:
        env = {"REAL": str(native_out / "fake/libcuda.so.1"), "SELF": PRELUDE + GREEDY}
        rogue = program(ROUND_THE_LIBRARY, env=env)
        node.start(rogue)
        assert node.ended(rogue.key).signal == signal.SIGTERM

    return wait


def test_program_that_fills_its_shown_memory_survives(node: Node, rogue_ended: Callable[[], None]) -> None:
    """The context is larger than the agent's estimate; the library measures it before the program sees any figure."""
    env = {"GPUPOOL_FAKE_CONTEXT_MIB": str(BIG_CONTEXT_MIB)}
    filler = program(FILL_WHAT_IS_SHOWN + GO_ON, permille=500, env=env)
    node.start(filler)
    _, result, _ = until_said(node, filler.key, "got")[0].split()
    assert result == "0"
    rogue_ended()
    lines = len(said(node, filler.key))
    eventually(lambda: len(said(node, filler.key)) > lines, "the program continues")
    assert said(node, filler.key)[0] == f"shown {8192 - BIG_CONTEXT_MIB} 8192"
    assert not notes_with(node, filler.key, UUID)
    node.ask("stop", key=filler.key, grace_s=0)
    node.ended(filler.key)


def test_later_driver_memory_shrinks_slice_and_ends_no_program(node: Node, rogue_ended: Callable[[], None]) -> None:
    env = {"GPUPOOL_FAKE_CONTEXT_GROWTH_MIB": "100"}
    filler = program(FILL_WHAT_IS_SHOWN + GROW + GO_ON, permille=500, env=env)
    node.start(filler)
    until_said(node, filler.key, "grown")
    eventually(
        lambda: said(node, filler.key)[-1] == "free 0 2", "nothing is shown as free, and allocations are refused"
    )
    eventually(lambda: notes_with(node, filler.key, "the driver allocated"), "a note")
    rogue_ended()
    lines = len(said(node, filler.key))
    eventually(lambda: len(said(node, filler.key)) > lines, "the program continues")
    assert not notes_with(node, filler.key, "asked to end")
    node.ask("stop", key=filler.key, grace_s=0)
    node.ended(filler.key)


BESIDE_THE_LIBRARY = """
import ctypes
context()
real = ctypes.CDLL(os.environ["REAL"])
for _ in range(64):
    pointer = ctypes.c_ulonglong()
    assert real.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(64 << 20)) == 0
say("got")
time.sleep(60)
"""


def test_unhooked_allocation_is_warned_and_then_ended(node: Node, native_out: Path) -> None:
    """It is attached and known, and calls a second way into the driver by its path: 4 GiB in a slice of 1.6."""
    rogue = program(BESIDE_THE_LIBRARY, env={"REAL": str(native_out / "fake/libcuda.so.1")})
    node.start(rogue)
    until_said(node, rogue.key, "got")
    eventually(lambda: notes_with(node, rogue.key, "If this continues"), "a warning")
    report = node.ended(rogue.key)
    assert report.signal == signal.SIGTERM
    assert "was asked to stop" in report.message
    assert "more than the 1.6 GiB of its slice" in report.message


def test_later_leases_start_with_measured_context_size(own_node: Node) -> None:
    node = own_node
    env = {"GPUPOOL_FAKE_CONTEXT_MIB": str(BIG_CONTEXT_MIB)}
    first = program('context(); say("in"); time.sleep(60)\n', permille=500, env=env)
    node.start(first)
    until_said(node, first.key, "in")
    eventually((node.run / "context-sizes.json").exists, "the agent has looked")
    node.ask("stop", key=first.key, grace_s=0)
    node.ended(first.key)
    node.down(signal.SIGKILL)
    node.up()
    second = program('say("in"); time.sleep(60)\n', permille=500, lease=77)
    node.start(second)
    until_said(node, second.key, "in")
    (folder,) = [path for path in leases(node) if path.name.startswith("77-")]
    control = (folder / "control").read_bytes()
    assert int.from_bytes(control[pages.PAGE + 120 : pages.PAGE + 128], "little") == BIG_CONTEXT_MIB << 20
    node.ask("stop", key=second.key, grace_s=0)
    node.ended(second.key)


@pytest.mark.parametrize("arguments", [["kills.py", "--times", "12"], ["memory.py", "--way", "alloc"]])
def test_benchmarks_of_memory_wait_until_the_slice_is_settled(node: Node, arguments: list[str]) -> None:
    """A module takes 300 MiB after the context; the agent sees that up to a second later."""
    worker, *rest = arguments
    wanted = replace(
        program("", permille=250, env={"GPUPOOL_FAKE_CONTEXT_GROWTH_MIB": "300"}),
        argv=(sys.executable, str(WORKERS / worker), *rest),
    )
    report = node.run_to_end(wanted)
    found = json.loads(said(node, wanted.key)[-1])
    assert report.status == 0, found
    if worker == "kills.py":
        assert abs(found["lost_mib"]) < 2
    else:
        assert found["before_mib"] == 128 + 300
        assert abs(found["most_mib"] + found["before_mib"] - found["total_mib"]) <= 4


def test_unknown_driver_functions_are_reported(node: Node) -> None:
    """Counted by the library in the tenant's page, which any of its processes may write: so does this one."""
    wanted = program('context(); say("in"); time.sleep(60)\n', lease=778)
    node.start(wanted)
    until_said(node, wanted.key, "in")
    (folder,) = [path for path in leases(node) if path.name.startswith("778-")]
    with (folder / "status").open("r+b") as status:
        status.seek(pages.PAGE + UNHOOKED_OFFSET)
        status.write((1).to_bytes(8, "little"))
    eventually(lambda: notes_with(node, wanted.key, "does not know"), "a note")
    node.ask("stop", key=wanted.key, grace_s=0)
    node.ended(wanted.key)


def test_driver_overhead_is_charged_to_slice(node: Node) -> None:
    """The fake driver's context is as large as estimated: nothing is to be corrected, and nothing is."""
    wanted = program('context(); say("in"); time.sleep(60)\n')
    node.start(wanted)
    until_said(node, wanted.key, "in")
    time.sleep(2.5)
    (folder,) = leases(node)
    control = (folder / "control").read_bytes()
    assert int.from_bytes(control[pages.PAGE + 192 : pages.PAGE + 200], "little", signed=True) == 0
    node.ask("stop", key=wanted.key, grace_s=0)
    node.ended(wanted.key)
