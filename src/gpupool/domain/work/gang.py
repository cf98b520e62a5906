"""Gangs: replicas of one workload that start together or not at all, and the addresses of their members."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Gang:
    """The size and topology of a gang.

    At least ``least`` replicas start together, or none; the others, up to ``most``, join as GPUs become free.
    ``within`` is the node label (``rack``, ``zone``, ...; ``node`` for one node) whose value their nodes should share,
    and must share if ``strict``. ``mixed``: members have different requests; those with the lowest indexes then start
    together. All GPUs of a gang are of one model, unless it allows ``mixed_models`` or its members request different
    ones. If fewer than ``least`` are left running for some time, all are queued again.
    """

    least: int
    most: int
    within: str = ""
    strict: bool = False
    mixed: bool = False
    mixed_models: bool = False


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
