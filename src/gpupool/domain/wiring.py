"""Where the members of a gang are, so that they find each other: one round of a gang's life."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Seat:
    """One attempt of one member: the node it is on, its address, and the ports that are kept free for it there.

    ``interface`` is the name of the network interface that has the address; empty where the node did not find it.
    """

    index: int
    attempt: int
    node: str
    address: str
    ports: tuple[int, ...] = ()
    interface: str = ""

    @property
    def endpoint(self) -> str:
        """``host:port`` of its first port."""
        return endpoint(self.address, self.ports[0])


@dataclass(frozen=True, slots=True)
class Wiring:
    """The members that started together, by index, and a secret that only they share.

    ``round`` counts how often the gang has started; ``formed_at`` is when this one did, in seconds since the epoch.
    """

    round: int
    seats: tuple[Seat, ...]
    secret: str = field(repr=False)
    formed_at: float = 0.0

    def seat_of(self, index: int) -> Seat | None:
        """The seat of a member, whatever its attempt."""
        return next((seat for seat in self.seats if seat.index == index), None)

    def has(self, index: int, attempt: int) -> bool:
        """Whether this very attempt belongs to the round."""
        seat = self.seat_of(index)
        return seat is not None and seat.attempt == attempt

    def rank_of(self, index: int) -> int:
        """The position of a member among those of the round."""
        return next(rank for rank, seat in enumerate(self.seats) if seat.index == index)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Wiring:
        """The inverse of ``to_dict``."""
        seats = tuple(Seat(**{**seat, "ports": tuple(seat["ports"])}) for seat in data["seats"])
        return cls(data["round"], seats, data["secret"], data.get("formed_at", 0.0))


def endpoint(address: str, port: int) -> str:
    """``host:port``, with the brackets that an IPv6 address needs."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
