"""GPU models that can be emulated: the names drivers report and the nominal memory of the cards."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CardModel:
    """A kind of card: its full name as NVML reports it and its memory in MiB."""

    name: str
    memory_mib: int


_GIB = 1024
_KNOWN: dict[str, CardModel] = {
    "T4": CardModel("Tesla T4", 16 * _GIB),
    "P4": CardModel("Tesla P4", 8 * _GIB),
    "K80": CardModel("Tesla K80", 12 * _GIB),
    "P100": CardModel("Tesla P100-PCIE-16GB", 16 * _GIB),
    "V100-16GB": CardModel("Tesla V100-SXM2-16GB", 16 * _GIB),
    "V100-32GB": CardModel("Tesla V100-SXM2-32GB", 32 * _GIB),
    "A10": CardModel("NVIDIA A10", 24 * _GIB),
    "A30": CardModel("NVIDIA A30", 24 * _GIB),
    "A40": CardModel("NVIDIA A40", 48 * _GIB),
    "A100-40GB": CardModel("NVIDIA A100-SXM4-40GB", 40 * _GIB),
    "A100-80GB": CardModel("NVIDIA A100-SXM4-80GB", 80 * _GIB),
    "A6000": CardModel("NVIDIA RTX A6000", 48 * _GIB),
    "L4": CardModel("NVIDIA L4", 24 * _GIB),
    "L40": CardModel("NVIDIA L40", 48 * _GIB),
    "L40S": CardModel("NVIDIA L40S", 48 * _GIB),
    "H100-80GB": CardModel("NVIDIA H100 80GB HBM3", 80 * _GIB),
    "H200": CardModel("NVIDIA H200", 141 * _GIB),
    "B200": CardModel("NVIDIA B200", 180 * _GIB),
    "GTX 1080 Ti": CardModel("NVIDIA GeForce GTX 1080 Ti", 11 * _GIB),
    "RTX 2080 Ti": CardModel("NVIDIA GeForce RTX 2080 Ti", 11 * _GIB),
    "RTX 3090": CardModel("NVIDIA GeForce RTX 3090", 24 * _GIB),
    "RTX 4090": CardModel("NVIDIA GeForce RTX 4090", 24 * _GIB),
    "RTX 5090": CardModel("NVIDIA GeForce RTX 5090", 32 * _GIB),
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
    """The names to offer to people, in the table's order."""
    return tuple(_KNOWN)


def find_model(name: str) -> CardModel | None:
    """The card a person means by a short or a full name; case, spaces and dashes do not matter."""
    return _INDEX.get(_plain(name))


def _plain(text: str) -> str:
    return "".join(c for c in text.lower() if c.isalnum())


_INDEX = (
    {_plain(model.name): model for model in _KNOWN.values()}
    | {_plain(name): model for name, model in _KNOWN.items()}
    | {_plain(short): _KNOWN[name] for short, name in _SHORT.items()}
)
