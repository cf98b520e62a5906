"""The fake driver for emulated GPUs: it is preloaded and simulates the GPUs of the inventory."""

from __future__ import annotations

from pathlib import Path

from gpupool.node.host import native
from gpupool.node.host.native import Product
from gpupool.node.inventory.emulated import EmulatedInventory
from gpupool.node.inventory.fake_driver import VARIABLE
from gpupool.node.ports import SharingHost
from gpupool.node.sharing.preload import Libraries, libraries

FAKES = (Product.FAKE_CUDA, Product.FAKE_NVML)
_CONTEXT_FIELD = 4


def describe_gpus(host: SharingHost) -> dict[str, str] | str:
    """Return the variables by which the fake driver finds the emulated GPUs; or the reason why it cannot."""
    if not isinstance(host.inventory, EmulatedInventory):
        return "This node has no emulated GPUs."
    try:
        return {VARIABLE: str(host.inventory.fake_driver_folder(host.folder, shared=host.shared))}
    except OSError as error:
        return f"The emulated GPUs cannot be described to programs: {error.strerror}."


def context_bytes(environment: dict[str, str]) -> dict[str, int]:
    """Return the size of a CUDA context on each described GPU, by UUID. Raises OSError."""
    found, size = {}, 0
    for line in (Path(environment[VARIABLE]) / "gpus.conf").read_text(encoding="utf-8").splitlines():
        fields = line.split()
        if fields[0] == "mig":
            found[fields[1]] = size
        else:
            found[fields[0]] = size = int(fields[_CONTEXT_FIELD])
    return found


def fake_driver(host: SharingHost) -> tuple[Libraries, dict[str, str]] | None:
    """Return the libraries and variables for a program with whole emulated GPUs; None if not possible."""
    if native.missing():
        return None
    found, environment = libraries(host, FAKES), describe_gpus(host)
    return None if isinstance(found, str) or isinstance(environment, str) else (found, environment)
