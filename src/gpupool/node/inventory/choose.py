"""Which inventory a node uses: real GPUs when there are any, else emulated ones that say so."""

from __future__ import annotations

from importlib.metadata import entry_points

from gpupool.domain.errors import GpupoolError
from gpupool.domain.units import format_mib
from gpupool.node.inventory.emulated import DEFAULT_EMULATION, EmulatedInventory, parse_emulation
from gpupool.node.inventory.host import read_host
from gpupool.node.inventory.nvml import NoGpusError, NvmlInventory
from gpupool.node.ports import Inventory

ENTRY_POINTS = "gpupool.inventories"
_BUILT_IN = frozenset({NvmlInventory.name, EmulatedInventory.name})


def open_inventory(emulate: str | None, node_name: str | None) -> Inventory:
    """The inventory of this machine.

    ``emulate`` like ``4xT4,2xV100`` asks for emulated GPUs (empty: one T4); None looks for real ones: NVML's, then
    those of inventories that others have added, else one emulated T4 with a warning in its reports that says why.
    Raises ``GpupoolError(INVALID_REQUEST)`` for a bad ``emulate``.
    """
    if emulate is not None:
        return EmulatedInventory(node_name, parse_emulation(emulate))
    try:
        return NvmlInventory(node_name)
    except NoGpusError as error:
        return _added_by_others(read_host(node_name).name) or _instead(node_name, error.reason)


def _added_by_others(node_name: str) -> Inventory | None:
    for point in entry_points(group=ENTRY_POINTS):
        if point.name not in _BUILT_IN:
            try:
                found: Inventory = point.load().open(node_name, "")
            except GpupoolError:
                continue
            return found
    return None


def _instead(node_name: str | None, reason: str) -> Inventory:
    cards = parse_emulation(DEFAULT_EMULATION)
    what = f"{len(cards)} {cards[0].name} with {format_mib(cards[0].memory_mib)}"
    return EmulatedInventory(node_name, cards, (f"No GPUs: {reason}. Emulating {what}: programs run on the CPU.",))
