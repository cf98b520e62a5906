"""The memory limit with many processes and threads at once, and with processes that are killed in the middle."""

from __future__ import annotations

import ctypes
import mmap
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lease_folder import PAGE
from memory_client import MIB, Slice, driver_books, make_slice
from native_harness import NATIVE, PROGRAMS, build_native, compile_program

from requires import cc

PLAIN, ASYNC, MAPPED = 1, 4, 7
CONTEXT = MIB


def mixer_for(out: Path, folder: Path, *options: str) -> Path:
    """Build the allocating program, linked to the share library of a build."""
    return compile_program(PROGRAMS / "memory_mixer.c", folder, f"-I{out}", *options, str(out / "share/libcuda.so.1"))


@pytest.fixture(scope="module")
def mixer(native_out: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the allocating program."""
    return mixer_for(native_out, tmp_path_factory.mktemp("mixer"))


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Return the program that repairs slots like the arbiter."""
    path = tmp_path_factory.mktemp("ledger") / "ledger.so"
    include = [f"-I{NATIVE / 'include'}", f"-I{NATIVE / 'common'}"]
    cc("-std=gnu11", "-O2", "-shared", "-fPIC", *include, NATIVE / "common/ledger.c", "-o", path)
    return ctypes.CDLL(str(path))


@pytest.fixture
def small(native_out: Path, tmp_path: Path) -> Iterator[Slice]:
    """Create a slice of 256 MiB; contexts take 1 MiB."""
    made = make_slice(tmp_path, native_out, 256 * MIB, CONTEXT)
    with made.lease:
        yield made


def start(of: Slice, program: Path, *arguments: object) -> subprocess.Popen[str]:
    """Start the allocating program in the slice."""
    command = [str(program), *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=of.environment(), stdin=pipe, stdout=pipe, text=True)


def line(process: subprocess.Popen[str]) -> str:
    """Return the next line of a program."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str]) -> None:
    """Send a line to a program."""
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def repair(ledger: ctypes.CDLL, of: Slice, pid: int) -> None:
    """Repair the slot of a dead process like the arbiter."""
    with (of.lease.path / "status").open("r+b") as file, mmap.mmap(file.fileno(), 0) as page:
        anchor = ctypes.c_char.from_buffer(page, PAGE)
        status = ctypes.c_void_p(ctypes.addressof(anchor))
        slots = [index for owner, index in of.lease.owners().items() if owner & 0x3FFFFF == pid]
        for slot in slots:
            assert ledger.gp_ledger_repair_slot(status, ctypes.c_uint32(slot)) & 0xFF
        del anchor


@pytest.mark.parametrize(
    ("processes", "kind", "size"),
    [(2, PLAIN, MIB), (2, ASYNC, 64 * MIB), (8, PLAIN, 512), (8, MAPPED, 2 * MIB), (64, PLAIN, 65536)],
)
def test_racing_processes_get_all_of_the_last_bytes(
    small: Slice, mixer: Path, processes: int, kind: int, size: int
) -> None:
    racing = [start(small, mixer, "fill", kind, size) for _ in range(processes)]
    try:
        assert [line(process) for process in racing] == ["ready"] * processes
        if size == 512:
            small.lease.set_control("memory_limit_bytes", processes * CONTEXT + 2000 * size)
        limit = small.lease.control_field("memory_limit_bytes")
        for process in racing:
            tell(process)
        counts = [int(line(process)) for process in racing]
        assert sum(counts) == (limit - processes * CONTEXT) // size
        assert small.lease.used_bytes() == sum(counts) * size + processes * CONTEXT
        assert small.driver_total() == small.lease.used_bytes() <= limit
        assert small.lease.tenant("peak_bytes") <= limit
    finally:
        for process in racing:
            process.communicate(timeout=30)


def test_memory_of_killed_process_is_free_after_repair(small: Slice, mixer: Path, ledger: ctypes.CDLL) -> None:
    greedy = start(small, mixer, "fill", PLAIN, MIB)
    assert line(greedy) == "ready"
    tell(greedy)
    assert int(line(greedy)) == 255
    greedy.kill()
    greedy.wait()
    assert small.lease.used_bytes() == 256 * MIB
    repair(ledger, small, greedy.pid)
    assert small.lease.used_bytes() == 0
    small.run("begin(); assert free() == 255 * MIB; value(cuda().cuMemAlloc(free()))")


def test_kills_during_allocations_lose_nothing(small: Slice, mixer: Path, ledger: ctypes.CDLL) -> None:
    chance = random.Random(4)
    running = [start(small, mixer, "mix", 3, 0) for _ in range(3)]
    try:
        for _ in range(15):
            time.sleep(chance.uniform(0.02, 0.15))
            victim = chance.randrange(len(running))
            assert running[victim].poll() is None, "no call may fail but for lack of memory"
            running[victim].kill()
            running[victim].wait()
            assert small.lease.used_bytes() <= 256 * MIB
            repair(ledger, small, running[victim].pid)
            running[victim] = start(small, mixer, "mix", 3, 0)
    finally:
        for process in running:
            process.kill()
            process.communicate()
    for process in running:
        repair(ledger, small, process.pid)
    assert small.lease.used_bytes() == 0
    assert small.lease.owners() == {}
    assert small.lease.tenant("peak_bytes") <= 256 * MIB


def test_threads_of_several_processes_leave_nothing(small: Slice, mixer: Path) -> None:
    running = [start(small, mixer, "mix", 4, 1500) for _ in range(3)]
    for process in running:
        process.communicate(timeout=60)
        assert process.returncode == 0
    assert small.lease.used_bytes() == 0
    assert sum(driver_books(small.gpus).values()) == 0


@pytest.mark.slow
def test_threads_are_clean_under_the_thread_sanitizer(tmp_path: Path) -> None:
    out = build_native("thread")
    program = mixer_for(out, tmp_path, "-fsanitize=thread")
    room = make_slice(tmp_path, out, 256 * MIB, CONTEXT)
    with room.lease:
        options = {"TSAN_OPTIONS": "halt_on_error=0 exitcode=66 report_signal_unsafe=0"}
        command = [str(program), "mix", "4", "400"]
        ran = subprocess.run(
            command,
            env=room.environment() | options,
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr[:6000]
        assert ran.stderr == ""
        assert room.lease.used_bytes() == 0
