"""MIG: a card that its administrator has cut into instances is reported as those instances, each a GPU of its own.

The layout of a card is never changed here. A program that holds an instance is shown it by the UUID that the driver
gave it (``CUDA_VISIBLE_DEVICES=MIG-...``). CUDA uses one instance at a time and knows no peer access between
instances, so they have no links.
"""

from __future__ import annotations

import re
from typing import Any

from gpupool.domain.gpu import Gpu
from gpupool.node.inventory.queries import Queries, as_text

_MIB = 1024 * 1024
_MIG_ENABLED = 1
_MIG_PROFILE = re.compile(r"MIG (\S+)$")
_INDICES_PER_CARD = 100


def is_cut(queries: Queries, handle: Any) -> bool:
    """Whether MIG is on: no program can use such a card but through an instance."""
    current, _ = queries.ask((0, 0), "nvmlDeviceGetMigMode", handle)
    return bool(current == _MIG_ENABLED)


def mig_handles(queries: Queries, handle: Any) -> dict[int, Any]:
    """NVML's handles of a card's instances, by their place on it."""
    most = queries.ask(0, "nvmlDeviceGetMaxMigDeviceCount", handle)
    found = {i: queries.ask(None, "nvmlDeviceGetMigDeviceHandleByIndex", handle, i) for i in range(most)}
    present = {i: instance for i, instance in found.items() if instance is not None}
    if not present:
        queries.warn("MIG is on but it has no instances: nothing of it can be handed out")
    return present


def mig_gpu(queries: Queries, handle: Any, card: Gpu, place: int) -> Gpu | None:
    """An instance as a GPU; None when it has just gone."""
    uuid = as_text(queries.ask("", "nvmlDeviceGetUUID", handle))
    info = queries.ask(None, "nvmlDeviceGetMemoryInfo", handle)
    if not uuid or info is None:
        return None
    profile = _profile(queries, handle, memory_mib := int(info.total) // _MIB)
    return Gpu(
        uuid=uuid,
        index=mig_index(card.index, place),
        model=f"{card.model} MIG {profile}",
        memory_mib=memory_mib,
        pci_bus_id=card.pci_bus_id,
        mig_profile=profile,
        parent_uuid=card.uuid,
    )


def mig_index(card_index: int, place: int) -> int:
    """The index of an instance: unlike that of any card, and the same whatever becomes of other cards."""
    return _INDICES_PER_CARD * (card_index + 1) + place


def _profile(queries: Queries, handle: Any, memory_mib: int) -> str:
    """``3g.40gb``, from the instance's name; drivers that do not tell it there tell slices and memory."""
    name = _MIG_PROFILE.search(as_text(queries.ask("", "nvmlDeviceGetName", handle)))
    if name:
        return name.group(1)
    attributes = queries.ask(None, "nvmlDeviceGetAttributes", handle)
    slices = int(getattr(attributes, "gpuInstanceSliceCount", 0)) or 1
    return f"{slices}g.{-(-memory_mib // 1024)}gb"
