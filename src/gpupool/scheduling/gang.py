"""Gangs: members that start together or not at all, near each other.

Where they go: all on one node if one has the room, else in the fullest domain that has it, there on as few nodes as
possible. How many members fit on a node is worked out for all nodes at once; only the nodes chosen are then filled
member by member, so that each gets the GPUs that suit it best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np

from gpupool.domain.gang import Gang
from gpupool.domain.ids import WorkloadId
from gpupool.domain.units import WHOLE_GPU
from gpupool.scheduling.claims import Bools, Claim, Ints
from gpupool.scheduling.cluster import ClusterState
from gpupool.scheduling.ledger import UNBOUNDED, Account
from gpupool.scheduling.placement import Placer
from gpupool.scheduling.queue import Group
from gpupool.scheduling.session import Session
from gpupool.scheduling.shape import Shape
from gpupool.scheduling.topology import ALONE, domains
from gpupool.scheduling.usable import STRICT, Relax, mode_on, usable_rows, usable_slots
from gpupool.scheduling.values import Eviction, EvictionKind, PendingReplica, ReplicaKey

Placed = list[tuple[PendingReplica, Claim]]


def find_all(session: Session, group: Group, replica: PendingReplica) -> Placed:
    """Places for a replica, or for as many of its gang as can start now, and at least the least; charged."""
    if group.gang is None:
        claim = session.find(group.shape, group.account)
        if claim is None:
            return []
        session.charge(claim, group.account)
        return [(replica, claim)]
    members = [member for member in session.demand.together_with(replica) if member.key not in session.gone]
    if group.gang.mixed and group.joins is None:
        return _place_mixed(session, group, members, []) or []
    claims = place(session, members, group.shape, group.account, group.size) or []
    return list(zip(members, claims, strict=False))


def others_of(session: Session, group: Group, replica: PendingReplica, placed: Placed) -> Placed | None:
    """Places for as many others of a gang that starts; charged. None if one that has to start with it has none."""
    if group.gang is None or group.joins is not None:
        return []
    have = {member.key for member, _ in placed}
    others = [member for member in session.demand.together_with(replica) if member.key not in have]
    if group.gang.mixed:
        return _place_mixed(session, group, others, placed)
    near = [claim for _, claim in placed]
    claims = place(session, others, group.shape, group.account, 1, near=near) or []
    return list(zip(others, claims, strict=False))


def _place_mixed(session: Session, group: Group, members: Sequence[PendingReplica], placed: Placed) -> Placed | None:
    """Places for members that ask for different things, charged; None, nothing charged, if one that must has none.

    ``members`` as in ``Demand.together_with``: those that must start first, then others as space allows. ``placed``
    have their places already.
    """
    demand, mark, found = session.demand, session.log.checkpoint(), list[tuple[PendingReplica, Claim]]()
    must = max(0, (group.gang.least if group.gang else 0) - len(placed))
    if len(members) < must:
        return None
    shapes = [demand.shape_of(member) for member in members]
    runs = [0, *(at for at in range(1, len(members)) if shapes[at] is not shapes[at - 1] or at == must), len(members)]
    for begin, end in pairwise(runs):
        near = [claim for _, claim in [*placed, *found]]
        some = members[begin:end]
        claims = place(session, some, shapes[begin], group.account, len(some) if begin < must else 0, near=near)
        if claims is None:
            session.log.rollback(mark)
            return None
        found += zip(some, claims, strict=False)
    return found


def evict_whole_gangs(session: Session) -> None:
    """Where evictions of this cycle leave fewer than the least of a gang, the rest of it goes as well."""
    hit: dict[WorkloadId, Eviction] = {}
    for eviction in session.evictions:
        hit.setdefault(eviction.workload, eviction)
    for workload, first in hit.items():
        members = session.demand.gangs.get(workload)
        if members is None:
            continue
        rest = members.running - session.leaving
        if len(rest | _starting(session, workload)) < members.gang.least:
            _evict_all(session, {key for key in rest if session.demand.running[key].preemptible}, first)


def evict_stale(session: Session) -> None:
    """Send gangs back to the queue of which too few members have been running for too long, with nobody to join.

    Protected gangs stay, as all protected work does.
    """
    for workload, since in sorted(session.demand.gangs.short.items()):
        members = session.demand.gangs.get(workload)
        if members is None:
            continue
        rest = members.running - session.leaving
        coming = {key for key in session.ghosts if key[0] == workload} | _starting(session, workload)
        if not rest or len(rest) + len(coming) >= members.gang.least:
            continue
        if not all(session.demand.running[key].preemptible for key in rest):
            continue
        due = since + session.settings.stale_gang_s
        if due > session.now:
            session.alarms.append(due)
            continue
        ran, least = len(rest), members.gang.least
        reason = f"Only {ran} of at least {least} members of its gang run, and there was no place for the others."
        first = min(rest)
        _evict_all(session, rest, Eviction(*first, *first, EvictionKind.STALE_GANG, reason))


def _starting(session: Session, workload: WorkloadId) -> set[ReplicaKey]:
    return {replica.key for replica, _, _ in session.placed if replica.workload == workload}


def _evict_all(session: Session, members: set[ReplicaKey], like: Eviction) -> None:
    """End the members of one gang; those who would have joined it in this cycle do not."""
    session.revoke(like.workload)
    for key in sorted(members):
        session.leaving.add(key)
        session.evictions.append(replace(like, workload=key[0], index=key[1]))


class Refusals:
    """Gangs for which there was no space in this cycle: those of the same shape as large or larger need no look."""

    def __init__(self) -> None:
        self._least: dict[tuple[Shape, str], int] = {}  # shape, strict label -> the smallest that was refused

    def cover(self, group: Group) -> bool:
        """Whether the answer is known to be no."""
        if group.gang is None or group.joins is not None:
            return False
        labels = {"", group.gang.within} if group.gang.strict else {""}
        return any(self._least.get((group.shape, label), UNBOUNDED) <= group.size for label in labels)

    def add(self, session: Session, group: Group) -> None:
        """There was no place for a gang; remembered if it was for lack of space, not of quota."""
        gang, shape = group.gang, group.shape
        if gang is None or group.joins is not None or shape.fixed_permille is None:
            return
        if not gang.mixed and affordable(session, shape, group.account) >= group.size:
            key = (shape, gang.within if gang.strict else "")
            self._least[key] = min(group.size, self._least.get(key, UNBOUNDED))


def place(
    session: Session,
    members: Sequence[PendingReplica],
    shape: Shape,
    account: Account,
    least: int,
    *,
    near: Sequence[Claim] = (),
) -> list[Claim] | None:
    """A place for each of the first members, as many as can have one, or None if fewer than ``least`` can.

    ``members`` are of one gang and of one shape (see ``find_all`` for others). The claims are charged in the session
    through its log: whoever does not want them rolls back to a checkpoint taken before. Members of the gang that run
    already, and those of the claims ``near``, draw these near.
    """
    wanted = min(len(members), affordable(session, shape, account))
    if not members or wanted < least:
        return None
    gang = members[0].gang or Gang(least, len(members))
    mark = session.log.checkpoint()
    claims: list[Claim] = []
    for row, count in _order(_Site(session, shape, gang, members[0].workload, near), wanted, least):
        claims += _fill(session, shape, account, row, min(count, wanted - len(claims)))
        if len(claims) == wanted:
            break
    if len(claims) < least:
        session.log.rollback(mark)
        return None
    return claims


def affordable(session: Session, shape: Shape, account: Account) -> int:
    """How many replicas of a shape the bounds on use leave room for."""
    if shape.gpuless:
        return UNBOUNDED
    return max(0, session.ledger.room(account) // max(session.placer.least_permille(shape), 1))


def capacity(placer: Placer, shape: Shape, rows: Ints, most: int, relax: Relax = STRICT) -> Ints:
    """How many replicas of a shape fit on each of ``rows`` at once, counted up to ``most``."""
    c, count = placer.cluster, shape.request.count
    ok, _ = usable_slots(c, shape, rows, placer.accepted(shape), None, relax)
    fits = usable_rows(c, shape, rows, ok, relax)
    if shape.gpuless:
        number = np.full(len(rows), most)
    else:
        number = ok.sum(axis=1) // count if shape.whole else _parts(c, shape, rows, ok, relax)
    cpu, mem = (c.cpu_total, c.mem_total) if relax.use else (c.cpu_free, c.mem_free)
    if shape.cpu_milli:
        number = np.minimum(number, cpu[rows] // shape.cpu_milli)
    if shape.mem_mib:
        number = np.minimum(number, mem[rows] // shape.mem_mib)
    return np.where(fits, np.clip(number, 0, most), 0)


def _parts(c: ClusterState, shape: Shape, rows: Ints, ok: Bools, relax: Relax) -> Ints:
    """How many replicas that take parts of GPUs: each needs ``count`` GPUs that differ."""
    count, per_slot = shape.request.count, _per_slot(c, shape, rows, ok, relax)
    number = per_slot.sum(axis=1) // count
    while count > 1:  # k replicas fit if the slots, each used k times at most, serve k x count
        fewer = np.minimum(per_slot, number[:, None]).sum(axis=1) // count
        if (fewer == number).all():
            break
        number = fewer
    return np.asarray(number)


def _per_slot(c: ClusterState, shape: Shape, rows: Ints, ok: Bools, relax: Relax = STRICT) -> Ints:
    need, mem = shape.needs(c.gmem_total[rows])
    free, gmem = (WHOLE_GPU, c.gmem_total[rows]) if relax.use else (c.gpu_free[rows], c.gmem_free[rows])
    return np.where(ok, np.minimum(free // np.maximum(need, 1), gmem // np.maximum(mem, 1)), 0)


@dataclass(slots=True, eq=False)
class _Site:
    """The nodes that come into question for a gang, with how many members fit on each, in tiers of nearness."""

    session: Session
    shape: Shape
    gang: Gang
    workload: WorkloadId
    near: Sequence[Claim]
    anchored: bool = False  # some members have their places already

    def tiers(self, wanted: int) -> Iterator[tuple[Ints, Ints, Ints]]:
        """(rows, how many fit on each, domain of each), the tier nearest to the members that run first."""
        c = self.session.cluster
        rows = np.flatnonzero(c.present & c.up)
        fit = capacity(self.session.placer, self.shape, rows, wanted)
        rows, fit = rows[fit > 0], fit[fit > 0]
        domain = domains(c, self.gang.within)[rows]
        if self.gang.strict:
            rows, fit, domain = rows[domain != ALONE], fit[domain != ALONE], domain[domain != ALONE]
        else:  # each on its own
            domain = np.where(domain == ALONE, -2 - rows, domain)
        for tier in self._nearness(rows, domain):
            yield rows[tier], fit[tier], domain[tier]

    def _nearness(self, rows: Ints, domain: Ints) -> Iterator[Bools]:
        used = self._used_rows()
        self.anchored = bool(len(used))
        if not self.anchored:
            yield np.ones(len(rows), np.bool_)
            return
        same_node = np.isin(rows, used)
        same_domain = np.isin(domain, domains(self.session.cluster, self.gang.within)[used]) & ~same_node
        yield same_node
        yield same_domain
        if not self.gang.strict:
            yield ~same_node & ~same_domain

    def _used_rows(self) -> Ints:
        """Where members run that stay, or start in this cycle."""
        session, members = self.session, self.session.demand.gangs.get(self.workload)
        running = members.running - session.leaving if members is not None else set()
        claims = [session.cluster.claims.get(key) for key in running] + list(self.near)
        claims += [claim for replica, claim, _ in session.placed if replica.workload == self.workload]
        return np.unique([claim.row for claim in claims if claim is not None and claim.row >= 0]).astype(np.int64)


def _order(site: _Site, wanted: int, least: int) -> Iterator[tuple[int, int]]:
    """The nodes to fill and how many members to put on each, best first; more than needed should one give less."""
    for rows, fit, domain in site.tiers(wanted):
        if not len(rows):
            continue
        room = np.asarray(site.session.cluster.gpu_free[rows].clip(0).sum(axis=1))
        scores = site.session.placer.scores(site.shape)[rows]
        if fit.max() >= wanted:  # one node for all: the fullest, in the fullest domain
            _, which = np.unique(domain, return_inverse=True)
            best = int(np.lexsort((scores, np.bincount(which, room)[which], room, fit, fit < wanted))[0])
            yield int(rows[best]), wanted
        left = wanted
        enough = least if site.gang.strict and not site.anchored else 0
        for members in _domains_in_order(fit, domain, room, wanted, enough):
            for at in _nodes_in_order(fit[members], scores[members], left):
                yield int(rows[members[at]]), int(fit[members[at]])
                left = max(0, left - int(fit[members[at]]))
            if site.gang.strict and not site.anchored:
                return


def _domains_in_order(fit: Ints, domain: Ints, room: Ints, wanted: int, least: int) -> Iterator[Ints]:
    """Positions of the nodes of one domain after the other: the fullest that fits, or else the one with most room."""
    _, which = np.unique(domain, return_inverse=True)
    total, free = np.bincount(which, fit).astype(np.int64), np.bincount(which, room)
    left, alive = wanted, np.ones(len(total), np.bool_)
    while alive.any():
        served = np.minimum(total, max(left, 1))
        best = int(np.lexsort((free, total, -served, ~alive))[0])
        if total[best] < least:
            return
        alive[best] = False
        left -= int(total[best])
        yield np.flatnonzero(which == best)


def _nodes_in_order(fit: Ints, scores: Ints, wanted: int) -> Iterator[int]:
    """Most members first, the last of them on the node that has just enough room: as few nodes as possible."""
    order = np.lexsort((scores, -fit)).tolist()
    left = wanted
    while order:
        enough = [at for at in order if fit[at] >= left] if 0 < left <= fit[order[0]] else []
        best = min(enough, key=lambda at: int(fit[at])) if enough else order[0]
        order.remove(best)
        left -= int(fit[best])
        yield best


def _fill(session: Session, shape: Shape, account: Account, row: int, count: int) -> list[Claim]:
    """Put up to so many members on one node."""
    mark = session.log.checkpoint()
    claims = _filled(session, shape, account, count, partial(session.placer.on_row, shape, row))
    if len(claims) == count or shape.whole or shape.request.count == 1:
        return claims
    session.log.rollback(mark)
    evenly = _filled(session, shape, account, count, partial(_on_emptiest, session, shape, row))
    if len(evenly) > len(claims):
        return evenly
    session.log.rollback(mark)
    return _filled(session, shape, account, count, partial(session.placer.on_row, shape, row))


def _filled(
    session: Session, shape: Shape, account: Account, count: int, find: Callable[[int | None], Claim | None]
) -> list[Claim]:
    claims: list[Claim] = []
    while len(claims) < count:
        room = session.ledger.room(account)
        claim = find(None if shape.fixed_permille is not None else room)
        if claim is None or (claim.permille > room and not shape.gpuless):
            break
        session.charge(claim, account)
        claims.append(claim)
    return claims


def _on_emptiest(session: Session, shape: Shape, row: int, budget: int | None) -> Claim | None:
    """A place on the GPUs with most room, so that enough that differ are left for other members of several parts."""
    c, rows = session.cluster, np.array([row])
    ok, _ = usable_slots(c, shape, rows, session.placer.accepted(shape), budget)
    if not usable_rows(c, shape, rows, ok)[0]:
        return None
    chosen = np.argsort(-_per_slot(c, shape, rows, ok)[0], kind="stable")[: shape.request.count]
    need, mem = shape.needs(c.gmem_total[row])
    gpu, gmem = np.zeros(c.slots, np.int64), np.zeros(c.slots, np.int64)
    gpu[chosen], gmem[chosen] = need[chosen], mem[chosen]
    return Claim(row, gpu, gmem, shape.cpu_milli, shape.mem_mib, mode_on(c, shape, row, gpu), shape.user)
