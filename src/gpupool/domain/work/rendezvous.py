"""The addresses of a gang's members, by which they find each other: one round of the gang."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class MemberAddress:
    """One attempt of one member: its node, its address, and the ports reserved for it there.

    ``interface`` is the network interface that has the address; empty if the node did not find it.
    """

    index: int
    attempt: int
    node: str
    address: str
    ports: tuple[int, ...] = ()
    interface: str = ""

    @property
    def endpoint(self) -> str:
        """Return ``host:port`` of its first port."""
        return endpoint(self.address, self.ports[0])


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """The members that started together, by index, and a secret that only they share.

    ``round`` counts the starts of the gang; ``formed_at`` is the time of this start, in seconds since the epoch.
    """

    round: int
    seats: tuple[MemberAddress, ...]
    secret: str = field(repr=False)
    formed_at: float = 0.0

    def seat_of(self, index: int) -> MemberAddress | None:
        """Return the address of a member, regardless of its attempt."""
        return next((seat for seat in self.seats if seat.index == index), None)

    def has(self, index: int, attempt: int) -> bool:
        """Return whether this attempt belongs to the round."""
        seat = self.seat_of(index)
        return seat is not None and seat.attempt == attempt

    def rank_of(self, index: int) -> int:
        """Return the position of a member among those of the round."""
        return next(rank for rank, seat in enumerate(self.seats) if seat.index == index)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)


def endpoint(address: str, port: int) -> str:
    """Return ``host:port``, with the brackets that an IPv6 address needs."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
