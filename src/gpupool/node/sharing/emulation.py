"""Emulated GPUs as programs see them: a fake driver, preloaded, that simulates the cards of the inventory."""

from __future__ import annotations

from pathlib import Path

from gpupool.node import native
from gpupool.node.inventory.emulated import EmulatedInventory
from gpupool.node.inventory.fake_driver import VARIABLE
from gpupool.node.native import Product
from gpupool.node.ports import SharingHost
from gpupool.node.sharing.preload import Libraries, libraries

_FAKES = (Product.FAKE_CUDA, Product.FAKE_NVML)
_CONTEXT_FIELD = 4


def describe_gpus(host: SharingHost) -> dict[str, str] | str:
    """The variables by which the fake driver finds the node's emulated GPUs; or why it cannot."""
    if not isinstance(host.inventory, EmulatedInventory):
        return "These GPUs are not simulated here."
    try:
        return {VARIABLE: str(host.inventory.fake_driver_folder(host.folder, shared=host.shared))}
    except OSError as error:
        return f"The emulated GPUs cannot be described to programs: {error.strerror}."


def context_bytes(environment: dict[str, str]) -> dict[str, int]:
    """By UUID, what a context needs on each GPU described. Raises OSError."""
    found, size = {}, 0
    for line in (Path(environment[VARIABLE]) / "gpus.conf").read_text(encoding="utf-8").splitlines():
        fields = line.split()
        if fields[0] == "mig":
            found[fields[1]] = size
        else:
            found[fields[0]] = size = int(fields[_CONTEXT_FIELD])
    return found


def fake_driver(host: SharingHost) -> tuple[Libraries, dict[str, str]] | None:
    """What to preload into a program that has emulated GPUs to itself, and its variables; None where that cannot be."""
    if native.missing():
        return None
    found, environment = libraries(host, _FAKES), describe_gpus(host)
    return None if isinstance(found, str) or isinstance(environment, str) else (found, environment)
