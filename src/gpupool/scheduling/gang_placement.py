"""Gangs: members that start together or not at all, near each other.

All members go to one node if one has room, else to the fullest domain with room, there on as few nodes as possible. The
number of members that fit is computed for all nodes at once. Only the chosen nodes are then filled member by member, so
that each member gets the GPUs that suit it best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np

from gpupool.domain.ids import WorkloadId
from gpupool.domain.work.gang import Gang
from gpupool.scheduling.placement.capacity import Need, capacity, parts_per_slot
from gpupool.scheduling.placement.node_filter import mode_on, usable_rows, usable_slots
from gpupool.scheduling.session import Session
from gpupool.scheduling.state.allocation import Bools, Claim, Ints
from gpupool.scheduling.state.cluster import ALONE, Shape, domains
from gpupool.scheduling.state.ledger import UNBOUNDED, Account
from gpupool.scheduling.state.queue import Group
from gpupool.scheduling.values import Eviction, EvictionKind, PendingReplica, ReplicaKey

Placed = list[tuple[PendingReplica, Claim]]
_OnRow = Callable[[Shape, int, int | None], Claim | None]  # shape, row, budget


def find_all(session: Session, group: Group, replica: PendingReplica) -> Placed:
    """Return places for a replica, or for all of its gang that can start now if enough of them can; charged."""
    if group.gang is None:
        claim = session.find(group.shape, group.account)
        if claim is None:
            return []
        session.charge(claim, group.account)
        return [(replica, claim)]
    members = session.waiting_with(replica)
    if group.gang.mixed and group.joins is None:
        return _place_mixed(session, group, members, []) or []
    claims = place(session, members, group.shape, group.account, group.size) or []
    return list(zip(members, claims, strict=False))


def others_of(session: Session, group: Group, replica: PendingReplica, placed: Placed) -> Placed | None:
    """Return places for as many other members of a gang that starts as possible; charged.

    Return None if a member that has to start with it has no place.
    """
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
    """Return places for members of different shapes, charged; None if a member that must start has none.

    With None, nothing is charged. ``members`` are as in ``Demand.together_with``: those that must start first, then
    others as space allows. ``placed`` have their places already.
    """
    demand, mark, found = session.demand, session.log.checkpoint(), list[tuple[PendingReplica, Claim]]()
    must = max(0, (group.gang.least if group.gang else 0) - len(placed))
    if len(members) < must:
        return None
    shapes = [demand.shape_of(member) for member in members]
    begins = [at for at in range(len(members)) if at in {0, must} or shapes[at] is not shapes[at - 1]]
    for begin, end in pairwise([*begins, len(members)]):
        near = [claim for _, claim in [*placed, *found]]
        some = members[begin:end]
        claims = place(session, some, shapes[begin], group.account, len(some) if begin < must else 0, near=near)
        if claims is None:
            session.log.rollback(mark)
            return None
        found += zip(some, claims, strict=False)
    return found


def evict_whole_gangs(session: Session) -> None:
    """Evict the preemptible rest of a gang where evictions of this cycle leave fewer members than its least."""
    hit: dict[WorkloadId, Eviction] = {}
    for eviction in session.outcome.evictions:
        hit.setdefault(eviction.workload, eviction)
    for workload, first in hit.items():
        members = session.demand.gangs.get(workload)
        if members is None:
            continue
        rest = members.running - session.outcome.leaving
        if len(rest | _starting(session, workload)) < members.gang.least:
            _evict_all(session, {key for key in rest if session.demand.running[key].preemptible}, first)


def evict_stale(session: Session) -> None:
    """Send gangs back to the queue if too few members have run for too long and no others start.

    Protected gangs stay, as all protected work does.
    """
    for workload, since in sorted(session.demand.gangs.short.items()):
        members = session.demand.gangs.get(workload)
        if members is None:
            continue
        rest = members.running - session.outcome.leaving
        coming = {key for key in session.holds.active if key[0] == workload} | _starting(session, workload)
        if not rest or len(rest) + len(coming) >= members.gang.least:
            continue
        if not all(session.demand.running[key].preemptible for key in rest):
            continue
        due = since + session.settings.stale_gang_s
        if due > session.now:
            session.outcome.wake_running_at(due)
            continue
        ran, least = len(rest), members.gang.least
        reason = f"Its gang needs at least {least} members; only {ran} run, and the others found no free GPUs."
        first = min(rest)
        _evict_all(session, rest, Eviction(*first, *first, EvictionKind.STALE_GANG, reason))


def _starting(session: Session, workload: WorkloadId) -> set[ReplicaKey]:
    return {replica.key for replica, _, _ in session.outcome.placed if replica.workload == workload}


def _evict_all(session: Session, members: set[ReplicaKey], like: Eviction) -> None:
    """Evict the members of one gang; those that would have joined it in this cycle do not start."""
    session.revoke(like.workload)
    for key in sorted(members):
        session.outcome.evict(replace(like, workload=key[0], index=key[1]))


class Refusals:
    """Gangs without space in this cycle; gangs of the same shape that are as large or larger need no search."""

    def __init__(self) -> None:
        self._least: dict[tuple[Shape, str], int] = {}  # shape, strict label -> the smallest that was refused

    def cover(self, group: Group) -> bool:
        """Return whether it is known that a gang has no place."""
        if group.gang is None or group.joins is not None:
            return False
        labels = {"", group.gang.within} if group.gang.strict else {""}
        return any(self._least.get((group.shape, label), UNBOUNDED) <= group.size for label in labels)

    def add(self, session: Session, group: Group) -> None:
        """Remember a gang that has no place, if it lacks space and not quota."""
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
    """Return a place for each of the first members, as many as possible; None if fewer than ``least`` have one.

    ``members`` are of one gang and of one shape (see ``find_all`` for others). The claims are charged in the session
    through its log: a caller that does not want them rolls back to a checkpoint taken before. Places are near the
    members that run already and near the claims ``near``.
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
    """Return for how many replicas of a shape the quotas and limits leave room."""
    if shape.gpuless:
        return UNBOUNDED
    return max(0, session.ledger.room(account) // max(session.placer.least_permille(shape), 1))


@dataclass(slots=True, eq=False)
class _Site:
    """The candidate nodes for a gang, with how many members fit on each, in tiers of nearness."""

    session: Session
    shape: Shape
    gang: Gang
    workload: WorkloadId
    near: Sequence[Claim]
    anchored: bool = False  # some members have their places already

    def tiers(self, wanted: int) -> Iterator[tuple[Ints, Ints, Ints]]:
        """Yield (rows, how many fit on each, domain of each), the tier nearest to the placed members first."""
        c = self.session.cluster
        rows = np.flatnonzero(c.present & c.up)
        fit = capacity(c, Need(self.shape, self.session.placer.accepted(self.shape), UNBOUNDED, wanted), rows)
        rows, fit = rows[fit > 0], fit[fit > 0]
        domain = domains(c, self.gang.within)[rows]
        if self.gang.strict:
            rows, fit, domain = rows[domain != ALONE], fit[domain != ALONE], domain[domain != ALONE]
        else:  # a node without the label is a domain of its own
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
        """Return the rows where members run and stay, or start in this cycle."""
        session, members = self.session, self.session.demand.gangs.get(self.workload)
        running = members.running - session.outcome.leaving if members is not None else set()
        claims = [session.cluster.claims.get(key) for key in running] + list(self.near)
        claims += [claim for replica, claim, _ in session.outcome.placed if replica.workload == self.workload]
        return np.unique([claim.row for claim in claims if claim is not None and claim.row >= 0]).astype(np.int64)


def _order(site: _Site, wanted: int, least: int) -> Iterator[tuple[int, int]]:
    """Yield the nodes to fill and how many members to put on each, best first; more than needed if one takes fewer."""
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
    """Yield the node positions of one domain after another: the fullest that fits, else the one with most room."""
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
    """Yield the nodes with most members first, so that as few nodes as possible are used.

    The last members go to the node that has just enough room.
    """
    order = np.lexsort((scores, -fit)).tolist()
    left = wanted
    while order:
        enough = [at for at in order if fit[at] >= left] if 0 < left <= fit[order[0]] else []
        best = min(enough, key=lambda at: int(fit[at])) if enough else order[0]
        order.remove(best)
        left -= int(fit[best])
        yield best


def _fill(session: Session, shape: Shape, account: Account, row: int, count: int) -> list[Claim]:
    """Put up to ``count`` members on one node and return their claims, charged."""
    mark = session.log.checkpoint()
    claims = _filled(session, shape, account, row, count, session.placer.on_row)
    if len(claims) == count or shape.whole or shape.request.count == 1:
        return claims
    session.log.rollback(mark)
    evenly = _filled(session, shape, account, row, count, partial(_on_emptiest, session))
    if len(evenly) > len(claims):
        return evenly
    session.log.rollback(mark)
    return _filled(session, shape, account, row, count, session.placer.on_row)


def _filled(session: Session, shape: Shape, account: Account, row: int, count: int, on_row: _OnRow) -> list[Claim]:
    find, claims = partial(on_row, shape, row), list[Claim]()
    while len(claims) < count:
        room = session.ledger.room(account)
        budget = None if shape.fixed_permille is not None else room
        claim = session.permitted(shape, account, find(budget), budget, row)
        if claim is None or (claim.permille > room and not shape.gpuless):
            break
        session.charge(claim, account)
        claims.append(claim)
    return claims


def _on_emptiest(session: Session, shape: Shape, row: int, budget: int | None) -> Claim | None:
    """Return a place on the GPUs with most room, so that enough different GPUs are left for other members."""
    c, rows = session.cluster, np.array([row])
    ok, _ = usable_slots(c, shape, rows, session.placer.accepted(shape), budget)
    if not usable_rows(c, shape, rows, ok)[0]:
        return None
    chosen = np.argsort(-parts_per_slot(c, shape, rows, ok)[0], kind="stable")[: shape.request.count]
    need, mem = shape.needs(c.gmem_total[row])
    gpu, gmem = np.zeros(c.slots, np.int64), np.zeros(c.slots, np.int64)
    gpu[chosen], gmem[chosen] = need[chosen], mem[chosen]
    return Claim(row, gpu, gmem, shape.cpu_milli, shape.mem_mib, mode_on(c, shape, row, gpu), shape.user)
