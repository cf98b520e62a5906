"""A tenant and its arbiter for tests of launch gating: programs/gate_client.c on the driver of programs/gate_sim.c."""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import subprocess
import sysconfig
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from lease_folder import CONTENDED, GRANTED, PAGE, POLICY_GUARANTEE, LeasedGpu, LeaseFolder
from native_harness import NATIVE, PROGRAMS, build_products, clean_environment

from requires import cc

REPORT = (
    "kernels",
    "finish_ns",
    "most_queued_ns",
    "records",
    "queries",
    "spoilt",
    "dead",
    "idle_ns",
    "first_ns",
    "late",
)
UUID = bytes([7] * 16)
FUTEX = {"linux-x86_64": 202}.get(sysconfig.get_platform(), 98)
FUTEX_WAKE = 1
BEAT_S = 0.05
_libc = ctypes.CDLL(None, use_errno=True)


def build(out: Path, folder: Path, *flags: str) -> tuple[Path, Path]:
    """Build the driver and the client in a folder; ``out`` is the folder with all native files."""
    folder.mkdir(parents=True, exist_ok=True)
    common = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", f"-I{NATIVE / 'include'}", f"-I{out}", *flags]
    driver, client = folder / "gate-sim-libcuda.so.1", folder / "gate_client"
    library = ["-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-soname,libcuda.so.1", "-Wl,-Bsymbolic"]
    cc(*common, *library, "-o", driver, PROGRAMS / "gate_sim.c")
    linked = [f"-L{out / 'share'}", "-l:libcuda.so.1", "-lpthread"]
    cc(*common, "-o", client, PROGRAMS / "gate_client.c", *linked)
    return driver, client


def build_share(folder: Path, flags: str) -> Path:
    """Build only the share library, with other flags."""
    name = "share/libcuda.so.1"
    build_products(folder, flags.split(), products=(name,))
    return folder / name


def until(condition: Callable[[], object], timeout_s: float = 10.0) -> bool:
    """Return whether a condition becomes true in time."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.0005)
    return True


class Arbiter:
    """Does by hand what the arbiter does: writes the control page, wakes, beats, looks at the first slot."""

    def __init__(self, folder: Path, driver: Path, uuid: bytes = UUID) -> None:
        gpu = LeasedGpu(uuid, 1 << 30, policy=POLICY_GUARANTEE)
        self.lease = LeaseFolder(folder, [gpu], driver)
        self.bell = self.lease.bell()
        self.bell.settimeout(0)
        self.epoch = 0
        self.beats = threading.Event()
        self.beats.set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._over.wait(BEAT_S):
            if self.beats.is_set():
                self.lease.set_control("heartbeat", self.lease.control_field("heartbeat") + 1 & 0xFFFFFFFF)

    def _write(self, grant: int) -> None:
        self.lease.set_control("grant", grant)
        word = ctypes.c_uint32.from_buffer(self.lease.control, PAGE + 256)
        _libc.syscall(FUTEX, ctypes.byref(word), FUTEX_WAKE, 1 << 20, None, None, 0)
        del word

    def grant(self, *, contended: bool = False) -> None:
        """Write a new grant."""
        self.epoch += 1
        self._write(self.epoch << 2 | GRANTED | (CONTENDED if contended else 0))

    def contend(self) -> None:
        """Write that others want the GPU now."""
        self._write(self.lease.control_field("grant") | CONTENDED)

    def revoke(self) -> None:
        """Take the grant away."""
        self._write(self.lease.control_field("grant") & ~GRANTED)

    def slot(self, index: int = 0) -> dict[str, int]:
        """Return the words of a process, by default of the first one."""
        return self.lease.slot(index)

    def rung(self) -> int:
        """Return the number of bells since the last call."""
        count = 0
        while True:
            try:
                self.bell.recv(64)
            except BlockingIOError:
                return count
            count += 1

    def close(self) -> None:
        """Stop beating, unmap."""
        self._over.set()
        self._thread.join()
        self.bell.close()
        self.lease.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Tenant:
    """A process of the tenant that executes commands of the test."""

    def __init__(self, arbiter: Arbiter, client: Path, share: Path, **environment: str) -> None:
        path = arbiter.lease.path.parent / f"report-{os.urandom(4).hex()}"
        path.write_bytes(bytes(4096))
        self.report_path = path
        with path.open("r+b") as file:
            self._report = mmap.mmap(file.fileno(), 4096)
        own = arbiter.lease.environment(share) | {"GATE_SIM_REPORT": str(path)} | environment
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [client], env=clean_environment() | own, stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )
        self.answer()

    def tell(self, command: str) -> None:
        """Start a command; ``answer`` waits for it."""
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def answer(self) -> float:
        """Read the answer to a command: its seconds. Fail if the driver refused it."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            assert self.process.stderr is not None
            raise AssertionError(f"ended with {self.process.returncode}: {self.process.stderr.read()[-4000:]}")
        word, number = line.split()
        assert word in {"0", "ready"}, line
        return int(number) / 1e6

    def do(self, command: str) -> float:
        """Send a command and return its answer."""
        self.tell(command)
        return self.answer()

    def report(self, name: str) -> int:
        """Return the counters of the driver."""
        return int(struct.unpack_from("Q", self._report, 8 * REPORT.index(name))[0])

    def end(self) -> str:
        """Let it exit; what it wrote to standard error. Fails if it did not exit by itself with 0."""
        _, errors = self.process.communicate(timeout=30)
        assert self.process.returncode == 0, errors
        return errors

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()
        self._report.close()
