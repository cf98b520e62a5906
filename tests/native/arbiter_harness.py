"""A real arbiter, and tenants that are no more than pages written by a test."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from lease_folder import CONTENDED, GRANTED, POLICY_GUARANTEE, UNIT, LeasedGpu, LeaseFolder, owner_of

HELLO, LOOK = 1, 2
PATIENCE_S = 10.0


def eventually(condition: Callable[[], object], within_s: float = PATIENCE_S) -> float:
    """Wait until the condition holds; return the seconds that this took."""
    begin = time.monotonic()
    while not condition():
        waited = time.monotonic() - begin
        assert waited < within_s, f"not within {within_s} s"
        time.sleep(0.001)
    return time.monotonic() - begin


class Arbiter:
    """gpupool-arbiter as the agent would run it; a context manager."""

    def __init__(self, program: Path) -> None:
        self._process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.messages: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Return its process."""
        return self._process.pid

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.messages.append(json.loads(line))

    def tell(self, line: str) -> None:
        """Send one command."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    def add(self, lease: LeaseFolder) -> None:
        """Add a lease and wait until the arbiter serves it."""
        self.tell(f"add {lease.path}")
        eventually(lambda: (lease.path / "bell").exists() and self.usage(lease) is not None)

    def warnings(self) -> list[str]:
        """Return all warnings so far."""
        return [message["warning"] for message in list(self.messages) if "warning" in message]

    def usage(self, lease: LeaseFolder, gpu: int = 0) -> dict[str, Any] | None:
        """Return the last usage report of a lease's GPU."""
        found = [m["usage"] for m in list(self.messages) if "usage" in m]
        mine = [one for one in found if one["lease"] == str(lease.path) and one["gpu"] == gpu]
        return mine[-1] if mine else None

    def cpu_s(self) -> float:
        """Return the CPU time that it has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def alive(self) -> bool:
        """Return whether it still runs."""
        return self._process.poll() is None

    def end(self) -> int:
        """Close its input and return its exit status."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait(PATIENCE_S)

    def kill(self) -> None:
        """End it like kill -9."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._reader.join(PATIENCE_S)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


class Tenant(LeaseFolder):
    """A lease whose processes' words are written by the test."""

    def __init__(self, path: Path, *, gpu: int = 1, weight: int = 500, policy: int = POLICY_GUARANTEE) -> None:
        leased = LeasedGpu(bytes([gpu] * 16), 1 << 30, weight_permille=weight, policy=policy)
        super().__init__(path, [leased], "/nonexistent")

    def claim(self, pid: int, slot: int = 0, used_bytes: int = 0, pid_ns: int | None = None) -> None:
        """Write that slot `slot` belongs to process `pid` and has this memory."""
        own = Path("/proc/self/ns/pid").stat().st_ino
        self.set_slot(slot, "pid_ns", own if pid_ns is None else pid_ns)
        word = (used_bytes // UNIT) << 30 | slot << 23 | 1
        for name in ("intent", "ledger"):
            self.set_slot(slot, name, word)
        if used_bytes:
            total = self.used_bytes() // UNIT + used_bytes // UNIT
            self.set_tenant("tenant", total << 30 | slot << 23 | 1)
        self.set_slot(slot, "owner", owner_of(pid))

    def set_tenant(self, name: str, value: int, gpu: int = 0) -> None:
        """Change a word of the tenant's part of the status page."""
        offset = {"tenant": 0, "peak_bytes": 8}[name]
        struct.pack_into("Q", self.status, 4096 + (4096 + 128 * 256) * gpu + offset, value)

    def ring(self, kind: int = LOOK, owner: int | None = None) -> None:
        """Ring the bell from this process."""
        folder = os.open(self.path, os.O_PATH)
        bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            message = struct.pack("IIQ", kind, 0, self.slot(0)["owner"] if owner is None else owner)
            bell.sendto(message, f"/proc/self/fd/{folder}/bell")
        finally:
            bell.close()
            os.close(folder)

    def wait_for_grant(self, slot: int = 0) -> None:
        """Announce that a thread of the process wants to launch."""
        self.set_slot(slot, "waiting", 1)
        self.ring()

    def work(self, slot: int = 0) -> None:
        """Launch under the grant."""
        self.set_slot(slot, "busy", 1)
        self.set_slot(slot, "waiting", 0)

    def drained(self, slot: int = 0) -> None:
        """End the launched work."""
        self.set_slot(slot, "busy", 0)
        self.ring()

    def granted(self) -> bool:
        """Return whether it may launch."""
        return self.control_field("grant") & GRANTED != 0

    def contended(self) -> bool:
        """Return whether others want the GPU."""
        return self.control_field("grant") & CONTENDED != 0

    def epoch(self) -> int:
        """Return the number of its grants."""
        return self.control_field("grant") >> 2
