"""Cards on which MIG instances can be created, as a node reports them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MigProfile:
    """A size of MIG instances of a card, such as ``3g.40gb``.

    ``slices`` are those of the processors. ``most`` instances fit on an empty card, ``free`` more fit now.
    """

    name: str
    slices: int
    memory_mib: int
    most: int
    free: int


@dataclass(frozen=True, slots=True)
class MigCard:
    """A card in MIG mode, with the profiles of its instances. It is not a GPU of the node: its instances are."""

    uuid: str
    index: int
    model: str
    profiles: tuple[MigProfile, ...] = ()

    def model_of(self, profile: MigProfile) -> str:
        """Return the model of an instance, as the inventory reports it."""
        return f"{self.model} MIG {profile.name}"

    def named(self, name: str) -> MigProfile | None:
        """Return the profile of a name."""
        return next((profile for profile in self.profiles if profile.name == name), None)
