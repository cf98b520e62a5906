"""The pages of a lazy lease are taken away only if no process of the lease can use them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpupool.domain.nodes.sharing import ComputePolicy
from gpupool.node.sharing.slices import pages
from gpupool.node.sharing.slices.lease_folder import LeaseFolder, make_lease_folder

GPU = pages.GpuPage("GPU-00000000-0000-0000-0000-000000000001", 1 << 30, 1 << 20, 500, ComputePolicy.GUARANTEE)
CONTROL = pages.control_pages("lease 7", "/cuda", "/nvml", [GPU])
OPEN = "fd = os.open(sys.argv[1], os.O_RDONLY); "
MAP = OPEN + "held = mmap.mmap(fd, 0, access=mmap.ACCESS_READ); os.close(fd); "
FORK = "os.fork() and os._exit(0); "
# Its first thread ends; system call 60 of x86-64 and 93 of aarch64 is exit.
THREAD = "import ctypes, platform, threading; threading.Thread(target=sys.stdin.read).start(); "
THREAD += "print(os.getpid(), flush=True); ctypes.CDLL(None).syscall(60 if platform.machine() == 'x86_64' else 93, 0); "
WAIT = "print(os.getpid(), flush=True); sys.stdin.read()"


@pytest.fixture
def folder(tmp_path: Path) -> LeaseFolder:
    made = make_lease_folder(tmp_path, 7, None, 0, None)
    (made.path / "waiting").write_text("1")
    return made.complete(CONTROL, 1, None)


@pytest.fixture
def begin(folder: LeaseFolder) -> Iterator[Callable[[str], int]]:
    """Return a function that starts a program on the lease and returns the pid of its last process."""
    programs: list[subprocess.Popen[str]] = []

    def start(source: str) -> int:
        command = [sys.executable, "-S", "-c", "import mmap, os, sys; " + source + WAIT, str(folder.path / "control")]
        program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        programs.append(program)
        assert program.stdout is not None
        return int(program.stdout.readline())

    yield start
    for program in programs:
        program.communicate("")


def taken_away(folder: LeaseFolder, *pids: int) -> bool:
    return folder.withdraw(lambda: frozenset(pids))


def test_unused_pages_are_removed_and_the_next_use_is_a_new_one(
    folder: LeaseFolder, begin: Callable[[str], int]
) -> None:
    assert folder.wanted_at() is not None
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert taken_away(folder, begin(""), os.getppid(), gone.pid)
    assert [path.name for path in folder.path.iterdir()] == ["waiting"]
    assert folder.wanted_at() is None


@pytest.mark.parametrize("source", [OPEN, MAP, MAP + FORK, MAP + THREAD], ids=["open", "mapped", "inherited", "thread"])
def test_pages_that_a_process_has_stay(folder: LeaseFolder, begin: Callable[[str], int], source: str) -> None:
    before = {path.name: path.read_bytes() for path in folder.path.iterdir()}
    assert not taken_away(folder, begin(""), begin(source))
    assert {path.name: path.read_bytes() for path in folder.path.iterdir()} == before
    assert folder.sound()


def test_zombies_do_not_keep_pages(folder: LeaseFolder) -> None:
    with subprocess.Popen(["true"]) as zombie:
        os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
        assert taken_away(folder, zombie.pid)


def test_processes_that_appear_meanwhile_are_found(folder: LeaseFolder, begin: Callable[[str], int]) -> None:
    first, second = begin(""), begin(MAP)
    looks = iter([frozenset({first}), frozenset({first, second})])
    assert not folder.withdraw(lambda: next(looks))
    assert folder.sound()


def test_pages_stay_if_the_processes_cannot_be_read(folder: LeaseFolder) -> None:
    def fails() -> frozenset[int]:
        raise OSError("no /proc")

    with pytest.raises(OSError, match="no /proc"):
        folder.withdraw(fails)
    assert folder.sound()
    assert folder.wanted_at() is not None


def test_next_agent_finds_the_pages_of_a_killed_one(folder: LeaseFolder, begin: Callable[[str], int]) -> None:
    begin(MAP)
    inode = (folder.path / "status").stat().st_ino

    def killed() -> frozenset[int]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        folder.withdraw(killed)
    assert not folder.sound()
    assert folder.complete(CONTROL, 1, None).sound()
    assert (folder.path / "status").stat().st_ino == inode, "a process may have it mapped"
