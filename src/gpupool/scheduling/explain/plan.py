"""A dry run: where and when replicas would start if they were submitted now, and what would be evicted for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpupool.scheduling.explain.wait_case import Explanation
from gpupool.scheduling.state.queue import Demand
from gpupool.scheduling.values import Decisions, Eviction, EvictionKind, Grant, PendingReplica, ReplicaKey


@dataclass(frozen=True, slots=True)
class Displaced:
    """Running replicas of one project that would be evicted for one reason; ``permille`` is their allocation."""

    project: str
    kind: EvictionKind
    replicas: int
    permille: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The expected outcome of a submission.

    ``starts``: the replicas that would start at once, and their places. ``waiting``: the number of the others; ``why``
    explains the first of those. ``displaced``: the running replicas that would be evicted.
    """

    starts: tuple[Grant, ...]
    waiting: int
    why: Explanation | None
    displaced: tuple[Displaced, ...] = ()


def plan(
    demand: Demand,
    replicas: Sequence[PendingReplica],
    now: float,
    decide: Callable[[], Decisions],
    explain: Callable[[ReplicaKey, Decisions], Explanation | None],
) -> Plan:
    """Return the result of the next cycle with ``replicas`` queued at ``now``. The state is left unchanged.

    ``decide`` runs that cycle, ``explain`` returns why a replica waits after its decisions.
    """
    demand.wake(now)
    keys = dict.fromkeys(replica.key for replica in replicas)
    with demand.with_pending(replicas, now):
        decisions = decide()
        starts = {grant.key: grant for grant in decisions.grants if grant.key in keys}
        left = [key for key in keys if key not in starts]
        why = explain(left[0], decisions) if left else None
        gone = [e for e in decisions.evictions if (e.for_workload, e.for_index) in keys]
        return Plan(tuple(starts.values()), len(left), why, _displaced(demand, gone))


def _displaced(demand: Demand, evictions: Sequence[Eviction]) -> tuple[Displaced, ...]:
    count: Counter[tuple[str, EvictionKind]] = Counter()
    permille: Counter[tuple[str, EvictionKind]] = Counter()
    for eviction in evictions:
        lease = demand.running[eviction.key].lease
        count[lease.project, eviction.kind] += 1
        permille[lease.project, eviction.kind] += lease.permille
    return tuple(Displaced(*who, replicas, permille[who]) for who, replicas in sorted(count.items()))
