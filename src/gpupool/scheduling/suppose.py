"""Trials on the queue: what the next cycle would decide if somebody else waited, too, and all as it was afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from gpupool.scheduling.queue import Demand
from gpupool.scheduling.values import PendingReplica, ReplicaKey


@contextmanager
def supposing(demand: Demand, replicas: Sequence[PendingReplica], now: float) -> Iterator[None]:
    """As if ``replicas`` waited, too; afterwards they never did, and what a cycle noted about itself is forgotten.

    A project or user nobody has described becomes known, without bounds. Raises ``ValueError`` for replicas that wait
    already.
    """
    if any(replica.key in demand.pending for replica in replicas):
        raise ValueError("a replica that waits cannot be supposed to")
    for replica in replicas:
        demand.account_of(replica)
    noted = {name: value for name, value in vars(demand).items() if isinstance(value, int | float | tuple)}
    sets = {name: (value, value.copy()) for name, value in vars(demand).items() if isinstance(value, set)}
    known = set(demand.importance)
    try:
        for replica in replicas:
            demand.add(replica, now)
        yield
    finally:
        _forget(demand, {replica.key: replica for replica in replicas})
        for project in set(demand.importance) - known:
            del demand.importance[project]
        for name, number in noted.items():
            setattr(demand, name, number)
        for name, (value, before) in sets.items():
            if value != before or getattr(demand, name) is not value:
                value.clear()
                value.update(before)
                setattr(demand, name, value)


def _forget(demand: Demand, replicas: dict[ReplicaKey, PendingReplica]) -> None:
    for key in replicas:
        demand.remove(key)
    demand.forget_times(replicas)
