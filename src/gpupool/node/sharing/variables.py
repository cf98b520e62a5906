"""The variables that every sharing mode sets: visible GPUs and the program's share of them.

====================== ====================================================================================
CUDA_VISIBLE_DEVICES   UUIDs of the program's GPUs; empty if it has none that CUDA can use
CUDA_DEVICE_ORDER      ``PCI_BUS_ID``: the numbering of nvidia-smi
NVIDIA_VISIBLE_DEVICES the same for containers started by the program; ``void`` for none
GPUPOOL_GPUS           ``uuid:permille:memory_mib`` of each GPU, joined by commas
GPUPOOL_GPU_SHARE      the part of each GPU, like ``0.25``: the value for ``set_per_process_memory_fraction``
GPUPOOL_GPU_MEMORY_MIB MiB of each GPU (the least, should they differ)
GPUPOOL_EMULATED       ``1`` when the GPUs are emulated, else absent
====================== ====================================================================================
"""

from __future__ import annotations

from gpupool.domain.units import format_permille
from gpupool.domain.work.program.supervision import ProcessSpec

EMULATED_NOTE = "emulated GPU: the program runs on the CPU"
ADVISORY_NOTE = "memory and compute of this slice are not enforced on this node: mode advisory"
SIMULATED_NOTE = "emulated GPU: a simulated driver is used; kernels take time but compute nothing"
_MIG_PREFIX = "MIG-"  # of the UUIDs that the driver gives to instances


def visible_gpus(spec: ProcessSpec, *, simulated: bool = False) -> dict[str, str]:
    """Return the variables of the table above for a program's allocation.

    ``simulated``: show emulated GPUs to CUDA, because the program gets a fake driver for them.
    """
    uuids = ",".join(share.gpu_uuid for share in spec.gpus)
    real = "" if spec.emulated else uuids
    # The GPUs of a lazy program are not known yet: the share library sets the variable.
    visible = {} if spec.lazy and not spec.gpus else {"CUDA_VISIBLE_DEVICES": uuids if simulated else real}
    return {
        **visible,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "NVIDIA_VISIBLE_DEVICES": real or "void",
        **_allocation(spec),
    }


def _allocation(spec: ProcessSpec) -> dict[str, str]:
    added = {"GPUPOOL_GPUS": ",".join(f"{s.gpu_uuid}:{s.permille}:{s.memory_mib}" for s in spec.gpus)}
    if spec.gpus:
        added["GPUPOOL_GPU_SHARE"] = format_permille(least_permille(spec))
        added["GPUPOOL_GPU_MEMORY_MIB"] = str(min(share.memory_mib for share in spec.gpus))
        if spec.emulated:
            added["GPUPOOL_EMULATED"] = "1"
    return added


def holds_instances(spec: ProcessSpec) -> bool:
    """Return True if a program holds whole MIG instances and nothing else."""
    return bool(spec.gpus) and all(share.whole and share.gpu_uuid.startswith(_MIG_PREFIX) for share in spec.gpus)


def least_permille(spec: ProcessSpec) -> int:
    """Return the smallest share of a GPU among a program's shares; it must have one."""
    return min(share.permille for share in spec.gpus)
