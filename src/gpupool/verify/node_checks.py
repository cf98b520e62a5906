"""The checks of the node around its GPUs: driver files, device modules and shared memory."""

from __future__ import annotations

import os
import re
from pathlib import Path

from gpupool.verify.results import Check, CheckOutcome

_MIN_SHM_MIB = 1024  # NCCL and data loaders of PyTorch need it
_VERSION = re.compile(r"Kernel Module\D+?(\d+(?:\.\d+)+)")


def check_node(driver_version: str, *, emulated: bool, root: Path = Path("/")) -> list[Check]:
    """Return the checks of the node. ``driver_version`` is that of the driver's libraries."""
    return [_driver(driver_version, root, emulated=emulated), _uvm(root, emulated=emulated), _shm(root)]


def _driver(libraries: str, root: Path, *, emulated: bool) -> Check:
    if emulated:
        return Check("driver", CheckOutcome.SKIPPED, "the GPUs are emulated")
    try:
        match = _VERSION.search((root / "proc/driver/nvidia/version").read_text())
    except OSError:
        match = None
    if match is None:
        return Check("driver", CheckOutcome.SKIPPED, "the version of the kernel module cannot be read")
    if match[1] != libraries:
        note = f"the kernel module has version {match[1]}, the libraries {libraries}: restart the node"
        return Check("driver", CheckOutcome.FAIL, note)
    return Check("driver")


def _uvm(root: Path, *, emulated: bool) -> Check:
    if emulated:
        return Check("uvm", CheckOutcome.SKIPPED, "the GPUs are emulated")
    if not (root / "dev/nvidia-uvm").exists():
        return Check("uvm", CheckOutcome.FAIL, "/dev/nvidia-uvm is missing: run 'nvidia-modprobe -u -c=0' as root")
    return Check("uvm")


def _shm(root: Path) -> Check:
    try:
        found = os.statvfs(root / "dev/shm")
    except OSError:
        return Check("shared-memory", CheckOutcome.SKIPPED, "shared memory cannot be read")
    size = found.f_frsize * found.f_blocks // 2**20
    note = f"shared memory has {size} MiB: programs on several GPUs need more" if size < _MIN_SHM_MIB else ""
    return Check("shared-memory", note=note, values={"size_mib": float(size)})
