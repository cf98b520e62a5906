"""MIG sites: cards in MIG mode that could get an instance for a request, in preferred order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gpupool.domain.nodes.gpu import Gpu, Node, mentions_mig
from gpupool.domain.nodes.mig import MigCard, MigProfile
from gpupool.domain.units import WHOLE_GPU
from gpupool.scheduling.placement.node_filter import labelled
from gpupool.scheduling.state.cluster import ClusterState, Shape


@dataclass(frozen=True, slots=True)
class MigSite:
    """A card, and the profile of the instance that a request needs there.

    ``removable`` are unused instances of the pool on the card. Without them there could be room.
    """

    node: Node
    card: MigCard
    profile: MigProfile
    removable: tuple[Gpu, ...] = ()

    @property
    def ready(self) -> bool:
        """Return whether the instance fits now."""
        return self.profile.free > 0


def may_have_site(c: ClusterState, shape: Shape) -> bool:
    """Return whether a card in MIG mode has a profile for a shape, whether or not the pool may create it now."""
    wanted = any(map(mentions_mig, shape.request.models))
    return wanted and any(node is not None and node.mig_choices(shape.request) for node in c.nodes)


def mig_sites(c: ClusterState, shape: Shape) -> list[MigSite]:
    """Return the cards on which the pool may create an instance for a shape: those with room first.

    Cards that are full except for unused instances of the pool follow. Among equal cards, the fullest is first, so that
    others stay free for larger profiles.
    """
    found = [site for row in _open_rows(c, shape) for site in _on_node(c, row, shape)]
    return sorted(found, key=lambda site: (not site.ready, site.profile.slices, site.profile.free, site.node.name))


def _open_rows(c: ClusterState, shape: Shape) -> Iterator[int]:
    """Yield the nodes where the pool may create instances, and a shape may be placed now."""
    for row in np.flatnonzero(c.present & c.up).tolist():
        node = c.nodes[row]
        host = c.cpu_free[row] >= shape.cpu_milli and c.mem_free[row] >= shape.mem_mib
        if node is None or not node.creates_mig or not host or not labelled(c, row, shape):
            continue
        if shape.guest is None or c.open_to(shape.guest, np.array([row])).all():
            yield row


def _on_node(c: ClusterState, row: int, shape: Shape) -> Iterator[MigSite]:
    node = c.nodes[row]
    for card, profile in () if node is None else node.mig_choices(shape.request):
        if node is None or node.cordoned_gpus.get(card.uuid):
            continue
        if profile.free > 0:
            yield MigSite(node, card, profile)
            continue
        unused = _unused(c, row, card)
        enough = next((n for n in range(1, len(unused) + 1) if _could_fit(node, card, profile, unused[:n])), 0)
        if enough:
            yield MigSite(node, card, profile, tuple(unused[:enough]))


def _unused(c: ClusterState, row: int, card: MigCard) -> list[Gpu]:
    """Return the instances of the pool on a card that no work holds, smallest first."""
    gpus = [
        gpu
        for slot, gpu in enumerate(c.gpus[row])
        if gpu.on_demand and gpu.parent_uuid == card.uuid and c.gpu_free[row, slot] == WHOLE_GPU and not gpu.foreign
    ]
    return sorted(gpus, key=lambda gpu: gpu.memory_mib)


def _could_fit(node: Node, card: MigCard, profile: MigProfile, removed: list[Gpu]) -> bool:
    """Return whether slices and memory suffice without some instances; the places of the others are not considered."""
    left = [gpu for gpu in node.report.gpus if gpu.parent_uuid == card.uuid and gpu not in removed]
    sizes = [size for gpu in left if (size := card.named(gpu.mig_profile)) is not None]
    largest = max(card.profiles, key=lambda each: each.memory_mib)
    slices = sum(size.slices for size in sizes) + profile.slices
    memory = sum(size.memory_mib for size in sizes) + profile.memory_mib
    return slices <= largest.slices and memory <= largest.memory_mib
