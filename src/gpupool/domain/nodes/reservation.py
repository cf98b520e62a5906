"""Reservations: whole nodes for named projects or users, or for maintenance, between two times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_MAX_EXACT_STEPS = 1_000_000  # about one second


@dataclass(frozen=True, slots=True)
class Reservation:
    """Nodes that only the named projects and users may use from ``starts_at`` until ``ends_at`` (epoch seconds).

    Without ``projects`` and ``users`` the nodes are under maintenance. Training that still runs there at the start is
    evicted with a notice. Work that would not end before the start is not placed there: work with a time limit is
    judged by that limit, protected work without one is refused from ``lead_s`` before the start.
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
        """Return whether a user's work in a project may use the nodes during the reservation."""
        return project in self.projects or user in self.users

    def overlaps(self, other: Reservation) -> bool:
        """Return whether both need a node at the same time."""
        same_time = self.starts_at < other.ends_at and other.starts_at < self.ends_at
        return same_time and not set(self.nodes).isdisjoint(other.nodes)

    @property
    def maintenance(self) -> bool:
        """Return whether the reservation is for maintenance."""
        return not self.projects and not self.users


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that could be reserved, with its GPUs of the wanted kind and the replicas in the way.

    ``protected`` replicas may still run at the start (they are not evicted), ``preemptible`` ones are evicted.
    """

    node: str
    gpus: int
    protected: int = 0
    preemptible: int = 0

    @property
    def cost(self) -> tuple[int, int]:
        """Return the number of replicas in the way, protected ones first."""
        return self.protected, self.preemptible


def choose_nodes(candidates: Sequence[Candidate], gpus: int) -> list[Candidate] | None:
    """Return whole nodes with at least ``gpus`` GPUs; prefer few replicas in the way, then few spare GPUs and nodes.

    Returns None if all nodes together have fewer. The choice is exact (dynamic programming over the number of GPUs),
    except for large inputs: those take the nodes with the fewest replicas in the way per GPU.
    """
    usable = sorted((c for c in candidates if c.gpus > 0), key=lambda c: (c.cost, -c.gpus, c.node))
    if sum(candidate.gpus for candidate in usable) < gpus:
        return None
    if len(usable) * gpus > _MAX_EXACT_STEPS:
        return _choose_greedily(usable, gpus)
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


def _choose_greedily(candidates: Sequence[Candidate], gpus: int) -> list[Candidate]:
    chosen: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda c: (c.protected / c.gpus, c.preemptible / c.gpus, -c.gpus, c.node)):
        if sum(c.gpus for c in chosen) < gpus:
            chosen.append(candidate)
    return chosen


class _Chosen:
    """A linked list of chosen nodes, the last one first, with its cost."""

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
