"""The pages of a lease as bytes: ``control`` and ``status`` of ``native/include/gpupool/pages.h``, which explains them.

The agent writes them once, before anybody maps them, and reads them afterwards; it never maps them itself, because a
tenant may cut its status file short and whoever maps it would be killed by the kernel. Sizes are in bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from gpupool.domain.gpu import ComputePolicy

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

POLICIES = {ComputePolicy.NONE: 0, ComputePolicy.GUARANTEE: 1, ComputePolicy.CAP: 2}

_CONTROL_HEADER = struct.Struct("=QII128s1024s1024s")
_CONTROL_GPU = struct.Struct("=16s96sQQIII")
_STATUS_HEADER = struct.Struct("=QII")
_SLOT = struct.Struct("=QQIIQQQQQQ")
_UNITS_SHIFT = 30
_PID_BITS = 22


@dataclass(frozen=True, slots=True)
class GpuPage:
    """What a control page says of one GPU; ``uuid`` as NVML prints it."""

    uuid: str
    memory_limit_bytes: int
    context_bytes: int
    weight_permille: int
    policy: ComputePolicy


@dataclass(frozen=True, slots=True)
class Slot:
    """One process of a tenant on one GPU, as it says of itself; ``host_pid`` is what the arbiter found it to be.

    ``state`` has the words that change with every operation: equal ones before and after mean that nothing happened.
    """

    pid: int
    start: int
    pid_ns: int
    host_pid: int
    ledger_bytes: int
    context_bytes: int
    state: tuple[int, int]


def uuid_bytes(uuid: str) -> bytes:
    """The sixteen bytes that CUDA gives for a UUID that NVML prints; raises ValueError for one it would not print."""
    digits = uuid.rpartition("EMULATED-")[2] if "EMULATED-" in uuid else uuid.partition("-")[2]
    value = bytes.fromhex(digits.replace("-", ""))
    if len(value) != 16:
        raise ValueError(f"not a UUID: {uuid}")
    return value


def control_pages(label: str, cuda_driver: str, nvml_driver: str, gpus: Sequence[GpuPage]) -> bytes:
    """A whole control file. Raises ValueError for what does not fit."""
    paths = [path.encode() for path in (cuda_driver, nvml_driver)]
    if any(len(path) > PATH_LIMIT for path in paths) or not 0 < len(gpus) <= MAX_GPUS:
        raise ValueError("a path is too long, or there are too many GPUs")
    header = _CONTROL_HEADER.pack(MAGIC, ABI, len(gpus), label.encode()[:LABEL_LIMIT], *paths)
    return b"".join([header.ljust(PAGE, b"\0"), *(_control_gpu(gpu).ljust(PAGE, b"\0") for gpu in gpus)])


def _control_gpu(gpu: GpuPage) -> bytes:
    text = gpu.uuid.encode()
    numbers = (gpu.memory_limit_bytes, gpu.context_bytes, gpu.weight_permille, POLICIES[gpu.policy], 0)
    return _CONTROL_GPU.pack(uuid_bytes(gpu.uuid), text[:95], *numbers)


def status_pages(gpu_count: int) -> bytes:
    """A whole status file in which no slot is taken."""
    return _STATUS_HEADER.pack(MAGIC, ABI, gpu_count).ljust(PAGE + gpu_count * STATUS_GPU, b"\0")


def control_size(gpu_count: int) -> int:
    """Bytes of a control file."""
    return PAGE * (1 + gpu_count)


def status_size(gpu_count: int) -> int:
    """Bytes of a status file."""
    return PAGE + gpu_count * STATUS_GPU


def slots_offset(gpu: int) -> int:
    """Where in a status file the slots of a GPU begin."""
    return PAGE + gpu * STATUS_GPU + PAGE


def heartbeat_offset(gpu: int = 0) -> int:
    """Where in a control file the arbiter's heartbeat is."""
    return PAGE * (1 + gpu) + HEARTBEAT_OFFSET


def read_slots(data: bytes) -> tuple[Slot, ...]:
    """The slots that are taken, from the bytes at ``slots_offset``; what a tenant has cut off is not there."""
    whole = len(data) // SLOT
    found = (_SLOT.unpack_from(data, index * SLOT) for index in range(min(whole, SLOTS)))
    return tuple(_slot(fields) for fields in found if fields[0])


def _slot(fields: tuple[int, ...]) -> Slot:
    owner, pid_ns, host_pid, _flags, intent, ledger, _applied, _vmm, _pool, context_bytes = fields
    return Slot(
        pid=owner & ((1 << _PID_BITS) - 1),
        start=owner >> _PID_BITS,
        pid_ns=pid_ns,
        host_pid=host_pid,
        ledger_bytes=(ledger >> _UNITS_SHIFT) * UNIT,
        context_bytes=context_bytes,
        state=(intent, ledger),
    )
