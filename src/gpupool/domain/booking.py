"""Bookings: whole nodes kept for named projects or users, or for maintenance, between two times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_MOST_STEPS = 1_000_000  # of an exact choice of nodes: about a second


@dataclass(frozen=True, slots=True)
class Booking:
    """Nodes that only some may use from ``starts_at`` until ``ends_at`` (seconds since the epoch).

    ``projects`` and ``users`` say who; both empty: nobody, the nodes are under maintenance. Training that still runs
    there at the start is evicted with its notice. Work that would not end before is not placed there: work with a
    time limit is judged by it, protected work without one from ``lead_s`` before the start.
    """

    id: str
    name: str
    nodes: tuple[str, ...]
    starts_at: float
    ends_at: float
    projects: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    lead_s: float = 43_200.0
    created_by: str = ""
    note: str = ""

    def admits(self, project: str, user: str) -> bool:
        """Whether somebody's work may use the nodes while the booking holds."""
        return project in self.projects or user in self.users

    def overlaps(self, other: Booking) -> bool:
        """Whether both want some node at the same time."""
        same_time = self.starts_at < other.ends_at and other.starts_at < self.ends_at
        return same_time and not set(self.nodes).isdisjoint(other.nodes)

    @property
    def maintenance(self) -> bool:
        """Whether it is for nobody."""
        return not self.projects and not self.users


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that could be booked: its GPUs of the wanted kind, and who is in the way there.

    ``protected`` replicas may still run at the beginning (they are not evicted), ``preemptible`` ones have to go.
    """

    node: str
    gpus: int
    protected: int = 0
    preemptible: int = 0

    @property
    def cost(self) -> tuple[int, int]:
        """Who is in the way, protected work first."""
        return self.protected, self.preemptible


def choose_nodes(candidates: Sequence[Candidate], gpus: int) -> list[Candidate] | None:
    """Whole nodes with so many GPUs together: in the way of the fewest, then with the fewest GPUs and nodes to spare.

    None when all of them have fewer. Exact (the best choice for each number of GPUs, node after node), but for choices
    too large for that: those take the nodes where the fewest per GPU are in the way.
    """
    usable = sorted((c for c in candidates if c.gpus > 0), key=lambda c: (c.cost, -c.gpus, c.node))
    if sum(candidate.gpus for candidate in usable) < gpus:
        return None
    if len(usable) * gpus > _MOST_STEPS:
        return _choose_roughly(usable, gpus)
    best: list[_Chosen | None] = [_Chosen(None, None), *[None] * gpus]
    for candidate in usable:
        for have in range(gpus - 1, -1, -1):
            base = best[have]
            if base is None:
                continue
            chosen, reached = _Chosen(candidate, base), min(gpus, have + candidate.gpus)
            known = best[reached]
            if known is None or chosen.cost < known.cost:
                best[reached] = chosen
    return list(best[gpus] or ())


def _choose_roughly(candidates: Sequence[Candidate], gpus: int) -> list[Candidate]:
    chosen: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda c: (c.protected / c.gpus, c.preemptible / c.gpus, -c.gpus, c.node)):
        if sum(c.gpus for c in chosen) < gpus:
            chosen.append(candidate)
    return chosen


class _Chosen:
    """A chain of choices, the last one first, and what it costs."""

    __slots__ = ("before", "candidate", "cost")

    def __init__(self, candidate: Candidate | None, before: _Chosen | None) -> None:
        self.candidate, self.before = candidate, before
        self.cost: tuple[int, int, int, int] = (0, 0, 0, 0)
        if candidate is not None and before is not None:
            protected, preemptible, total, nodes = before.cost
            mine = candidate.protected, candidate.preemptible
            self.cost = (protected + mine[0], preemptible + mine[1], total + candidate.gpus, nodes + 1)

    def __iter__(self) -> Iterator[Candidate]:
        at: _Chosen | None = self
        while at is not None and at.candidate is not None:
            yield at.candidate
            at = at.before
