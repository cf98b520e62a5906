"""The checks of GPUs: driver, health, foreign processes, device files, and enforcement of slices."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from gpupool.daemon.doctor.check import (
    DoctorContext,
    Finding,
    NamedCheck,
    count,
    entries,
    fine,
    problem,
    read_text,
    some,
    warning,
)
from gpupool.domain.nodes.gpu import Gpu, GpuHealth, NodeReport
from gpupool.node.host import native
from gpupool.node.host.paths import ReplicaFolder
from gpupool.node.host.records import ShepherdRecord
from gpupool.node.inventory.nvml import NoGpusError, NvmlInventory
from gpupool.node.sharing.drivers import CUDA, find_drivers

_NVIDIA_VENDOR = "0x10de"
_DISPLAY_CLASS = "0x03"
_DEVICE = re.compile(r"nvidia\d+")


def gpus(context: DoctorContext) -> Iterator[Finding]:
    """Check the driver and its report of each GPU."""
    if context.emulate:
        yield fine("driver", "GPUs are emulated: no driver is needed and programs run on the CPU.")
        return
    try:
        inventory = NvmlInventory(nvml=context.nvml)
    except NoGpusError as error:
        yield _no_gpus(context, error)
        return
    report = inventory.report()
    yield _driver(report)
    found = inventory.gpus(_pool_pids(context))
    yield from _health(found)
    yield from _foreign(found)


def has_gpus(context: DoctorContext) -> bool:
    """Return whether the pool allocates real GPUs here, or would if their driver worked."""
    if context.emulate or _has_nvidia_card(context):
        return not context.emulate
    try:
        NvmlInventory(nvml=context.nvml)
    except NoGpusError:
        return False
    return True


def _no_gpus(context: DoctorContext, error: NoGpusError) -> Finding:
    if _has_nvidia_card(context):
        return problem("driver", f"This machine has an NVIDIA card but cannot use it: {error.reason}.", error.hint)
    return warning(
        "driver",
        f"No GPUs: {error.reason}. The pool will emulate one and run programs on the CPU.",
        "If this machine has an NVIDIA GPU, install its driver. Otherwise --emulate selects emulated GPUs.",
    )


def _has_nvidia_card(context: DoctorContext) -> bool:
    return any(
        read_text(device / "vendor").strip() == _NVIDIA_VENDOR
        and read_text(device / "class").startswith(_DISPLAY_CLASS)
        for device in entries(context.root / "sys/bus/pci/devices")
    )


def _driver(report: NodeReport) -> Finding:
    names = some([gpu.model for gpu in report.gpus])
    sentence = (
        f"{count(len(report.gpus), 'GPU')} ({names}), driver {report.driver_version}, CUDA {report.cuda_version}."
    )
    if report.warnings:
        return warning("driver", f"{sentence} Warnings: {some(list(report.warnings))}.", "See 'nvidia-smi -q'.")
    return fine("driver", sentence)


def _health(found: tuple[Gpu, ...]) -> Iterator[Finding]:
    for gpu in found:
        sentence = f"GPU {gpu.index} ({gpu.model}): {gpu.health_note}."
        if gpu.health is GpuHealth.FAILED:
            yield problem("gpu-health", sentence, "The GPU is not allocated. Reset it (nvidia-smi -r) or replace it.")
        elif gpu.health is GpuHealth.DEGRADED:
            yield warning("gpu-health", sentence, "Reset it (nvidia-smi -r) when no job is on it.")
    if found and all(gpu.health is GpuHealth.OK for gpu in found):
        yield fine("gpu-health", "No GPU reports errors.")


def _foreign(found: tuple[Gpu, ...]) -> Iterator[Finding]:
    busy = [gpu for gpu in found if gpu.foreign]
    for gpu in busy:
        who = some([f"{p.name} (pid {p.pid}) of {p.user} with {p.memory_mib} MiB" for p in gpu.foreign])
        yield warning(
            "gpus-in-use",
            f"GPU {gpu.index} is used by {count(len(gpu.foreign), 'process')} outside the pool: {who}.",
            "The GPU is not allocated until they end. Run them through the pool, or stop them.",
        )
    if not busy:
        yield fine("gpus-in-use", "No process outside the pool uses a GPU.")


def _pool_pids(context: DoctorContext) -> frozenset[int]:
    records = (ShepherdRecord.read(ReplicaFolder(folder)) for folder in entries(context.node_state.replicas))
    pids = {pid for record in records if record is not None for pid in (record.pid, record.program)}
    return frozenset(pid for pid in pids if pid is not None)


def devices(context: DoctorContext) -> Iterator[Finding]:
    """Check the device files that CUDA opens."""
    if context.emulate or not _has_nvidia_card(context):
        yield fine("devices", "No NVIDIA device files are needed.")
        return
    folder = context.root / "dev"
    cards = [path.name for path in entries(folder) if _DEVICE.fullmatch(path.name)]
    wanted = [*(cards or ["nvidia0"]), "nvidiactl", "nvidia-uvm"]
    missing = [name for name in wanted if not (folder / name).exists()]
    closed = [name for name in wanted if name not in missing and not os.access(folder / name, os.R_OK | os.W_OK)]
    if missing:
        yield problem(
            "devices",
            f"Missing in /dev: {some(missing)}.",
            "Run 'nvidia-modprobe -u -c=0' as root, or enable nvidia-persistenced; in a container pass the devices in.",
        )
    if closed:
        yield problem(
            "devices",
            f"This user may not open {some(['/dev/' + name for name in closed])}.",
            "Join the group that owns them (often 'video' or 'render'), or make them mode 0666 as the driver does.",
        )
    if not missing and not closed:
        yield fine("devices", f"The files of {count(len(cards), 'GPU')} exist and can be opened.")


def slices(context: DoctorContext) -> Iterator[Finding]:
    """Check that shares of GPUs can be enforced here."""
    if why := native.missing():
        yield warning(
            "slices",
            "Slices of GPUs are not enforced: the native parts are missing, so programs only get variables.",
            why,
        )
    elif has_gpus(context) and not find_drivers().cuda:
        yield warning(
            "slices",
            f"Slices of GPUs are not enforced: {CUDA} is not found.",
            "Run ldconfig, or install the CUDA part of the NVIDIA driver.",
        )
    else:
        yield fine("slices", "Slices of GPUs can be enforced.")


CHECKS: list[NamedCheck] = [("driver", gpus), ("devices", devices), ("slices", slices)]
