"""Settlement of holds: start replicas whose held GPUs are free, and drop holds that cannot be used."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from functools import partial

import numpy as np

from gpupool.scheduling.gang_placement import Placed, find_all, others_of
from gpupool.scheduling.placement.fit_table import fitting
from gpupool.scheduling.session import ActiveHold, SchedulingSession
from gpupool.scheduling.state.allocation import Bools, Ints
from gpupool.scheduling.state.cluster import Shape
from gpupool.scheduling.state.ledger import Account
from gpupool.scheduling.state.queue import Group
from gpupool.scheduling.state.sharing_modes import NO_MARK, hosts_only, mark_of
from gpupool.scheduling.values import HoldKind, ReplicaKey

_FEW = 8  # shapes that are looked up one by one


def settle_holds(session: SchedulingSession) -> None:
    """Start replicas whose held GPUs are free (or that fit on others); drop holds that cannot be used.

    The members of a gang start together, or all of its holds stay, or none.
    """
    together: dict[ReplicaKey, list[ReplicaKey]] = {}
    for key in session.holds.active:
        if key in session.demand.pending:  # else it is being moved here
            together.setdefault(session.demand.gangs.leader(key), []).append(key)
    leaving = _Leaving(session)
    waiting = _WaitingHolds(session, [keys[0] for keys in together.values() if len(keys) == 1], leaving)
    for leader, keys in together.items():
        if len(keys) == 1 and waiting.has(keys[0]):
            # move it behind the earlier ones, to keep the order
            session.holds.move_to_end(keys[0])
            continue
        group = session.demand.group_of(leader)
        active_holds = [session.holds.remove(key) for key in keys]
        placed = _start_of(session, group, leader, active_holds)
        for replica, claim in placed:
            session.outcome.grant(replica, claim, active_holds[0].account)
        if not placed and group is not None and _still_promising(session, group, active_holds, leaving):
            for active in active_holds:
                session.holds.add(active)


class _Leaving:
    """The replicas that are ending, and what they will free on each node.

    ``resources`` are thousandths and MiB by GPU, CPU and memory; ``marks`` those of ``ClusterState.guests``.
    """

    def __init__(self, session: SchedulingSession) -> None:
        self._session = session
        c, h, slots = session.cluster, session.demand.holders, session.leaving_slots()
        self._slots = slots[h.row[slots] >= 0]
        self.resources = tuple(np.zeros_like(free) for free in (c.gpu_free, c.gmem_free, c.cpu_free, c.mem_free))
        self.marks = np.zeros_like(c.guests)
        held = h.gpu, h.gmem, h.cpu, h.mem, h.marks
        for total, of_slots in zip((*self.resources, self.marks), held, strict=True):
            np.add.at(total, h.row[self._slots], of_slots[self._slots])

    def _on(self, row: int) -> list[ReplicaKey]:
        h = self._session.demand.holders
        keys = [h.keys[slot] for slot in self._slots[h.row[self._slots] == row].tolist()]
        return [key for key in keys if key is not None]

    def contenders(self, active_holds: Sequence[ActiveHold]) -> set[ReplicaKey]:
        """Return the replicas whose end may free a claim: on its node, or within the limits of its owners."""
        session = self._session
        keys = {key for active in active_holds for key in self._on(active.claim.row)}
        for account in {active.account for active in active_holds}:
            need = sum(active.claim.permille for active in active_holds if active.account == account)
            if not session.ledger.admits(account, need):
                keys.update(key for key in session.outcome.leaving if self._competes(key, account))
        return keys

    def _competes(self, key: ReplicaKey, account: Account) -> bool:
        """Return True if a replica is of the same project, or of the same user."""
        other = self._session.demand.accounts[key]
        return other.project == account.project or other.user == account.user


class _WaitingHolds:
    """The single replicas that are known to wait further without a trial: the usual case; all others are tried.

    Many are checked at once, and fewer after each change, because a change makes the results obsolete.
    """

    def __init__(self, session: SchedulingSession, keys: list[ReplicaKey], leaving: _Leaving) -> None:
        self._session, self._keys, self._leaving = session, keys, leaving
        self._next, self._many = 0, len(keys)  # to check; in the order in which they are asked for
        self._known: set[ReplicaKey] = set()
        self._moves = session.moves

    def has(self, key: ReplicaKey) -> bool:
        """Return whether a replica waits further; asked in the order of the keys."""
        if self._moves != self._session.moves:
            self._moves, self._next, self._many = self._session.moves, self._keys.index(key), 1
        if self._keys[self._next : self._next + 1] == [key]:
            some = self._keys[self._next : self._next + self._many]
            self._next, self._many = self._next + self._many, 2 * self._many
            self._known = _still_waiting(self._session, some, self._leaving)
        return key in self._known


def _still_waiting(session: SchedulingSession, keys: Sequence[ReplicaKey], leaving: _Leaving) -> set[ReplicaKey]:
    """Return the single replicas whose held GPUs are in use until others end, while no other place is free."""
    held = [(active, group) for active, group in map(partial(_held, session), keys) if group is not None]
    if not held:
        return set()
    c, claims = session.cluster, [active.claim for active, _ in held]
    rows, gpu, gmem = (np.array([getattr(claim, name) for claim in claims]) for name in ("row", "gpu", "gmem"))
    used, free = gpu > 0, (c.gpu_free[rows], c.gmem_free[rows], c.cpu_free[rows], c.mem_free[rows])
    open_ = c.up[rows] & (c.available[rows] | ~used).all(axis=1)
    requests = [group.shape.request for _, group in held]
    permille, memory, count = np.array([(r.permille, r.memory_mib or 0, r.count) for r in requests]).T[:, :, None]
    possible = np.where(memory > 0, free[1] + gmem >= memory, free[0] + gpu >= permille)  # on its node, without it
    blocked = open_ & _lacks(used, free) & (possible.sum(axis=1) < count[:, 0])
    later = [now + more[rows] for now, more in zip(free, leaving.resources, strict=True)]
    marks = np.array([mark_of(claim.mode, claim.user) for claim in claims])[:, None]
    alike = hosts_only(c.guests[rows] - leaving.marks[rows], marks) | (marks == NO_MARK) | ~used
    reserved = np.array([active.hold.kind is HoldKind.RESERVED for active, _ in held])
    waits = blocked & (reserved | (alike.all(axis=1) & ~_lacks(used, later)))
    found = [held[at] for at in np.flatnonzero(waits).tolist()]
    placed = _placed_elsewhere(session, {group.shape for _, group in found})
    return {active.hold.key for active, group in found if group.shape not in placed}


def _held(session: SchedulingSession, key: ReplicaKey) -> tuple[ActiveHold, Group | None]:
    """Return the hold of a replica and its group; None if it is not a single replica that may still start there."""
    active, group = session.holds.active[key], session.demand.group_of(key)
    if group is None or active.claim.row < 0 or group.size != 1 or active.account != group.account:
        return active, None
    admitted = session.placer.may_enter(group.shape, active.claim.row) and session.ledger.room(active.account) >= 0
    return active, group if admitted else None


def _lacks(used: Bools, free: Sequence[Ints]) -> Bools:
    """Return which charged claims exceed what is free: of the GPUs that they use, the CPUs or the memory."""
    gpu, gmem, cpu, mem = free
    return np.asarray((((gpu < 0) | (gmem < 0)) & used).any(axis=1) | (cpu < 0) | (mem < 0))


def _placed_elsewhere(session: SchedulingSession, shapes: AbstractSet[Shape]) -> AbstractSet[Shape]:
    """Return the shapes that have a place now."""
    if len(shapes) <= _FEW:
        return {shape for shape in shapes if session.placer.fits_anywhere(shape)}
    waiting = session.demand.first_groups().shapes
    return set(waiting.named(fitting(session.cluster, waiting, waiting.mask(shapes))))


def _start_of(
    session: SchedulingSession, group: Group | None, leader: ReplicaKey, active_holds: list[ActiveHold]
) -> Placed:
    if group is None:
        return []
    mark, pending = session.log.checkpoint(), session.demand.pending
    if _take(session, group, active_holds):
        placed = [(pending[active.hold.key], active.claim) for active in active_holds]
        others = others_of(session, group, pending[leader], placed)
        if others is not None:
            return placed + others
    session.log.rollback(mark)
    return find_all(session, group, pending[leader]) if session.placer.fits_anywhere(group.shape) else []


def _take(session: SchedulingSession, group: Group, active_holds: list[ActiveHold]) -> bool:
    """Charge the held GPUs if all are free and within the limits; otherwise only some of them are charged."""
    for active in active_holds:
        if not session.ledger.admits(active.account, active.claim.permille) or not session.placer.holds(active.claim):
            return False
        if not session.placer.may_enter(group.shape, active.claim.row):
            return False
        session.charge(active.claim, active.account)
    return len(active_holds) >= group.size


def _still_promising(
    session: SchedulingSession, group: Group, active_holds: list[ActiveHold], leaving: _Leaving
) -> bool:
    cluster = session.cluster
    if len(active_holds) < group.size:
        return False
    for active in active_holds:
        row = active.claim.row
        if not cluster.up[row] or not cluster.available[row][active.claim.gpu > 0].all():
            return False
        if not session.placer.may_enter(group.shape, row):
            return False
    if active_holds[0].hold.kind is HoldKind.RESERVED:
        return session.ledger.admits(group.account, sum(active.claim.permille for active in active_holds))
    mark = session.log.checkpoint()
    for key in leaving.contenders(active_holds):
        session.discharge_running(key)
    promising = _take(session, group, active_holds)
    session.log.rollback(mark)
    return promising
