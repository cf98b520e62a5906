"""Reserve: a replica that needs whole GPUs and has waited long gets the space that frees first kept for it."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import numpy.typing as npt

from gpupool.scheduling.cluster import Claim
from gpupool.scheduling.placement import Relax, fitting_rows, mode_fits, mode_on, usable_slots
from gpupool.scheduling.queue import Group
from gpupool.scheduling.session import Session
from gpupool.scheduling.shape import Shape
from gpupool.scheduling.values import HoldKind, PendingReplica, ReplicaKey

Floats = npt.NDArray[np.float64]
_UNKNOWN = 1e300  # a time later than any


def refresh_reservations(session: Session) -> None:
    """Work out again when reserved space will be free: run times get extended, work ends early."""
    for ghost in session.ghosts.values():
        if ghost.hold.kind is HoldKind.RESERVED:
            ends = _row_ends(session, ghost.claim.row)
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
    plan = _plan(session, group.shape)
    if plan is None:
        return False
    starts_at, claim = plan
    session.hold_for(replica, claim, group.account, HoldKind.RESERVED, starts_at)
    return True


def _plan(session: Session, shape: Shape) -> tuple[float, Claim] | None:
    """Where space for a shape is free first: when, and which GPUs; CPU and memory are taken to follow the GPUs.

    Among nodes that free at the same (or an unknown) time, the one with the fewest GPUs still in use, then the
    fullest.
    """
    cluster, count = session.cluster, shape.request.count
    rows = fitting_rows(cluster, shape, Relax(use=True))
    usable, _ = usable_slots(cluster, shape, rows, session.placer.accepted(shape), None, Relax(use=True))
    free = cluster.gpu_free[rows]
    spoken_for = np.zeros_like(cluster.gpu_free, dtype=np.bool_)
    for ghost in session.ghosts.values():
        spoken_for[ghost.claim.row] |= ghost.claim.gpu > 0
    need, mem = shape.needs(cluster.gmem_total[rows])
    busy = (free < need) | ~mode_fits(cluster, shape, rows, cluster.guests[rows])
    ends = np.where(busy, np.minimum(slot_ends(session)[rows], _UNKNOWN), session.now)
    ends = np.where(usable & ~spoken_for[rows], ends, inf)
    order = np.lexsort((busy, ends), axis=-1)[:, :count]
    time = np.take_along_axis(ends, order, axis=1)[:, -1]
    if order.shape[1] < count or not (time < inf).any():
        return None
    in_use = np.take_along_axis(busy, order, axis=1).sum(axis=1)
    room = np.clip(free, 0, None).sum(axis=1)
    best = int(np.lexsort((session.placer.late_keys(rows), room, in_use, time))[0])
    chosen = order[best]
    gpu, gmem = np.zeros(cluster.slots, np.int64), np.zeros(cluster.slots, np.int64)
    gpu[chosen], gmem[chosen] = need[best][chosen], mem[best][chosen]
    starts_at = inf if time[best] == _UNKNOWN else float(time[best])
    row = int(rows[best])
    return starts_at, Claim(
        row, gpu, gmem, shape.cpu_milli, shape.mem_mib, mode_on(cluster, shape, row, gpu), shape.user
    )


def slot_ends(session: Session) -> Floats:
    """When the last one on each GPU ends, [N, G]: now for those told to, infinite when nobody knows."""
    if session.slot_ends is None:
        claims, running = session.cluster.claims, session.demand.running
        held = [(claims[key], _end(session, key)) for key in running if key in claims and claims[key].row >= 0]
        ends = np.full(session.cluster.gpu_free.shape, session.now)
        if held:
            until = np.where(
                np.array([claim.gpu for claim, _ in held]) > 0, np.array([[e] for _, e in held]), session.now
            )
            np.maximum.at(ends, np.array([claim.row for claim, _ in held]), until)
        session.slot_ends = ends
    return session.slot_ends


def _end(session: Session, key: ReplicaKey) -> float:
    end = session.demand.running[key].expected_end
    if key in session.leaving:
        return session.now
    return inf if end is None else max(end, session.now)


def _row_ends(session: Session, row: int) -> Floats:
    ends = np.full(session.cluster.slots, session.now)
    for key in session.cluster.on_node(session.cluster.name_of(row)):
        if key in session.demand.running:
            used = session.cluster.claims[key].gpu > 0
            ends[used] = np.maximum(ends[used], _end(session, key))
    return ends
