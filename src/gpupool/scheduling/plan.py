"""A dry run: where and when replicas would start if they were submitted now, and at whose expense."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gpupool.scheduling.background import Background
from gpupool.scheduling.cycle import decide
from gpupool.scheduling.explain import Explanation, explain
from gpupool.scheduling.placement import Placer
from gpupool.scheduling.queue import Demand
from gpupool.scheduling.suppose import supposing
from gpupool.scheduling.values import Eviction, EvictionKind, Grant, Hold, PendingReplica, Settings


@dataclass(frozen=True, slots=True)
class Displaced:
    """Running replicas of one project that would be evicted on one ground; ``permille`` is what they hold."""

    project: str
    kind: EvictionKind
    replicas: int
    permille: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What would become of a submission.

    ``starts`` tells who of it would start at once and where, ``waiting`` how many would not; ``why`` is about the
    first of those. ``displaced`` is whom it would cost their GPUs.
    """

    starts: tuple[Grant, ...]
    waiting: int
    why: Explanation | None
    displaced: tuple[Displaced, ...] = ()


def plan(  # noqa: PLR0913, PLR0917 - as ``explain``
    placer: Placer,
    demand: Demand,
    holds: Sequence[Hold],
    replicas: Sequence[PendingReplica],
    now: float,
    background: Background,
    settings: Settings,
) -> Plan:
    """What the next cycle would do with ``replicas`` if they queued at ``now``. The state is left as it was."""
    placer.cluster.pass_time(now)
    demand.wake(now)
    keys = dict.fromkeys(replica.key for replica in replicas)
    with supposing(demand, replicas, now):
        decisions = decide(placer, demand, now, holds, settings, whole=True)
        starts = {grant.key: grant for grant in decisions.grants if grant.key in keys}
        left = [key for key in keys if key not in starts]
        why = explain(placer, demand, holds, left[0], now, background, settings, decisions) if left else None
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
