"""Sharing modes and compute policies. ``TRAITS`` declares each mode; all other code asks for its traits.

``gpupool.node.sharing`` has one module or folder for each mode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache


class ComputePolicy(StrEnum):
    """The meaning of a share of a GPU for compute time."""

    GUARANTEE = "guarantee"  # the share while others want the GPU, all of it while nobody does
    CAP = "cap"  # never more than the share
    NONE = "none"  # memory only: the hardware shares time


class Sharing(StrEnum):
    """Sharing mode: limits a program to its share of a GPU. ``docs/sharing.md`` lists what each mode guarantees."""

    WHOLE = "whole"  # no other program on the GPU
    SHARE = "share"  # the share library: memory limit and time leases
    MPS = "mps"  # NVIDIA's Multi-Process Service: memory limit and a limit on the multiprocessors used at a time
    MIG = "mig"  # a whole MIG instance
    ADVISORY = "advisory"  # the program gets its share in variables; nothing enforces it


@dataclass(frozen=True, slots=True)
class SharingTraits:
    """The properties of a sharing mode on which other code decides.

    ``guarantee`` is a sentence; ``{compute}`` in it stands for the text of the compute policy. ``summary`` explains the
    mode in a form. ``vgpu_mode`` is its name in the annotation ``nvidia.com/vgpu-mode`` of HAMi.
    """

    guarantee: str
    compute: Mapping[ComputePolicy, str] = field(default_factory=dict)
    supports_parts: bool = True  # of a GPU
    partitioned: bool = False  # exists only on GPUs that an administrator has partitioned
    on_every_node: bool = False  # also on nodes that do not report it
    single_gpu: bool = False  # a program has one GPU, or a part of one
    single_user: bool = False  # all programs on a GPU are of one user
    enforced: bool = True
    attaches_later: bool = False  # a program can start without GPUs and get them when it uses CUDA
    summary: str = ""
    vgpu_mode: str = ""


TRAITS: Mapping[str, SharingTraits] = {
    Sharing.WHOLE: SharingTraits(
        "No other workload of the pool uses these GPUs.", supports_parts=False, on_every_node=True
    ),
    Sharing.SHARE: SharingTraits(
        "The share library limits its memory to its share; {compute}.",
        {
            ComputePolicy.GUARANTEE: "its share of compute time while others use the GPU, all of it otherwise",
            ComputePolicy.CAP: "never more than its share of compute time",
            ComputePolicy.NONE: "compute time is not divided: the hardware shares it",
        },
        attaches_later=True,
        summary="memory and time limits enforced",
        vgpu_mode="hami-core",
    ),
    Sharing.MPS: SharingTraits(
        "MPS limits its memory to its share; {compute}; a fault of another program can end it.",
        {
            ComputePolicy.GUARANTEE: "as much compute as is free: MPS caps, it does not reserve",
            ComputePolicy.CAP: "at most its share of the GPU's processors at a time",
            ComputePolicy.NONE: "compute is not divided",
        },
        single_gpu=True,
        single_user=True,
        vgpu_mode="mps",
    ),
    Sharing.MIG: SharingTraits(
        "The hardware isolates memory and compute of the MIG instance.",
        supports_parts=False,
        partitioned=True,
        vgpu_mode="mig",
    ),
    Sharing.ADVISORY: SharingTraits(
        "The program gets its share in variables. The share is reserved, but nothing enforces it.", enforced=False
    ),
}
_OF_PACKAGES = SharingTraits(
    "The shares of a GPU never exceed one GPU in total; the node decides how they are isolated."
)


def traits_of(mode: str) -> SharingTraits:
    """Return the traits of a mode; an unknown one is of an installed package, or not yet decided (empty)."""
    return TRAITS.get(mode, _OF_PACKAGES)


PART_MODES = tuple(mode for mode in Sharing if TRAITS[mode].supports_parts)
WHOLE_MODES = tuple(mode for mode in Sharing if not TRAITS[mode].supports_parts)
POLICIES = tuple(mode for mode in Sharing if not TRAITS[mode].partitioned)  # what an administrator may set for GPUs
LAZY_MODE = next(mode for mode in PART_MODES if TRAITS[mode].attaches_later)
UNENFORCED = next(mode for mode in PART_MODES if not TRAITS[mode].enforced)  # where a node can enforce nothing


def mode_of_whole(*, partitioned: bool) -> Sharing:
    """Return the mode of whole GPUs, or of whole instances of partitioned ones."""
    return next(mode for mode in WHOLE_MODES if TRAITS[mode].partitioned is partitioned)


def usable_policies(offered: Sequence[str]) -> tuple[Sharing, ...]:
    """Return the modes that an administrator may set on a node that offers these (empty: unknown)."""
    return tuple(m for m in POLICIES if not offered or TRAITS[m].on_every_node or m in offered)


@lru_cache(maxsize=256)
def describe_guarantee(mode: str, compute: ComputePolicy) -> str:
    """Return a sentence that says what a mode guarantees; for an unknown mode, that the node decides."""
    traits = traits_of(mode)
    return traits.guarantee.format(compute=traits.compute.get(compute, ""))
