"""Reservations give way: space that is kept for starving work goes to whoever was promised it by a quota.

A reservation keeps smaller work out of the space that frees first. It promises nothing beyond quotas, and must not keep
others from what theirs guarantee them, or from the GPUs of their own less important work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gpupool.scheduling.queue import Group
from gpupool.scheduling.session import Session
from gpupool.scheduling.values import HoldKind, ReplicaKey


def reservations(session: Session) -> dict[ReplicaKey, list[ReplicaKey]]:
    """Who has a reservation: the first of each gang (or the replica alone), and all of it that have one."""
    reserved: dict[ReplicaKey, list[ReplicaKey]] = {}
    for key, ghost in session.ghosts.items():
        if ghost.hold.kind is HoldKind.RESERVED:
            reserved.setdefault(session.demand.gangs.leader(key), []).append(key)
    return reserved


@contextmanager
def without_reservations(session: Session, gives_way: Callable[[Group], bool]) -> Iterator[bool]:
    """As if nothing were reserved for those who give way; whether anything was.

    Afterwards they keep what is not on the nodes where space was held for somebody; the others look for another place.
    """
    yielding = [keys for leader, keys in reservations(session).items() if _yields(session, leader, gives_way)]
    lifted = [[session.drop_ghost(key) for key in keys] for keys in yielding]
    before = set(session.ghosts)
    try:
        yield bool(lifted)
    finally:
        taken = {ghost.claim.row for key, ghost in session.ghosts.items() if key not in before}
        for ghosts in lifted:
            if taken.isdisjoint(ghost.claim.row for ghost in ghosts):
                for ghost in ghosts:
                    session.add_ghost(ghost)


def _yields(session: Session, leader: ReplicaKey, gives_way: Callable[[Group], bool]) -> bool:
    group = session.demand.group_of(leader)
    return group is not None and gives_way(group)
