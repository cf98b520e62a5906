"""The variables every sharing mode sets: which GPUs a program sees, and what part of them is its own.

====================== ====================================================================================
CUDA_VISIBLE_DEVICES   UUIDs of the program's GPUs; empty without one that CUDA can use, so that it finds none
CUDA_DEVICE_ORDER      ``PCI_BUS_ID``: CUDA numbers the GPUs as nvidia-smi does
NVIDIA_VISIBLE_DEVICES the same for containers that the program starts; ``void`` for none
GPUPOOL_GPUS           ``uuid:permille:memory_mib`` of each GPU, joined by commas
GPUPOOL_GPU_SHARE      the part of each GPU, like ``0.25``: the value for ``set_per_process_memory_fraction``
GPUPOOL_GPU_MEMORY_MIB MiB of each GPU (the least, should they differ)
GPUPOOL_EMULATED       ``1`` when the GPUs are emulated, else absent
====================== ====================================================================================
"""

from __future__ import annotations

from gpupool.domain.supervision import ProcessSpec
from gpupool.domain.units import format_permille

EMULATED_NOTE = "emulated GPU: the program runs on the CPU"
SIMULATED_NOTE = "emulated GPU: a simulation answers for the driver, kernels take time and compute nothing"


def visible_gpus(spec: ProcessSpec, *, simulated: bool = False) -> dict[str, str]:
    """The variables of the table above for a program's allocation.

    ``simulated``: emulated GPUs are shown to CUDA, because the program is given a driver that has them.
    """
    uuids = ",".join(share.gpu_uuid for share in spec.gpus)
    real = "" if spec.emulated else uuids
    return {
        "CUDA_VISIBLE_DEVICES": uuids if simulated else real,
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


def least_permille(spec: ProcessSpec) -> int:
    """The smallest part of a GPU among a program's shares; the program must have one."""
    return min(share.permille for share in spec.gpus)
