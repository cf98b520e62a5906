"""Settlement of holds: start replicas whose held GPUs are free, and drop holds that cannot be used."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpupool.scheduling.gang_placement import Placed, find_all, others_of
from gpupool.scheduling.session import ActiveHold, SchedulingSession
from gpupool.scheduling.state.allocation import Bools, Claim
from gpupool.scheduling.state.cluster import ClusterState, marks_of
from gpupool.scheduling.state.ledger import Account
from gpupool.scheduling.state.queue import Group
from gpupool.scheduling.state.sharing_modes import NO_MARK, hosts_only, mark_of
from gpupool.scheduling.values import HoldKind, ReplicaKey


def settle_holds(session: SchedulingSession) -> None:
    """Start replicas whose held GPUs are free (or that fit on others); drop holds that cannot be used.

    The members of a gang start together, or all of its holds stay, or none.
    """
    together: dict[ReplicaKey, list[ReplicaKey]] = {}
    for key in session.holds.active:
        if key in session.demand.pending:  # else it is being moved here
            together.setdefault(session.demand.gangs.leader(key), []).append(key)
    leaving = _Leaving(session)
    for leader, keys in together.items():
        group = session.demand.group_of(leader)
        if (
            group is not None
            and len(keys) == 1
            and _still_waits(session, group, session.holds.active[keys[0]], leaving)
        ):
            # move it behind the earlier ones, to keep the order
            session.holds.move_to_end(keys[0])
            continue
        active_holds = [session.holds.remove(key) for key in keys]
        placed = _start_of(session, group, leader, active_holds)
        for replica, claim in placed:
            session.outcome.grant(replica, claim, active_holds[0].account)
        if not placed and group is not None and _still_promising(session, group, active_holds, leaving):
            for active in active_holds:
                session.holds.add(active)


class _Leaving:
    """The replicas that are ending, by node."""

    def __init__(self, session: SchedulingSession) -> None:
        self._session = session
        self._on: dict[int, list[ReplicaKey]] = {}
        claims = session.cluster.claims
        for key in session.outcome.leaving:
            if (claim := claims.get(key)) is not None:
                self._on.setdefault(claim.row, []).append(key)

    def claims_on(self, row: int) -> list[Claim]:
        """Return their claims on a node."""
        return [self._session.cluster.claims[key] for key in self._on.get(row, ())]

    def contenders(self, active_holds: Sequence[ActiveHold]) -> set[ReplicaKey]:
        """Return the replicas whose end may free a claim: on its node, or within the limits of its owners."""
        session = self._session
        keys = {key for active in active_holds for key in self._on.get(active.claim.row, ())}
        for account in {active.account for active in active_holds}:
            need = sum(active.claim.permille for active in active_holds if active.account == account)
            if not session.ledger.admits(account, need):
                keys.update(key for key in session.outcome.leaving if self._competes(key, account))
        return keys

    def _competes(self, key: ReplicaKey, account: Account) -> bool:
        """Return True if a replica is of the same project, or of the same user."""
        other = self._session.demand.accounts[key]
        return other.project == account.project or other.user == account.user


def _still_waits(session: SchedulingSession, group: Group, active: ActiveHold, leaving: _Leaving) -> bool:
    """Return True if, without a trial, the held GPUs are known to be still in use and no other place is free.

    This is the usual case. All others are tried.
    """
    cluster, claim, placer = session.cluster, active.claim, session.placer
    row, shape = claim.row, group.shape
    if row < 0 or group.size != 1 or active.account != group.account:
        return False
    if not _lacks(cluster, claim, ()) or _fits_beside(cluster, claim, group) or placer.fits_anywhere(shape):
        return False
    if not cluster.up[row] or not cluster.available[row][claim.gpu > 0].all() or not placer.may_enter(shape, row):
        return False
    if session.ledger.room(active.account) < 0:
        return False
    if active.hold.kind is HoldKind.RESERVED:
        return True
    gone = leaving.claims_on(row)
    return not (_lacks(cluster, claim, gone) or _mixes(cluster, claim, gone))


def _lacks(cluster: ClusterState, claim: Claim, gone: Sequence[Claim]) -> bool:
    """Return True if a charged claim exceeds what is free, once some others have ended."""
    row, used = claim.row, claim.gpu > 0
    gpu, gmem = cluster.gpu_free[row], cluster.gmem_free[row]
    cpu, mem = int(cluster.cpu_free[row]), int(cluster.mem_free[row])
    for other in gone:
        gpu, gmem, cpu, mem = gpu + other.gpu, gmem + other.gmem, cpu + other.cpu_milli, mem + other.mem_mib
    short: Bools = (gpu < 0) | (gmem < 0)
    return bool(short[used].any()) or cpu < 0 or mem < 0


def _mixes(cluster: ClusterState, claim: Claim, gone: Sequence[Claim]) -> bool:
    """Return True if a charged claim shares a GPU with other kinds of slices, once some claims have ended."""
    mark = mark_of(claim.mode, claim.user)
    guests = cluster.guests[claim.row] - sum(marks_of(other) for other in gone)
    return mark != NO_MARK and not hosts_only(guests, mark)[claim.gpu > 0].all()


def _fits_beside(cluster: ClusterState, claim: Claim, group: Group) -> bool:
    """Return True if the node of a claim, without it, might have another place for the group."""
    request, row = group.shape.request, claim.row
    if request.memory_mib is None:
        free = cluster.gpu_free[row] + claim.gpu >= request.permille
    else:
        free = cluster.gmem_free[row] + claim.gmem >= request.memory_mib
    return int(np.count_nonzero(free)) >= request.count


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
