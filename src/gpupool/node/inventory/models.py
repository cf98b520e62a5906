"""GPU models that can be emulated, with the names that drivers report and nominal memory."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CardModel:
    """A GPU model: full name as reported by NVML, memory in MiB, and properties for the simulation.

    ``mig`` are the profiles of its MIG instances, in order. ``mig_mode``: MIG mode is on, also without instances.
    """

    name: str
    memory_mib: int
    multiprocessors: int = 40
    capability: str = "7.5"
    mig: tuple[str, ...] = ()
    mig_mode: bool = False


_GIB = 1024
_KNOWN: dict[str, CardModel] = {
    "T4": CardModel("Tesla T4", 16 * _GIB, 40, "7.5"),
    "P4": CardModel("Tesla P4", 8 * _GIB, 20, "6.1"),
    "K80": CardModel("Tesla K80", 12 * _GIB, 13, "3.7"),
    "P100": CardModel("Tesla P100-PCIE-16GB", 16 * _GIB, 56, "6.0"),
    "V100-16GB": CardModel("Tesla V100-SXM2-16GB", 16 * _GIB, 80, "7.0"),
    "V100-32GB": CardModel("Tesla V100-SXM2-32GB", 32 * _GIB, 80, "7.0"),
    "A10": CardModel("NVIDIA A10", 24 * _GIB, 72, "8.6"),
    "A30": CardModel("NVIDIA A30", 24 * _GIB, 56, "8.0"),
    "A40": CardModel("NVIDIA A40", 48 * _GIB, 84, "8.6"),
    "A100-40GB": CardModel("NVIDIA A100-SXM4-40GB", 40 * _GIB, 108, "8.0"),
    "A100-80GB": CardModel("NVIDIA A100-SXM4-80GB", 80 * _GIB, 108, "8.0"),
    "A6000": CardModel("NVIDIA RTX A6000", 48 * _GIB, 84, "8.6"),
    "L4": CardModel("NVIDIA L4", 24 * _GIB, 58, "8.9"),
    "L40": CardModel("NVIDIA L40", 48 * _GIB, 142, "8.9"),
    "L40S": CardModel("NVIDIA L40S", 48 * _GIB, 142, "8.9"),
    "H100-80GB": CardModel("NVIDIA H100 80GB HBM3", 80 * _GIB, 132, "9.0"),
    "H200": CardModel("NVIDIA H200", 141 * _GIB, 132, "9.0"),
    "B200": CardModel("NVIDIA B200", 180 * _GIB, 148, "10.0"),
    "GTX 1080 Ti": CardModel("NVIDIA GeForce GTX 1080 Ti", 11 * _GIB, 28, "6.1"),
    "RTX 2080 Ti": CardModel("NVIDIA GeForce RTX 2080 Ti", 11 * _GIB, 68, "7.5"),
    "RTX 3090": CardModel("NVIDIA GeForce RTX 3090", 24 * _GIB, 82, "8.6"),
    "RTX 4090": CardModel("NVIDIA GeForce RTX 4090", 24 * _GIB, 128, "8.9"),
    "RTX 5090": CardModel("NVIDIA GeForce RTX 5090", 32 * _GIB, 170, "12.0"),
}
_SHORT = {
    "V100": "V100-16GB",
    "A100": "A100-40GB",
    "H100": "H100-80GB",
    "1080Ti": "GTX 1080 Ti",
    "2080Ti": "RTX 2080 Ti",
    "3090": "RTX 3090",
    "4090": "RTX 4090",
    "5090": "RTX 5090",
}


def known_models() -> tuple[str, ...]:
    """Return the names to show to users, in the table's order."""
    return tuple(_KNOWN)


def find_model(name: str) -> CardModel | None:
    """Return the model with this short or full name; case, spaces and dashes are ignored."""
    return _INDEX.get(_plain(name))


_MIG_PROFILE = re.compile(r"([1-7])g\.([1-9]\d{0,2})gb(\+[a-z.]{2,8})?")


def is_mig_profile(text: str) -> bool:
    """Return True for a profile such as ``3g.40gb`` or ``1g.10gb+me``."""
    return _MIG_PROFILE.fullmatch(text) is not None


def mig_slices(profile: str) -> int:
    """Return how many sevenths of a GPU's processors an instance of this profile has."""
    return int(profile.partition("g")[0])


def mig_memory_mib(profile: str) -> int:
    """Return the nominal memory of an instance of this profile."""
    return int(profile.partition(".")[2].partition("gb")[0]) * _GIB


def _plain(text: str) -> str:
    return "".join(c for c in text.lower() if c.isalnum())


_INDEX = (
    {_plain(model.name): model for model in _KNOWN.values()}
    | {_plain(name): model for name, model in _KNOWN.items()}
    | {_plain(short): _KNOWN[name] for short, name in _SHORT.items()}
)
