"""Settle holds: start those whose kept space has become free, and forget what came to nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpupool.scheduling.claims import Bools, Claim
from gpupool.scheduling.cluster import ClusterState
from gpupool.scheduling.gang import Placed, find_all, others_of
from gpupool.scheduling.modes import NO_MARK, mark_of
from gpupool.scheduling.queue import Group
from gpupool.scheduling.session import Ghost, Session
from gpupool.scheduling.values import HoldKind, ReplicaKey


def settle_holds(session: Session) -> None:
    """Start those whose kept space has become free (or who fit elsewhere); forget holds that came to nothing.

    The members of a gang start together, or all holds of it stay, or none.
    """
    together: dict[ReplicaKey, list[ReplicaKey]] = {}
    for key in session.ghosts:
        if key in session.demand.pending:  # else it is on the way out to be moved here
            together.setdefault(session.demand.gangs.leader(key), []).append(key)
    leaving = _Leaving(session)
    for leader, keys in together.items():
        group = session.demand.group_of(leader)
        if group is not None and len(keys) == 1 and _still_waits(session, group, session.ghosts[keys[0]], leaving):
            session.ghosts[keys[0]] = session.ghosts.pop(keys[0])  # behind those before it, like all others
            continue
        ghosts = [session.drop_ghost(key) for key in keys]
        placed = _start_of(session, group, leader, ghosts)
        for replica, claim in placed:
            session.note_grant(replica, claim, ghosts[0].account)
        if not placed and group is not None and _still_promising(session, group, ghosts, leaving):
            for ghost in ghosts:
                session.add_ghost(ghost)


class _Leaving:
    """Those on the way out, by the node that they leave."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._on: dict[int, list[ReplicaKey]] = {}
        claims = session.cluster.claims
        for key in session.leaving:
            if (claim := claims.get(key)) is not None:
                self._on.setdefault(claim.row, []).append(key)

    def claims_on(self, row: int) -> list[Claim]:
        """What they hold on a node."""
        return [self._session.cluster.claims[key] for key in self._on.get(row, ())]

    def beside(self, ghosts: Sequence[Ghost]) -> set[ReplicaKey]:
        """Those whose leaving may make a claim free: on its node, and where bounds are in the way of its owners."""
        session = self._session
        keys = {key for ghost in ghosts for key in self._on.get(ghost.claim.row, ())}
        for account in {ghost.account for ghost in ghosts}:
            need = sum(ghost.claim.permille for ghost in ghosts if ghost.account == account)
            if not session.ledger.admits(account, need):
                keys.update(session.leaving_of(account))
        return keys


def _still_waits(session: Session, group: Group, ghost: Ghost, leaving: _Leaving) -> bool:
    """Whether it is plain without taking the ghost out that its space is not free, will be, and nothing else is.

    That is how most holds are, most of the time. What is not plain is tried.
    """
    cluster, claim, placer = session.cluster, ghost.claim, session.placer
    row, shape = claim.row, group.shape
    if row < 0 or group.size != 1 or ghost.account != group.account or mark_of(claim.mode, claim.user) != NO_MARK:
        return False
    if not _lacks(cluster, claim, ()) or _fits_beside(cluster, claim, group) or placer.fits_anywhere(shape):
        return False
    if not cluster.up[row] or not cluster.available[row][claim.gpu > 0].all() or not placer.may_enter(shape, row):
        return False
    if session.ledger.room(ghost.account) < 0:
        return False
    return ghost.hold.kind is HoldKind.RESERVED or not _lacks(cluster, claim, leaving.claims_on(row))


def _lacks(cluster: ClusterState, claim: Claim, gone: Sequence[Claim]) -> bool:
    """Whether a claim that is charged takes more of something than there is, if some others were gone."""
    row, used = claim.row, claim.gpu > 0
    gpu, gmem = cluster.gpu_free[row], cluster.gmem_free[row]
    cpu, mem = int(cluster.cpu_free[row]), int(cluster.mem_free[row])
    for other in gone:
        gpu, gmem, cpu, mem = gpu + other.gpu, gmem + other.gmem, cpu + other.cpu_milli, mem + other.mem_mib
    short: Bools = (gpu < 0) | (gmem < 0)
    return bool(short[used].any()) or cpu < 0 or mem < 0


def _fits_beside(cluster: ClusterState, claim: Claim, group: Group) -> bool:
    """Whether so much would be free on the node of a claim, were it not charged, that it might go elsewhere on it."""
    request, row = group.shape.request, claim.row
    if request.memory_mib is None:
        free = cluster.gpu_free[row] + claim.gpu >= request.permille
    else:
        free = cluster.gmem_free[row] + claim.gmem >= request.memory_mib
    return int(np.count_nonzero(free)) >= request.count


def _start_of(session: Session, group: Group | None, leader: ReplicaKey, ghosts: list[Ghost]) -> Placed:
    if group is None:
        return []
    mark, pending = session.log.checkpoint(), session.demand.pending
    if _take(session, group, ghosts):
        placed = [(pending[ghost.hold.key], ghost.claim) for ghost in ghosts]
        others = others_of(session, group, pending[leader], placed)
        if others is not None:
            return placed + others
    session.log.rollback(mark)
    return find_all(session, group, pending[leader]) if session.placer.fits_anywhere(group.shape) else []


def _take(session: Session, group: Group, ghosts: list[Ghost]) -> bool:
    """Charge what was kept, if all of it is free and within the bounds; else some of it is charged."""
    for ghost in ghosts:
        if not session.ledger.admits(ghost.account, ghost.claim.permille) or not session.placer.holds(ghost.claim):
            return False
        if not session.placer.may_enter(group.shape, ghost.claim.row):
            return False
        session.charge(ghost.claim, ghost.account)
    return len(ghosts) >= group.size


def _still_promising(session: Session, group: Group, ghosts: list[Ghost], leaving: _Leaving) -> bool:
    cluster = session.cluster
    if len(ghosts) < group.size:
        return False
    for ghost in ghosts:
        row = ghost.claim.row
        if not cluster.up[row] or not cluster.available[row][ghost.claim.gpu > 0].all():
            return False
        if not session.placer.may_enter(group.shape, row):
            return False
    if ghosts[0].hold.kind is HoldKind.RESERVED:
        return session.ledger.admits(group.account, sum(ghost.claim.permille for ghost in ghosts))
    mark = session.log.checkpoint()
    for key in leaving.beside(ghosts):
        session.lift_running(key)
    promising = _take(session, group, ghosts)
    session.log.rollback(mark)
    return promising
