"""Consolidate: move restartable work together when that lets somebody start whom only the pieces keep waiting.

Free space in pieces helps nobody who needs a whole GPU, or several on one node. Work that can be restarted is moved
out of the way only when every piece of it has a new place at once, no more of it is moved than starts, and whoever it
is moved for has waited a while: natural ends often do the same for nothing. The moved are told to end like any victim;
their new places are held for them (``HoldKind.MOVED``) until they are back in the queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gpupool.scheduling.allocate import Turns
from gpupool.scheduling.claims import Claim, Ints
from gpupool.scheduling.ledger import Account
from gpupool.scheduling.queue import Group
from gpupool.scheduling.session import Session
from gpupool.scheduling.shape import Shape
from gpupool.scheduling.usable import Relax, fitting_rows, usable_slots
from gpupool.scheduling.values import (
    Eviction,
    EvictionKind,
    HoldKind,
    PendingReplica,
    ReplicaKey,
    RunningReplica,
)

EVERY_S = 2.5  # a look costs more than a cycle does, and what it finds is not urgent
AGAIN_S = 10.0  # for whom nothing was found is not looked again before
LONGEST_S = 600.0  # nor for so long, while only time has passed
MOST_TRIALS = 12  # moves played through in one look
MOST_NODES = 8  # nodes looked at closely for each
_FAR = 1 << 40


@dataclass(frozen=True, slots=True)
class _Plan:
    """Who moves where so that a replica starts on ``claim``."""

    claim: Claim
    moves: tuple[tuple[ReplicaKey, Claim], ...]


class _Look:
    """One look for moves, bounded in work and in how many it serves; for whom it finds nothing is not asked again."""

    def __init__(self, session: Session) -> None:
        self.session, self.trials, self.served = session, MOST_TRIALS, session.settings.max_consolidations

    @property
    def over(self) -> bool:
        """Whether no more is to be tried."""
        return self.trials <= 0 or self.served <= 0

    def move_for(self, group: Group, replica: PendingReplica) -> bool:
        """Let others move for a replica, if that helps; whether it does."""
        found = _move_for(self, group, replica)
        self.served -= found
        if not found:
            self.session.demand.unmovable.add(group.shape)
        return found


def consolidate(session: Session) -> None:
    """Decide on moves for those who could neither be placed nor make room; at most every ``EVERY_S`` seconds.

    A look goes on where the one before stopped, and begins again ``AGAIN_S`` after the first, or later and later where
    nobody came, started or ended meanwhile.
    """
    demand = session.demand
    if session.settings.max_consolidations < 1 or not demand.lanes or not any(demand.evictable.values()):
        return
    if session.now < demand.moves_sought_at + EVERY_S:
        session.later.append(demand.moves_sought_at + EVERY_S)
        return
    stands = (demand.changes, session.cluster.generation)
    if stands != demand.moves_for:
        demand.moves_for, demand.moves_pause_s = stands, AGAIN_S
    if session.now >= demand.moves_since + demand.moves_pause_s:
        demand.unmovable.clear()
        demand.moves_since = session.now
        demand.moves_pause_s = min(2 * demand.moves_pause_s, LONGEST_S)
    look, free = _Look(session), _free_permille(session)
    hopeful = {shape for shape in demand.shape_users.keys() - demand.unmovable if _in_pieces(session, shape, free)}
    _serve_reserved(look, free)
    _serve(look, hopeful)
    if look.trials < MOST_TRIALS:
        demand.moves_sought_at = session.now
    if demand.unmovable:
        session.later.append(session.now + EVERY_S if look.over else demand.moves_since + demand.moves_pause_s)


def _serve_reserved(look: _Look, free: int) -> None:
    """Let those with a reservation start at once because others move."""
    session = look.session
    for key in [key for key, ghost in session.ghosts.items() if ghost.hold.kind is HoldKind.RESERVED]:
        group, replica = session.demand.group_of(key), session.demand.pending[key]
        if look.over or group is None or group.shape in session.demand.unmovable or not _patient(session, replica):
            continue
        ghost = session.drop_ghost(key)
        if not (_in_pieces(session, group.shape, free + ghost.claim.permille) and look.move_for(group, replica)):
            session.add_ghost(ghost)


def _free_permille(session: Session) -> int:
    c = session.cluster
    usable = c.available & c.up[:, None]
    return int(np.clip(c.gpu_free, 0, None)[usable].sum())


def _in_pieces(session: Session, shape: Shape, free: int) -> bool:
    """Whether there may be enough for a shape, only not in one place."""
    need = session.placer.least_permille(shape)
    return 0 < need <= free and not session.placer.fits_anywhere(shape)


def _serve(look: _Look, hopeful: set[Shape]) -> None:
    """Look for moves for those of some shapes, as their turn comes, who have waited."""
    session, lanes = look.session, list(look.session.demand.lanes)
    dead = session.demand.shape_users.keys() - hopeful
    turns = Turns(session, lanes, dead, lambda _project, _shape: True)
    while not look.over and (first := turns.next()) is not None:
        group, replica, lane = first
        if not _patient(session, replica):
            lane.drop()
        elif not look.move_for(group, replica):
            dead.add(group.shape)
        turns.again(group.account.project)


def _patient(session: Session, replica: PendingReplica) -> bool:
    """Whether it has waited long enough that moving others is worth it."""
    ripe_at = max(replica.queued_at, replica.not_before) + session.settings.consolidate_after_s
    if ripe_at > session.now:
        session.later.append(ripe_at)
    return replica.gang is None and ripe_at <= session.now


def _move_for(look: _Look, group: Group, replica: PendingReplica) -> bool:
    session, shape, account = look.session, group.shape, group.account
    need = session.placer.least_permille(shape)
    if need > session.ledger.room(account):
        return False
    for row in _candidates(session, shape, need):
        chosen = _victims_on(session, shape, row, replica.priority)
        plan = _thinned(look, shape, account, row, chosen) if chosen else None
        if plan is not None:
            _carry_out(session, replica, account, plan)
            return True
        if look.over:
            break
    return False


def _candidates(session: Session, shape: Shape, need: int) -> Iterator[int]:
    """The nodes where least would have to move, up to the bound on nodes searched."""
    c, count = session.cluster, shape.request.count
    rows = fitting_rows(c, shape, Relax(use=True))
    if not len(rows):
        return
    usable, left = usable_slots(c, shape, rows, session.placer.accepted(shape), None, Relax(use=True))
    per_slot, _ = shape.needs(c.gmem_total[rows])
    missing = np.where(usable, np.clip(per_slot - np.clip(c.gpu_free[rows], 0, None), 0, None), _FAR)
    del left
    least = np.sort(missing, axis=1)[:, :count].sum(axis=1)
    near = np.flatnonzero(least <= need)
    for at in near[np.argsort(least[near], kind="stable")][:MOST_NODES].tolist():
        yield int(rows[at])


def _victims_on(session: Session, shape: Shape, row: int, priority: int) -> list[ReplicaKey]:
    """The cheapest movable holders of enough GPUs of one node; empty when there are none or too many."""
    c, need = session.cluster, session.placer.least_permille(shape)
    holders = {key: c.claims[key] for key in c.on_node(c.name_of(row)) if _movable(session, key, priority)}
    per_slot, _ = shape.needs(c.gmem_total[[row]])
    usable, _ = usable_slots(c, shape, np.array([row]), session.placer.accepted(shape), None, Relax(use=True))
    slots = [
        found
        for slot in np.flatnonzero(usable[0]).tolist()
        if (found := _clear_slot(c.gpu_free[row], slot, int(per_slot[0][slot]), holders)) is not None
    ]
    if len(slots) < shape.request.count:
        return []
    slots.sort(key=lambda keys: sum(holders[key].permille for key in keys))
    chosen = list(dict.fromkeys(key for keys in slots[: shape.request.count] for key in keys))
    moved = sum(holders[key].permille for key in chosen)
    return chosen if moved <= need and len(chosen) <= session.settings.max_moves else []


def _clear_slot(free: Ints, slot: int, need: int, holders: dict[ReplicaKey, Claim]) -> list[ReplicaKey] | None:
    """Who has to go from one GPU, smallest first; None when that would not do."""
    missing, chosen = need - int(free[slot]), []
    on_it = sorted((claim.permille, key) for key, claim in holders.items() if claim.gpu[slot])
    for _, key in on_it:
        if missing <= 0:
            break
        chosen.append(key)
        missing -= int(holders[key].gpu[slot])
    return chosen if missing <= 0 else None


def _movable(session: Session, key: ReplicaKey, priority: int) -> bool:
    """Whether it may be started again elsewhere for somebody of a priority: not for somebody less important."""
    running = session.demand.running.get(key)
    if running is None or not running.preemptible or key in session.leaving or running.priority > priority:
        return False
    if running.gang is not None or running.request is None:
        return False
    least = running.min_runtime_s
    ripe_at = running.started_at + (session.settings.min_runtime_s if least is None else least)
    if ripe_at > session.now:
        session.later.append(ripe_at)
    return ripe_at <= session.now


def _thinned(look: _Look, shape: Shape, account: Account, row: int, chosen: list[ReplicaKey]) -> _Plan | None:
    """The plan with as few moves as will do, the largest left where they are first."""
    plan = _tried(look, shape, account, row, chosen)
    if plan is None:
        return None
    claims = look.session.cluster.claims
    for key in sorted(chosen, key=lambda key: (-claims[key].permille, key)):
        rest = [other for other in chosen if other != key]
        smaller = _tried(look, shape, account, row, rest) if rest else None
        if smaller is not None:
            plan, chosen = smaller, rest
    return plan


def _tried(look: _Look, shape: Shape, account: Account, row: int, chosen: list[ReplicaKey]) -> _Plan | None:
    """Play the move: those out, the waiting one in, those in again elsewhere; all is taken back."""
    session = look.session
    look.trials -= 1
    mark = session.log.checkpoint()
    try:
        for key in chosen:
            session.lift_running(key)
        claim = session.placer.on_row(shape, row, session.ledger.room(account))
        if claim is None:
            return None
        session.charge(claim, account)
        moves = _places_for(session, chosen)
        return None if moves is None else _Plan(claim, moves)
    finally:
        session.log.rollback(mark)


def _places_for(session: Session, keys: list[ReplicaKey]) -> tuple[tuple[ReplicaKey, Claim], ...] | None:
    accounts, moves = session.demand.accounts, []
    for key in sorted(keys, key=lambda key: (-session.cluster.claims[key].permille, key)):
        waiting = _again(session.demand.running[key])
        if waiting is None:
            return None
        claim = session.find(session.demand.shape_of(waiting), accounts[key])
        if claim is None:
            return None
        session.charge(claim, accounts[key])
        moves.append((key, claim))
    return tuple(moves)


def _again(running: RunningReplica) -> PendingReplica | None:
    """What a running replica will ask for when it is back in the queue."""
    if running.request is None:
        return None
    lease = running.lease
    return PendingReplica(
        workload=lease.workload,
        index=lease.index,
        project=lease.project,
        user=lease.user,
        request=running.request,
        queued_at=running.started_at,
        priority=running.priority,
        preemptible=running.preemptible,
        cpus=lease.cpus,
        memory_mib=lease.memory_mib,
        node_pools=running.node_pools,
    )


def _carry_out(session: Session, replica: PendingReplica, account: Account, plan: _Plan) -> None:
    accounts, running = session.demand.accounts, session.demand.running
    for key, _ in plan.moves:
        session.lift_running(key)
        session.leaving.add(key)
    session.hold_for(replica, plan.claim, account, HoldKind.NOMINATED)
    for key, claim in plan.moves:
        waiting = _again(running[key])
        if waiting is not None:
            session.hold_for(waiting, claim, accounts[key], HoldKind.MOVED)
        sentence = (
            f"{replica.workload} needs room in one piece; it starts again on "
            f"{session.cluster.name_of(claim.row)}, where a place is held for it."
        )
        session.evictions.append(
            Eviction(key[0], key[1], replica.workload, replica.index, EvictionKind.CONSOLIDATE, sentence)
        )
