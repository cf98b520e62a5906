"""How the GPUs of a machine reach each other, in the words of ``nvidia-smi topo -m``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpupool.node.inventory.queries import NvmlCode, Queries, as_text

# nvmlGpuTopologyLevel_t of nvml.h
_LEVELS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_NVLINK_MAX = 36
_REMOTE_IS_SWITCH = 2
_NO_SUCH_LINK = frozenset({NvmlCode.INVALID_ARGUMENT})


@dataclass(frozen=True, slots=True)
class _NvLinks:
    """Active NVLinks of one card: how many end at each PCI address, and how many at a switch."""

    to_cards: Mapping[str, int]
    to_switch: int


def bus_id(info: Any) -> str:
    """The PCI address of an NVML PCI record, like ``00000000:65:00.0``."""
    return as_text(getattr(info, "busId", "")).lower()


def links_between(queries: Mapping[int, Queries], handles: Mapping[int, Any]) -> dict[int, dict[int, str]]:
    """For each GPU index the links to every other: ``NV4`` for four NVLinks, else where their PCI paths meet."""
    links: dict[int, dict[int, str]] = {index: {} for index in handles}
    if len(handles) < 2:
        return links
    address = {i: bus_id(queries[i].ask(None, "nvmlDeviceGetPciInfo", handle)) for i, handle in handles.items()}
    nvlinks = {i: _nvlinks(queries[i], handle) for i, handle in handles.items()}
    for one in handles:
        for other in (index for index in handles if index > one):
            count = _joint_nvlinks(nvlinks[one], nvlinks[other], address[other])
            name = f"NV{count}" if count else _pci_path(queries[one], handles[one], handles[other])
            if name:
                links[one][other] = links[other][one] = name
    return links


def _joint_nvlinks(one: _NvLinks, other: _NvLinks, other_address: str) -> int:
    """Direct links; or, on boards with NVSwitch, as many as both have to the switches."""
    return one.to_cards.get(other_address, 0) or min(one.to_switch, other.to_switch)


def _nvlinks(queries: Queries, handle: Any) -> _NvLinks:
    to_cards: dict[str, int] = {}
    to_switch = 0
    for link in range(_NVLINK_MAX):
        state = queries.ask(None, "nvmlDeviceGetNvLinkState", handle, link, silent=_NO_SUCH_LINK)
        if state is None:
            break
        if not state:
            continue
        if queries.ask(0, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, link) == _REMOTE_IS_SWITCH:
            to_switch += 1
            continue
        address = bus_id(queries.ask(None, "nvmlDeviceGetNvLinkRemotePciInfo", handle, link))
        to_cards[address] = to_cards.get(address, 0) + 1
    to_cards.pop("", None)
    return _NvLinks(to_cards, to_switch)


def _pci_path(queries: Queries, one: Any, other: Any) -> str:
    return _LEVELS.get(queries.ask(-1, "nvmlDeviceGetTopologyCommonAncestor", one, other), "")
