"""When somebody who is owed space gets it: once those who hold it have run for as long as nobody may be evicted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpupool.scheduling.placement import Placer
from gpupool.scheduling.queue import Demand
from gpupool.scheduling.reclaim import make_room
from gpupool.scheduling.rights import Rights
from gpupool.scheduling.session import Session
from gpupool.scheduling.suppose import supposing
from gpupool.scheduling.values import Hold, HoldKind, ReplicaKey, Settings

MOST_MOMENTS = 3  # that are tried
MOST_RUNNING = 2_000  # in larger pools such a look would take too long


def evicts_at(
    placer: Placer, demand: Demand, holds: Sequence[Hold], key: ReplicaKey, now: float, settings: Settings
) -> float | None:
    """The first moment, of a few, at which others would be told to make room for ``key``; None if they never are.

    The state is left as it was.
    """
    group = demand.group_of(key)
    if group is None or len(demand.running) > MOST_RUNNING:
        return None
    for moment in _moments(demand, now, settings):
        with supposing(demand, (), now):
            session = Session(placer, demand, moment, settings)
            try:
                session.haunt(holds)
                if key not in session.ghosts and Rights(session).may_reclaim(group.account, 1):
                    make_room(session)
                ghost = session.ghosts.get(key)
            finally:
                session.close()
        if ghost is not None and ghost.hold.kind is HoldKind.NOMINATED:
            return moment
    return None


def _moments(demand: Demand, now: float, settings: Settings) -> list[float]:
    """When those who may be evicted have run for long enough: the first, the middle and the last such moment."""
    holders = demand.holders
    slots, least_s = np.flatnonzero(holders.evictable), settings.min_runtime_s
    ripe = np.concatenate([holders.ripe_at(slots, least_s), holders.shielded_until(slots, least_s)])
    later = np.unique(ripe[ripe > now])
    if not len(later):
        return []
    picked = np.linspace(0, len(later) - 1, min(MOST_MOMENTS, len(later))).astype(np.int64)
    return [float(later[at]) for at in picked]
