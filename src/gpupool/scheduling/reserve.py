"""Reserve: a replica that needs whole GPUs and has waited long gets the space that frees first kept for it."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np

from gpupool.scheduling.cluster import MILLI, Claim
from gpupool.scheduling.placement import Relax, fitting_rows, usable_slots
from gpupool.scheduling.queue import Group
from gpupool.scheduling.session import Ghost, Session
from gpupool.scheduling.shape import Shape
from gpupool.scheduling.values import Hold, HoldKind, PendingReplica


def refresh_reservations(session: Session) -> None:
    """Work out again when reserved space will be free: run times get extended, work ends early."""
    for ghost in session.ghosts.values():
        if ghost.hold.kind is HoldKind.RESERVED:
            ends = _slot_ends(session, ghost.claim.row)
            ghost.hold = replace(ghost.hold, starts_at=float(ends[ghost.claim.gpu > 0].max(initial=session.now)))


def starving_shapes(session: Session) -> set[Shape]:
    """The shapes for which somebody has waited long enough for a reservation, while more may be made."""
    demand, after = session.demand, session.settings.reserve_after_s
    next_since = demand.mature(session.now - after)
    if next_since is not None:
        session.later.append(next_since + after)
    if reservations_left(session) <= 0:
        return set()
    return {shape for shape, keys in demand.starved.items() if not keys <= session.gone}


def reservations_left(session: Session) -> int:
    """How many more reservations may be made."""
    made = sum(ghost.hold.kind is HoldKind.RESERVED for ghost in session.ghosts.values())
    return session.settings.max_reservations - made


def reserve_if_starving(session: Session, group: Group, replica: PendingReplica) -> bool:
    """Keep the space that frees first for a replica whose turn it was, if it has waited long for whole GPUs."""
    if not group.shape.starvable or not _waited(session, replica) or reservations_left(session) <= 0:
        return False
    return _reserve_for(session, group, replica)


def _since(replica: PendingReplica) -> float:
    return max(replica.queued_at, replica.not_before)


def _waited(session: Session, replica: PendingReplica) -> bool:
    return session.now - _since(replica) >= session.settings.reserve_after_s


def _reserve_for(session: Session, group: Group, replica: PendingReplica) -> bool:
    need = group.shape.fixed_permille
    if need is None or need > session.ledger.room(group.account):
        return False
    best: tuple[tuple[float, int, int, int], Claim] | None = None
    for row in fitting_rows(session.cluster, group.shape, Relax(use=True)).tolist():
        plan = _plan(session, group.shape, row)
        if plan is not None and (best is None or plan[0] < best[0]):
            best = plan
    if best is None:
        return False
    (starts_at, *_), claim = best
    cluster = session.cluster
    hold = Hold(
        workload=replica.workload,
        index=replica.index,
        node=cluster.name_of(claim.row),
        shares=cluster.shares_of(claim),
        cpus=claim.cpu_milli / MILLI,
        memory_mib=claim.mem_mib,
        kind=HoldKind.RESERVED,
        starts_at=starts_at,
    )
    session.add_ghost(Ghost(hold, claim, group.account))
    return True


def _plan(session: Session, shape: Shape, row: int) -> tuple[tuple[float, int, int, int], Claim] | None:
    """When and on which GPUs of a node: the key is (time, GPUs still in use, room on the node, row)."""
    cluster, count = session.cluster, shape.request.count
    rows = np.array([row])
    usable, _ = usable_slots(cluster, shape, rows, session.placer.accepted(shape), None, Relax(use=True))
    for ghost in session.ghosts.values():
        if ghost.claim.row == row:
            usable[0] &= ghost.claim.gpu == 0
    need, mem = shape.needs(cluster.gmem_total[row])
    busy = cluster.gpu_free[row] < need
    ends = np.where(busy, np.maximum(_slot_ends(session, row), session.now), session.now)
    slots = np.flatnonzero(usable[0])
    if len(slots) < count:
        return None
    chosen = slots[np.lexsort((slots, busy[slots], ends[slots]))[:count]]
    gpu, gmem = np.zeros(cluster.slots, np.int64), np.zeros(cluster.slots, np.int64)
    gpu[chosen], gmem[chosen] = need[chosen], mem[chosen]
    room = int(np.clip(cluster.gpu_free[row], 0, None).sum())
    key = (float(ends[chosen].max()), int(busy[chosen].sum()), room, row)
    return key, Claim(row, gpu, gmem, shape.cpu_milli, shape.mem_mib)


def _slot_ends(session: Session, row: int) -> np.typing.NDArray[np.float64]:
    """When the last one on each GPU of a node ends; now for those told to, infinite when nobody knows."""
    ends = np.full(session.cluster.slots, session.now)
    for key in session.cluster.on_node(session.cluster.name_of(row)):
        running = session.demand.running.get(key)
        known = inf if running is None or running.expected_end is None else running.expected_end
        end = session.now if key in session.leaving else max(known, session.now)
        used = session.cluster.claims[key].gpu > 0
        ends[used] = np.maximum(ends[used], end)
    return ends
