"""The pages of a lease as bytes: ``control`` and ``status`` of ``native/include/gpupool/pages.h``, documented there.

The agent writes them once, before they are mapped, and reads them afterwards. It never maps them itself: a tenant may
truncate its status file, and the kernel would kill every process that has it mapped. Sizes are in bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from gpupool.domain.nodes.sharing import ComputePolicy

MAGIC = 0x316567617070756E
ABI = 1
MAX_GPUS = 16
SLOTS = 128
PAGE = 4096
SLOT = 256
UNIT = 512
STATUS_GPU = PAGE + SLOT * SLOTS
PATH_LIMIT = 1023
LABEL_LIMIT = 127
HEARTBEAT_OFFSET = 260  # of a GPU's control page
CORRECTION_OFFSET = 192  # likewise
UUID_TEXT_OFFSET, UUID_TEXT_BYTES = 16, 96  # likewise
SUSPENDED_OFFSET = 2196  # of the control header

POLICIES = {ComputePolicy.NONE: 0, ComputePolicy.GUARANTEE: 1, ComputePolicy.CAP: 2}

_CONTROL_HEADER = struct.Struct("=QII128s1024s1024sI")
_CONTROL_GPU = struct.Struct("=16s96sQQIII")
_STATUS_HEADER = struct.Struct("=QII")
_SLOT = struct.Struct("=QQIIQQQQQQ120xQ")
_UNITS_SHIFT = 30
_PID_BITS = 22
_MEASURED = 1  # in the flags of a slot


@dataclass(frozen=True, slots=True)
class GpuPage:
    """The control page of one GPU; ``uuid`` as NVML prints it."""

    uuid: str
    memory_limit_bytes: int
    context_bytes: int
    weight_permille: int
    policy: ComputePolicy


@dataclass(frozen=True, slots=True)
class LedgerSlot:
    """One process of a tenant on one GPU, as written by itself; ``host_pid`` was found by the arbiter.

    ``context_bytes`` of the ledger are the driver's memory for the context, ``measured`` or estimated; the rest was
    requested by the program. ``state`` changes with every operation: equal values before and after mean no change.
    ``calls`` are those of the driver, counted in suspendable leases.
    """

    pid: int
    start: int
    pid_ns: int
    host_pid: int
    ledger_bytes: int
    context_bytes: int
    measured: bool
    state: tuple[int, int]
    calls: int = 0

    @property
    def asked_bytes(self) -> int:
        """Return the memory that the program allocated through the share library."""
        return max(0, self.ledger_bytes - self.context_bytes)


def uuid_bytes(uuid: str) -> bytes:
    """Return the sixteen bytes that CUDA reports for a UUID printed by NVML. Raises ValueError if invalid."""
    digits = uuid.rpartition("EMULATED-")[2] if "EMULATED-" in uuid else uuid.partition("-")[2]
    value = bytes.fromhex(digits.replace("-", ""))
    if len(value) != 16:
        raise ValueError(f"not a UUID: {uuid}")
    return value


def control_pages(
    label: str, cuda_driver: str, nvml_driver: str, gpus: Sequence[GpuPage], *, suspendable: bool = False
) -> bytes:
    """Return a complete control file. Raises ValueError if the values do not fit."""
    paths = [path.encode() for path in (cuda_driver, nvml_driver)]
    if any(len(path) > PATH_LIMIT for path in paths) or not 0 < len(gpus) <= MAX_GPUS:
        raise ValueError("a path is too long, or there are too many GPUs")
    header = _CONTROL_HEADER.pack(MAGIC, ABI, len(gpus), label.encode()[:LABEL_LIMIT], *paths, int(suspendable))
    return b"".join([header.ljust(PAGE, b"\0"), *(_control_gpu(gpu).ljust(PAGE, b"\0") for gpu in gpus)])


def _control_gpu(gpu: GpuPage) -> bytes:
    text = gpu.uuid.encode()
    numbers = (gpu.memory_limit_bytes, gpu.context_bytes, gpu.weight_permille, POLICIES[gpu.policy], 0)
    return _CONTROL_GPU.pack(uuid_bytes(gpu.uuid), text[:95], *numbers)


def status_pages(gpu_count: int) -> bytes:
    """Return a complete status file with free slots."""
    return _STATUS_HEADER.pack(MAGIC, ABI, gpu_count).ljust(PAGE + gpu_count * STATUS_GPU, b"\0")


def control_size(gpu_count: int) -> int:
    """Return the bytes of a control file."""
    return PAGE * (1 + gpu_count)


def status_size(gpu_count: int) -> int:
    """Return the bytes of a status file."""
    return PAGE + gpu_count * STATUS_GPU


def slots_offset(gpu: int) -> int:
    """Return the offset of a GPU's slots in a status file."""
    return PAGE + gpu * STATUS_GPU + PAGE


def heartbeat_offset(gpu: int = 0) -> int:
    """Return the offset of the arbiter's heartbeat in a control file."""
    return PAGE * (1 + gpu) + HEARTBEAT_OFFSET


def correction_offset(gpu: int = 0) -> int:
    """Return the offset of the driver's count beyond the ledgers in a control file."""
    return PAGE * (1 + gpu) + CORRECTION_OFFSET


def read_slots(data: bytes) -> tuple[LedgerSlot, ...]:
    """Return the used slots, from the bytes at ``slots_offset``; a truncated file has fewer."""
    whole = len(data) // SLOT
    found = (_SLOT.unpack_from(data, index * SLOT) for index in range(min(whole, SLOTS)))
    return tuple(_slot(fields) for fields in found if fields[0])


def _slot(fields: tuple[int, ...]) -> LedgerSlot:
    owner, pid_ns, host_pid, flags, intent, ledger, _applied, _vmm, _pool, context_bytes, calls = fields
    return LedgerSlot(
        pid=owner & ((1 << _PID_BITS) - 1),
        start=owner >> _PID_BITS,
        pid_ns=pid_ns,
        host_pid=host_pid,
        ledger_bytes=(ledger >> _UNITS_SHIFT) * UNIT,
        context_bytes=context_bytes,
        measured=bool(flags & _MEASURED),
        state=(intent, ledger),
        calls=calls,
    )
