"""Consolidation: move restartable work together so that a waiting replica fits into one piece of free space.

Free space in pieces is of no use to a workload that needs a whole GPU, or several on one node. Restartable work is
moved only if all of it has a new place at once, if no more GPUs are moved than start, and if the waiting replica has
waited for a while: natural ends often have the same effect at no cost. Moved replicas are asked to end like any victim.
Their new places are held for them (``HoldKind.MOVED``) until they are back in the queue.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpupool.scheduling.placement.fit_table import fitting
from gpupool.scheduling.placement.node_filter import Relax, fitting_rows, usable_slots
from gpupool.scheduling.scheduling_order import SchedulingOrder
from gpupool.scheduling.session import SchedulingSession
from gpupool.scheduling.state.allocation import Claim, Ints
from gpupool.scheduling.state.cluster import Shape
from gpupool.scheduling.state.ledger import Account
from gpupool.scheduling.state.queue import Group
from gpupool.scheduling.state.queue_tables import DeadShapes
from gpupool.scheduling.state.running import NO_GANG
from gpupool.scheduling.values import (
    Eviction,
    EvictionKind,
    HoldKind,
    PendingReplica,
    ReplicaKey,
    RunningReplica,
)

MIN_INTERVAL_S = 2.5  # a search costs more than a cycle, and its results are not urgent
RETRY_S = 10.0  # pause before a shape without a result is tried again
MAX_RETRY_S = 600.0  # upper bound of that pause, while only time has passed
MAX_TRIALS = 12  # moves tried in one search
MAX_SHAPES = 16  # shapes for which one search looks for moves
MAX_NODES = 8  # nodes checked in detail for each replica
_FAR = 1 << 40


@dataclass(frozen=True, slots=True)
class _Plan:
    """The moves that let a replica start on ``claim``."""

    claim: Claim
    moves: tuple[tuple[ReplicaKey, Claim], ...]


class _Look:
    """One search for moves, bounded in work and in the replicas served; shapes without a result are not tried again."""

    def __init__(self, session: SchedulingSession) -> None:
        self.session, self.served = session, session.settings.max_consolidations
        self.trials, self.shapes = MAX_TRIALS, MAX_SHAPES
        holders, settings = session.demand.holders, session.settings
        holders.catch_up(session.cluster)
        every = np.arange(len(holders.row))
        self._shielded_until = holders.shielded_until(every, settings.min_runtime_s)
        self._at_stake = holders.at_stake(every, session.now, settings.unsaved_after_s)
        self._freed: dict[int, tuple[Ints, Ints]] = {}  # see ``_movable_on``

    @property
    def over(self) -> bool:
        """Return True if the bounds of the search are reached."""
        return min(self.trials, self.shapes, self.served) <= 0

    def move_for(self, group: Group, replica: PendingReplica) -> bool:
        """Move others for a replica if that lets it start; return True if it does."""
        found = _move_for(self, group, replica)
        self.served -= found
        self.shapes -= not found
        if not found:
            self.session.demand.unmovable.add(group.shape)
        return found

    def clearable(self, shape: Shape, rows: Ints, priority: int) -> list[int]:
        """Return those of ``rows`` where enough GPUs would be free for a shape without all that is movable there."""
        c, accepted = self.session.cluster, self.session.placer.accepted(shape)
        freed, shielded = self._movable_on(priority)
        held = shielded[np.isin(self.session.demand.holders.row[shielded], rows)]
        if len(held):
            self.session.outcome.wake_at(float(self._shielded_until[held].min()))
        usable, _ = usable_slots(c, shape, rows, accepted, None, Relax(use=True))
        need, _ = shape.needs(c.gmem_total[rows])
        usable &= c.gpu_free[rows] + freed[rows] >= need
        return [int(row) for row in rows[usable.sum(axis=1) >= shape.request.count]]

    def _movable_on(self, priority: int) -> tuple[Ints, Ints]:
        """Return what ``movable`` replicas hold of each GPU as of the first call, [N, G], and the slots of others.

        The others are movable later, when they are no longer shielded.
        """
        if priority not in self._freed:
            holders = self.session.demand.holders
            at = holders.evictable & (holders.gang == NO_GANG) & (holders.row >= 0) & (holders.priority <= priority)
            slots = np.flatnonzero(at & (self._at_stake == 0))
            later = self._shielded_until[slots] > self.session.now
            freed = np.zeros_like(self.session.cluster.gpu_free)
            np.add.at(freed, holders.row[slots[~later]], holders.gpu[slots[~later]])
            self._freed[priority] = freed, slots[later]
        return self._freed[priority]

    def movable(self, key: ReplicaKey, priority: int) -> bool:
        """Return True if it can be restarted on other GPUs for a replica of this or a higher priority."""
        session = self.session
        running = session.demand.running.get(key)
        if running is None or not running.preemptible or key in session.outcome.leaving or running.priority > priority:
            return False
        if running.gang is not None or running.request is None:
            return False
        slot = session.demand.holders.slots[key]
        return self._shielded_until[slot] <= session.now and not self._at_stake[slot]


def consolidate(session: SchedulingSession) -> None:
    """Decide on moves for replicas that neither fit nor can preempt; at most every ``MIN_INTERVAL_S`` seconds.

    A search continues where the previous one stopped. Once it is complete, a new round starts ``RETRY_S`` after the
    start of the previous one, and later each time if no replica was added, started or removed meanwhile.
    """
    demand = session.demand
    if session.settings.max_consolidations < 1 or not demand.project_queues or not any(demand.evictable.values()):
        return
    if session.now < demand.moves_sought_at + MIN_INTERVAL_S:
        session.outcome.wake_at(demand.moves_sought_at + MIN_INTERVAL_S)
        return
    if session.change_counts != demand.moves_for:
        demand.moves_for, demand.moves_pause_s = session.change_counts, RETRY_S
    if not demand.moves_interrupted and session.now >= demand.moves_since + demand.moves_pause_s:
        demand.unmovable.clear()
        demand.moves_since = session.now
        demand.moves_pause_s = min(2 * demand.moves_pause_s, MAX_RETRY_S)
    look, free = _Look(session), _free_permille(session)
    dead = _not_in_pieces(session, free)
    _serve_reserved(look, free)
    _serve(look, dead)
    demand.moves_interrupted = look.over
    if look.trials < MAX_TRIALS or look.shapes < MAX_SHAPES:
        demand.moves_sought_at = session.now
    if demand.unmovable:
        session.outcome.wake_at(
            session.now + MIN_INTERVAL_S if look.over else demand.moves_since + demand.moves_pause_s
        )


def _serve_reserved(look: _Look, free: int) -> None:
    """Let replicas with a reservation start at once by moves of others."""
    session = look.session
    for key in [key for key, active in session.holds.active.items() if active.hold.kind is HoldKind.RESERVED]:
        group, replica = session.demand.group_of(key), session.demand.pending[key]
        if look.over or group is None or group.shape in session.demand.unmovable or not _patient(session, replica):
            continue
        active = session.holds.remove(key)
        if not (_in_pieces(session, group.shape, free + active.claim.permille) and look.move_for(group, replica)):
            session.holds.add(active)


def _free_permille(session: SchedulingSession) -> int:
    c = session.cluster
    usable = c.available & c.up[:, None]
    return int(np.clip(c.gpu_free, 0, None)[usable].sum())


def _not_in_pieces(session: SchedulingSession, free: int) -> DeadShapes:
    """Return the shapes for which no moves help or were found, see ``_in_pieces``."""
    shapes = session.demand.first_groups().shapes
    need = session.placer.least_of(shapes)
    hopeful = shapes.live & (need > 0) & (need <= free) & ~shapes.mask(session.demand.unmovable)
    return DeadShapes(shapes, ~hopeful | fitting(session.cluster, shapes, hopeful))


def _in_pieces(session: SchedulingSession, shape: Shape, free: int) -> bool:
    """Return True if enough GPUs are free for a shape, but not in one place."""
    need = session.placer.least_permille(shape)
    return 0 < need <= free and not session.placer.fits_anywhere(shape)


def _serve(look: _Look, dead: DeadShapes) -> None:
    """Search moves for waiting replicas of other shapes, in scheduling order."""
    session, queues = look.session, list(look.session.demand.project_queues)
    turns = SchedulingOrder(session, queues, dead)
    while not look.over and (first := turns.next()) is not None:
        group, replica, queue = first
        if not _patient(session, replica):
            queue.drop()
        elif not look.move_for(group, replica):
            dead.add(group.shape)
        turns.again(group.account.project)


def _patient(session: SchedulingSession, replica: PendingReplica) -> bool:
    """Return True if it has waited long enough to justify moves."""
    evictable_at = max(replica.queued_at, replica.not_before) + session.settings.consolidate_after_s
    if evictable_at > session.now:
        session.outcome.wake_at(evictable_at)
    return replica.gang is None and evictable_at <= session.now


def _move_for(look: _Look, group: Group, replica: PendingReplica) -> bool:
    session, shape, account = look.session, group.shape, group.account
    need = session.placer.least_permille(shape)
    if need > session.ledger.room(account):
        return False
    for row in look.clearable(shape, _candidates(session, shape, need), replica.priority):
        chosen = _victims_on(look, shape, row, replica.priority)
        plan = _thinned(look, shape, account, row, chosen) if chosen else None
        if plan is not None:
            _carry_out(session, replica, account, plan)
            return True
        if look.over:
            break
    return False


def _candidates(session: SchedulingSession, shape: Shape, need: int) -> Ints:
    """Return the nodes with the least to move, up to the bound on nodes searched."""
    c, count = session.cluster, shape.request.count
    rows = fitting_rows(c, shape, Relax(use=True))
    if not len(rows):
        return rows
    usable, _ = usable_slots(c, shape, rows, session.placer.accepted(shape), None, Relax(use=True))
    per_slot, _ = shape.needs(c.gmem_total[rows])
    missing = np.where(usable, np.clip(per_slot - np.clip(c.gpu_free[rows], 0, None), 0, None), _FAR)
    least = np.sort(missing, axis=1)[:, :count].sum(axis=1)
    near = np.flatnonzero(least <= need)
    return rows[near[np.argsort(least[near], kind="stable")][:MAX_NODES]]


def _victims_on(look: _Look, shape: Shape, row: int, priority: int) -> list[ReplicaKey]:
    """Return the cheapest movable replicas whose GPUs suffice on one node; empty if none or too many."""
    session, c = look.session, look.session.cluster
    need = session.placer.least_permille(shape)
    holders = {key: c.claims[key] for key in c.on_node(c.name_of(row)) if look.movable(key, priority)}
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
    """Return the replicas to move from one GPU, smallest first; None if that is not enough."""
    missing, chosen = need - int(free[slot]), []
    on_it = sorted((claim.permille, key) for key, claim in holders.items() if claim.gpu[slot])
    for _, key in on_it:
        if missing <= 0:
            break
        chosen.append(key)
        missing -= int(holders[key].gpu[slot])
    return chosen if missing <= 0 else None


def _thinned(look: _Look, shape: Shape, account: Account, row: int, chosen: list[ReplicaKey]) -> _Plan | None:
    """Return the plan with the fewest moves; the largest replicas stay first."""
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
    """Try the moves: remove the victims, place the waiting replica, place the victims again; revert everything."""
    session = look.session
    look.trials -= 1
    mark = session.log.checkpoint()
    try:
        for key in chosen:
            session.discharge_running(key)
        claim = session.placer.on_row(shape, row, session.ledger.room(account))
        if claim is None or not session.may_charge(shape, account, [claim]):
            return None
        session.charge(claim, account)
        moves = _places_for(session, chosen)
        return None if moves is None else _Plan(claim, moves)
    finally:
        session.log.rollback(mark)


def _places_for(session: SchedulingSession, keys: list[ReplicaKey]) -> tuple[tuple[ReplicaKey, Claim], ...] | None:
    accounts, moves = session.demand.accounts, []
    for key in sorted(keys, key=lambda key: (-session.cluster.claims[key].permille, key)):
        waiting = _as_pending(session.demand.running[key])
        if waiting is None:
            return None
        claim = session.find(session.demand.shape_of(waiting), accounts[key])
        if claim is None:
            return None
        session.charge(claim, accounts[key])
        moves.append((key, claim))
    return tuple(moves)


def _as_pending(running: RunningReplica) -> PendingReplica | None:
    """Return a running replica as the pending replica that it becomes after its eviction."""
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


def _carry_out(session: SchedulingSession, replica: PendingReplica, account: Account, plan: _Plan) -> None:
    accounts, running = session.demand.accounts, session.demand.running
    for key, _ in plan.moves:
        session.discharge_running(key)
        session.outcome.mark_leaving([key])
    session.holds.hold(replica, plan.claim, account, HoldKind.NOMINATED)
    for key, claim in plan.moves:
        waiting = _as_pending(running[key])
        if waiting is not None:
            session.holds.hold(waiting, claim, accounts[key], HoldKind.MOVED)
        sentence = (
            f"Consolidation for {replica.workload}: this replica restarts on "
            f"{session.cluster.name_of(claim.row)}, where GPUs are held for it."
        )
        session.outcome.evict(Eviction(*key, *replica.key, EvictionKind.CONSOLIDATE, sentence))
