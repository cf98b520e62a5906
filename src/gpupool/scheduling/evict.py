"""Evictions: who is told to end, and the sentence that tells the owner why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from gpupool.domain.ids import WorkloadId
from gpupool.domain.units import format_permille
from gpupool.scheduling.holders import NO_GANG
from gpupool.scheduling.session import Session
from gpupool.scheduling.values import Eviction, EvictionKind, PendingReplica, ReplicaKey


def evict(
    session: Session, keys: Sequence[ReplicaKey], for_key: ReplicaKey, kind: EvictionKind, reasons: Sequence[str]
) -> None:
    """Tell running replicas to end, each for its own reason."""
    for key, reason in zip(keys, reasons, strict=True):
        session.leaving.add(key)
        session.evictions.append(Eviction(*key, *for_key, kind, reason))


def reason_of(session: Session, victim: ReplicaKey, replica: PendingReplica, kind: EvictionKind) -> str:
    """Why a replica has to go for another one, as things stand before it does."""
    ledger, account = session.ledger, session.demand.accounts[victim]
    project = ledger.projects[account.project]
    if kind is EvictionKind.PREEMPT:
        mine = session.demand.running[victim].priority
        return f"{replica.workload} of priority {replica.priority} in {project.name} needs its GPUs (priority {mine})."
    held = format_permille(int(ledger.used[account.project]) - session.promised[account.project])
    quota = format_permille(project.quota_permille or 0)
    return f"{project.name} holds {held} GPUs over its quota of {quota}; {replica.project} is owed them."


def evict_from_rows(
    session: Session, rows: Iterable[int], admits: Callable[[str, str], bool], booking: str, reason: str
) -> None:
    """Tell all preemptible work on some nodes to end, but for projects and users whom ``admits`` lets stay.

    A gang that would be left with fewer members than its least goes as a whole, wherever its members run. Whoever has
    just started goes as well: a booking is known long before.
    """
    h, demand = session.demand.holders, session.demand
    h.catch_up(session.cluster)
    found: list[int] = []
    for slot in np.flatnonzero(h.evictable & np.isin(h.row, list(rows))).tolist():
        key = h.keys[slot]
        if key is not None and key not in session.leaving:
            lease = demand.running[key].lease
            if not admits(lease.project, lease.user):
                found.append(slot)
    keys = [key for slot in _with_gangs(session, found) if (key := h.keys[slot]) is not None]
    evict(session, keys, (WorkloadId(booking), 0), EvictionKind.BOOKING, [reason] * len(keys))


def _with_gangs(session: Session, slots: list[int]) -> list[int]:
    """With the rest of those gangs that would have too few members left."""
    h, chosen = session.demand.holders, dict.fromkeys(slots)
    for gang in sorted({int(h.gang[slot]) for slot in slots} - {NO_GANG}):
        members = [slot for slot in h.members(gang) if h.keys[slot] not in session.leaving and not h.releasing[slot]]
        if len([slot for slot in members if slot not in chosen]) < h.gang_least[gang]:
            chosen |= dict.fromkeys(members)
    return list(chosen)
