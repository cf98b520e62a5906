"""MIG instances: a GPU in MIG mode is reported as its instances.

``mig_instances`` creates and destroys them. A program sees its instance by the UUID from the driver
(``CUDA_VISIBLE_DEVICES=MIG-...``). CUDA uses one instance at a time without peer access between instances, so they have
no links.
"""

from __future__ import annotations

import re
from typing import Any

from gpupool.domain.nodes.gpu import Gpu
from gpupool.node.inventory.queries import Queries, as_text

_MIB = 1024 * 1024
_MIG_ENABLED = 1
_MIG_PROFILE = re.compile(r"MIG (\S+)$")
_INDICES_PER_CARD = 100


def has_mig(queries: Queries, handle: Any) -> bool:
    """Return True if MIG is on: programs can use such a GPU only through an instance."""
    current, _ = queries.ask((0, 0), "nvmlDeviceGetMigMode", handle)
    return bool(current == _MIG_ENABLED)


def mig_handles(queries: Queries, handle: Any) -> dict[int, Any]:
    """Return NVML's handles of a GPU's instances, by their position."""
    most = queries.ask(0, "nvmlDeviceGetMaxMigDeviceCount", handle)
    found = {i: queries.ask(None, "nvmlDeviceGetMigDeviceHandleByIndex", handle, i) for i in range(most)}
    present = {i: instance for i, instance in found.items() if instance is not None}
    if not present:
        queries.warn("MIG is on but it has no instances, so programs cannot use it")
    return present


def mig_gpu(queries: Queries, handle: Any, card: Gpu, place: int) -> Gpu | None:
    """Return an instance as a GPU; None if it was just removed."""
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
    """Return the index of an instance: different from all GPU indices, and stable when other GPUs change."""
    return _INDICES_PER_CARD * (card_index + 1) + place


def _profile(queries: Queries, handle: Any, memory_mib: int) -> str:
    """Return the profile (``3g.40gb``) from the instance's name, or from slices and memory with some drivers."""
    name = _MIG_PROFILE.search(as_text(queries.ask("", "nvmlDeviceGetName", handle)))
    if name:
        return name.group(1)
    attributes = queries.ask(None, "nvmlDeviceGetAttributes", handle)
    slices = int(getattr(attributes, "gpuInstanceSliceCount", 0)) or 1
    return f"{slices}g.{-(-memory_mib // 1024)}gb"
