"""A lease's folder made by hand: what the agent writes and the arbiter changes, for tests of the share library.

Offsets are those of native/include/gpupool/pages.h; test_headers_layout.py compares them.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

MAGIC = 0x316567617070756E
ABI = 1
PAGE = 4096
SLOTS = 128
SLOT_BYTES = 256
STATUS_GPU_BYTES = PAGE + SLOTS * SLOT_BYTES
UNIT = 512
POLICY_NONE, POLICY_GUARANTEE, POLICY_CAP = 0, 1, 2
GRANTED, CONTENDED = 1, 2

HEADER_FIELDS = {"suspendable": (2192, "I"), "suspended": (2196, "I")}
CONTROL_FIELDS = {
    "memory_limit_bytes": (112, "Q"),
    "context_bytes": (120, "Q"),
    "weight_permille": (128, "I"),
    "policy": (132, "I"),
    "inflight_limit_us": (136, "I"),
    "correction_bytes": (192, "q"),
    "grant": (256, "I"),
    "heartbeat": (260, "I"),
}
STATUS_FIELDS = {"tenant": (0, "Q"), "peak_bytes": (8, "Q"), "oom_count": (16, "Q"), "unhooked_count": (24, "Q")}
SLOT_FIELDS = {
    "owner": (0, "Q"),
    "pid_ns": (8, "Q"),
    "host_pid": (16, "I"),
    "flags": (20, "I"),
    "intent": (24, "Q"),
    "ledger": (32, "Q"),
    "applied": (40, "Q"),
    "vmm_bytes": (48, "Q"),
    "pool_bytes": (56, "Q"),
    "context_bytes": (64, "Q"),
    "busy": (128, "I"),
    "waiting": (132, "I"),
    "launches": (136, "Q"),
    "graph_launches": (144, "Q"),
    "waited_ns": (152, "Q"),
    "paced_ns": (160, "Q"),
    "ungated": (168, "Q"),
    "calls": (192, "Q"),
}


@dataclass(frozen=True, slots=True)
class LeasedGpu:
    """One GPU of a lease."""

    uuid: bytes
    memory_limit_bytes: int
    context_bytes: int = 0
    weight_permille: int = 500
    policy: int = POLICY_NONE
    inflight_limit_us: int = 0
    uuid_text: str = ""


def owner_of(pid: int) -> int:
    """Return the word that identifies a process: its start time and its pid."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[19]) << 22 | pid


class LeaseFolder:
    """The three entries of a lease, mapped; a context manager."""

    def __init__(
        self, path: Path, gpus: Sequence[LeasedGpu], cuda_driver: Path | str, nvml_driver: Path | str = ""
    ) -> None:
        self.path = path
        self.gpus = tuple(gpus)
        path.mkdir(parents=True, exist_ok=True)
        (path / "control").write_bytes(self._control(str(cuda_driver), str(nvml_driver)))
        status = struct.pack("<QII", MAGIC, ABI, len(self.gpus)).ljust(PAGE, b"\0")
        (path / "status").write_bytes(status + bytes(STATUS_GPU_BYTES * len(self.gpus)))
        self.control = self._map("control")
        self.status = self._map("status")

    def _control(self, cuda_driver: str, nvml_driver: str) -> bytes:
        header = struct.pack(
            "<QII128s1024s1024s", MAGIC, ABI, len(self.gpus), b"test", cuda_driver.encode(), nvml_driver.encode()
        )
        pages = [header.ljust(PAGE, b"\0")]
        for gpu in self.gpus:
            numbers = (
                gpu.memory_limit_bytes,
                gpu.context_bytes,
                gpu.weight_permille,
                gpu.policy,
                gpu.inflight_limit_us,
            )
            text = gpu.uuid_text or f"GPU-{gpu.uuid.hex()}"
            pages.append(struct.pack("<16s96sQQIII", gpu.uuid, text.encode(), *numbers).ljust(PAGE, b"\0"))
        return b"".join(pages)

    def _map(self, name: str) -> mmap.mmap:
        descriptor = os.open(self.path / name, os.O_RDWR | os.O_CLOEXEC)
        try:
            return mmap.mmap(descriptor, 0)
        finally:
            os.close(descriptor)

    def control_field(self, name: str, gpu: int = 0) -> int:
        """Return a field of the control page."""
        offset, kind = CONTROL_FIELDS[name]
        return int(struct.unpack_from(kind, self.control, PAGE * (1 + gpu) + offset)[0])

    def set_control(self, name: str, value: int, gpu: int = 0) -> None:
        """Change a field of the control page, as the arbiter would."""
        offset, kind = CONTROL_FIELDS[name]
        struct.pack_into(kind, self.control, PAGE * (1 + gpu) + offset, value)

    def set_header(self, name: str, value: int) -> None:
        """Change a field of the control file's header, as the agent would."""
        offset, kind = HEADER_FIELDS[name]
        struct.pack_into(kind, self.control, offset, value)

    def tenant(self, name: str, gpu: int = 0) -> int:
        """Return a field of the tenant's part of the status page."""
        offset, kind = STATUS_FIELDS[name]
        return int(struct.unpack_from(kind, self.status, PAGE + STATUS_GPU_BYTES * gpu + offset)[0])

    def used_bytes(self, gpu: int = 0) -> int:
        """Return the use of all processes in the tenant's word."""
        return (self.tenant("tenant", gpu) >> 30) * UNIT

    def slot(self, index: int, gpu: int = 0) -> dict[str, int]:
        """Return all fields of a slot."""
        base = PAGE + STATUS_GPU_BYTES * gpu + PAGE + SLOT_BYTES * index
        return {
            name: int(struct.unpack_from(kind, self.status, base + offset)[0])
            for name, (offset, kind) in SLOT_FIELDS.items()
        }

    def set_slot(self, index: int, name: str, value: int, gpu: int = 0) -> None:
        """Change a field of a slot."""
        offset, kind = SLOT_FIELDS[name]
        struct.pack_into(kind, self.status, PAGE + STATUS_GPU_BYTES * gpu + PAGE + SLOT_BYTES * index + offset, value)

    def owners(self, gpu: int = 0) -> dict[int, int]:
        """Return the index of each used slot by its owner."""
        found = {self.slot(index, gpu)["owner"]: index for index in range(SLOTS)}
        return {owner: index for owner, index in found.items() if owner}

    def bell(self) -> socket.socket:
        """Open the arbiter's end of the bell, which gets credentials with each message; for paths of any length."""
        bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        bell.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        folder = os.open(self.path, os.O_PATH | os.O_CLOEXEC)
        try:
            bell.bind(f"/proc/self/fd/{folder}/bell")
        finally:
            os.close(folder)
        bell.settimeout(10)
        return bell

    def environment(self, library: Path) -> dict[str, str]:
        """Return the variables that the agent sets for programs of the lease; `library`: the built share library."""
        return {"LD_PRELOAD": str(library), "GPUPOOL_LEASE_DIR": str(self.path)}

    def close(self) -> None:
        """Unmap the pages; the files stay."""
        self.control.close()
        self.status.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
