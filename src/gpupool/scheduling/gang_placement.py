"""Gangs: members that start together or not at all, near each other.

All members get GPUs of one model, unless the gang may mix models. Of several models, the one that serves most members
is used, then the one that needs fewer nodes, then the one with the lowest placement cost.

All members go to one node if one has room, else to the fullest domain with room, of the smallest level of the topology
that has one, there on as few nodes as possible. The number of members that fit is computed for all nodes at once. Only
the chosen nodes are then filled member by member, so that each member gets the GPUs that suit it best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, pairwise

import numpy as np

from gpupool.domain.ids import WorkloadId
from gpupool.domain.work.gang import Gang
from gpupool.scheduling.placement.capacity import Need, capacity, parts_per_slot
from gpupool.scheduling.placement.node_filter import mode_on, usable_rows, usable_slots
from gpupool.scheduling.session import SchedulingSession
from gpupool.scheduling.state.allocation import Bools, Claim, Ints
from gpupool.scheduling.state.cluster import ALONE, Shape, domains, levels_of
from gpupool.scheduling.state.ledger import UNBOUNDED, Account
from gpupool.scheduling.state.queue import Group
from gpupool.scheduling.values import Eviction, EvictionKind, PendingReplica, ReplicaKey

Placed = list[tuple[PendingReplica, Claim]]
_OnRow = Callable[[Shape, int, int | None], Claim | None]  # shape, row, budget


def find_all(session: SchedulingSession, group: Group, replica: PendingReplica) -> Placed:
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


def others_of(session: SchedulingSession, group: Group, replica: PendingReplica, placed: Placed) -> Placed | None:
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


def model_choices(session: SchedulingSession, group: Group) -> list[Group]:
    """Return a group for each GPU model that all members of a gang may use; the group itself if that is no choice.

    Members that run determine the model.
    """
    if group.gang is None:
        return [group]
    shapes = _shapes_by_model(session, group.shape, group.gang, _claims_of(session, group.joins, ()))
    return [group] if shapes == [group.shape] else [group.of_shape(shape) for shape in shapes]


def _shapes_by_model(session: SchedulingSession, shape: Shape, gang: Gang, placed: Sequence[Claim]) -> list[Shape]:
    """Return the shape once for each model that a gang may use, given the places of some members.

    The order does not depend on that of the nodes.
    """
    if gang.mixed_models or shape.gpuless:
        return [shape]
    choices, model = session.placer.of_one_model(shape), session.cluster.model
    used = {number for claim in placed for number in model[claim.row][claim.gpu > 0].tolist()}
    return [choices[number] for number in choices if number in used] or list(choices.values()) or [shape]


def _claims_of(session: SchedulingSession, workload: WorkloadId | None, near: Sequence[Claim]) -> list[Claim]:
    """Return the claims of the members that run and stay, start in this cycle, or are ``near``."""
    members = None if workload is None else session.demand.gangs.get(workload)
    running = members.running - session.outcome.leaving if members is not None else set()
    claims = [session.cluster.claims.get(key) for key in running] + list(near)
    claims += [claim for replica, claim, _ in session.outcome.placed if replica.workload == workload]
    return [claim for claim in claims if claim is not None and claim.row >= 0]


def _place_mixed(
    session: SchedulingSession, group: Group, members: Sequence[PendingReplica], placed: Placed
) -> Placed | None:
    """Return places for members of different shapes, charged; None if a member that must start has none.

    With None, nothing is charged. ``members`` are as in ``Demand.together_with``: those that must start first, then
    others as space allows. ``placed`` have their places already. The members use GPUs of one model as far as their
    requests accept it.
    """
    shapes = [session.demand.shape_of(member) for member in members]
    first, near = next((shape for shape in shapes if not shape.gpuless), None), [claim for _, claim in placed]
    if first is None or group.gang is None:
        return _place_in_order(session, group, members, placed, shapes)
    claims, mark, best = _claims_of(session, group.joins, near), session.log.checkpoint(), None
    for choice in _shapes_by_model(session, first, group.gang, claims):
        chosen = [choice if shape is first else shape for shape in shapes]
        found = _place_in_order(session, group, members, placed, chosen)
        if found is not None and (best is None or len(found) > len(best)):
            best = found
        session.log.rollback(mark)
    for _, claim in best or ():
        session.charge(claim, group.account)
    return best


def _place_in_order(
    session: SchedulingSession, group: Group, members: Sequence[PendingReplica], placed: Placed, shapes: Sequence[Shape]
) -> Placed | None:
    """Return ``_place_mixed`` for given shapes of the members."""
    mark, found = session.log.checkpoint(), list[tuple[PendingReplica, Claim]]()
    must = max(0, (group.gang.least if group.gang else 0) - len(placed))
    if len(members) < must:
        return None
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


def evict_whole_gangs(session: SchedulingSession) -> None:
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


def evict_stale(session: SchedulingSession) -> None:
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


def _starting(session: SchedulingSession, workload: WorkloadId) -> set[ReplicaKey]:
    return {replica.key for replica, _, _ in session.outcome.placed if replica.workload == workload}


def _evict_all(session: SchedulingSession, members: set[ReplicaKey], like: Eviction) -> None:
    """Evict the members of one gang; those that would have joined it in this cycle do not start."""
    session.revoke(like.workload)
    for key in sorted(members):
        session.outcome.evict(replace(like, workload=key[0], index=key[1]))


class GangRefusals:
    """Gangs without space in this cycle; gangs of the same shape that are as large or larger need no search."""

    def __init__(self) -> None:
        # for each shape: strict label, whether models may be mixed -> the smallest gang that was refused
        self._least: dict[Shape, dict[tuple[str, bool], int]] = {}

    def cover(self, group: Group) -> bool:
        """Return whether it is known that a gang has no place."""
        gang, known = group.gang, self._least.get(group.shape)
        if known is None or gang is None or group.joins is not None:
            return False
        label = gang.within if gang.strict else ""
        for (strict_label, mixed_models), least in known.items():
            if least <= group.size and strict_label in {"", label} and (mixed_models or not gang.mixed_models):
                return True
        return False

    def add(self, session: SchedulingSession, group: Group) -> None:
        """Remember a gang that has no place, if it lacks space and not quota."""
        gang, shape = group.gang, group.shape
        if gang is None or group.joins is not None or shape.fixed_permille is None:
            return
        if session.depends_on_protected(shape, group.account):
            return
        if not gang.mixed and affordable(session, shape, group.account) >= group.size:
            known, key = self._least.setdefault(shape, {}), (gang.within if gang.strict else "", gang.mixed_models)
            known[key] = min(group.size, known.get(key, UNBOUNDED))


def place(
    session: SchedulingSession,
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
    placed = _claims_of(session, members[0].workload, near)
    shapes = _shapes_by_model(session, shape, gang, placed)
    if len(shapes) == 1:
        return _place_at(_GangSite(session, shapes[0], gang, placed), account, wanted, least)
    mark, best = session.log.checkpoint(), list[tuple[tuple[int, ...], int, list[Claim]]]()
    for each in shapes:
        costs = session.placer.scores(each).copy()
        claims = _place_at(_GangSite(session, each, gang, placed), account, wanted, least)
        session.log.rollback(mark)
        if claims is not None:
            rows = [claim.row for claim in claims]
            rank = -len(claims), *_spread(session, gang, rows), sum(costs[rows].tolist())
            best.append((rank, len(best), claims))
    if not best:
        return None
    _, _, claims = min(best, key=lambda found: found[:2])
    for claim in claims:
        session.charge(claim, account)
    return claims


def _spread(session: SchedulingSession, gang: Gang, rows: Sequence[int]) -> list[int]:
    """Return over how many domains some nodes are spread, of the largest level first, and the number of nodes."""
    used, cluster = np.unique(rows), session.cluster
    levels = [domains(cluster, label)[used] for label in reversed(levels_of(cluster, gang))]
    return [*(len(np.unique(np.where(domain == ALONE, -2 - used, domain))) for domain in levels), len(used)]


def affordable(session: SchedulingSession, shape: Shape, account: Account) -> int:
    """Return for how many replicas of a shape the quotas and limits leave room."""
    if shape.gpuless:
        return UNBOUNDED
    return max(0, session.ledger.room(account) // max(session.placer.least_permille(shape), 1))


@dataclass(slots=True, eq=False)
class _Tier:
    """Candidate nodes of equal nearness to the members that have places, with how many members fit on each.

    ``levels`` are the domains of the nodes, of the smallest level first.
    """

    rows: Ints
    fit: Ints
    levels: list[Ints]

    def at(self, index: Ints | Bools) -> _Tier:
        """Return some of the nodes."""
        return _Tier(self.rows[index], self.fit[index], [domain[index] for domain in self.levels])


@dataclass(slots=True, eq=False)
class _GangSite:
    """The candidate nodes for a gang, in tiers of nearness to the members that have places (``placed``)."""

    session: SchedulingSession
    shape: Shape
    gang: Gang
    placed: Sequence[Claim]

    @property
    def one_domain(self) -> bool:
        """Return True if the domain that all members must share is not chosen yet."""
        return self.gang.strict and not self.placed

    def tiers(self, wanted: int) -> Iterator[_Tier]:
        """Yield the candidate nodes, the nearest tier first."""
        c, gang = self.session.cluster, self.gang
        rows = np.flatnonzero(c.present & c.up)
        fit = capacity(c, Need(self.shape, self.session.placer.accepted(self.shape), UNBOUNDED, wanted), rows)
        rows, fit = rows[fit > 0], fit[fit > 0]
        if gang.strict:
            known = domains(c, gang.within)[rows] != ALONE
            rows, fit = rows[known], fit[known]
        levels = [domains(c, label) for label in levels_of(c, gang)]
        used = np.unique([claim.row for claim in self.placed]).astype(np.int64)
        # a node without the label is a domain of its own
        found = _Tier(rows, fit, [np.where(domain[rows] == ALONE, -2 - rows, domain[rows]) for domain in levels])
        if not len(used):
            yield found
            return
        left = ~np.isin(rows, used)
        yield found.at(~left)
        for domain, numbers in zip(levels, found.levels, strict=True):
            near = left & np.isin(numbers, domain[used])
            yield found.at(near)
            left &= ~near
        if not gang.strict:
            yield found.at(left)


def _place_at(site: _GangSite, account: Account, wanted: int, least: int) -> list[Claim] | None:
    """Return charged places for up to ``wanted`` members of one shape; None if fewer than ``least`` have one."""
    session, claims = site.session, list[Claim]()
    mark = session.log.checkpoint()
    for row, count in _order(site, wanted, least):
        claims += _fill(session, site.shape, account, row, min(count, wanted - len(claims)))
        if len(claims) == wanted:
            break
    if len(claims) < least:
        session.log.rollback(mark)
        return None
    return claims


def _order(site: _GangSite, wanted: int, least: int) -> Iterator[tuple[int, int]]:
    """Yield the nodes to fill and how many members to put on each, best first; more than needed if one takes fewer."""
    for tier in site.tiers(wanted):
        if not len(tier.rows):
            continue
        room = np.asarray(site.session.cluster.gpu_free[tier.rows].clip(0).sum(axis=1))
        scores = site.session.placer.scores(site.shape)[tier.rows]
        if tier.fit.max() >= wanted:  # one node for all: the fullest, in the fullest domain
            in_domain = np.zeros(len(tier.rows), np.int64)
            if tier.levels:
                _, which = np.unique(tier.levels[0], return_inverse=True)
                in_domain = np.bincount(which, room)[which]
            best = int(np.lexsort((scores, in_domain, room, tier.fit, tier.fit < wanted))[0])
            yield int(tier.rows[best]), wanted
        every = np.arange(len(tier.rows))
        if site.one_domain:
            every = _in_one_domain(tier, room, wanted, least)
        for at in _nodes_near(tier.at(every), room[every], scores[every], wanted):
            yield int(tier.rows[every[at]]), int(tier.fit[every[at]])
        if site.one_domain:
            return


def _in_one_domain(tier: _Tier, room: Ints, wanted: int, least: int) -> Ints:
    """Return the positions of the nodes in the best domain of the largest level; none if none has enough room."""
    domain = tier.levels[-1]
    near = _smallest_fit(tier.fit, tier.levels, room, wanted)
    if near is not None:
        return np.flatnonzero(domain == domain[near])
    return next(_domains_in_order(tier.fit, domain, room, wanted, least), np.zeros(0, np.int64))


def _smallest_fit(fit: Ints, levels: Sequence[Ints], room: Ints, wanted: int) -> int | None:
    """Return the position of a node in the fullest domain with room for all members, of the smallest possible level."""
    for domain in levels:
        _, which = np.unique(domain, return_inverse=True)
        total, free = np.bincount(which, fit), np.bincount(which, room)
        best = int(np.lexsort((free, total, total < wanted))[0])
        if total[best] >= wanted:
            return int((which == best).argmax())
    return None


def _nodes_near(tier: _Tier, room: Ints, scores: Ints, wanted: int) -> Iterator[int]:
    """Yield the positions of the nodes so that the members are in few domains, of a level as small as possible."""
    if not tier.levels or not len(tier.rows):
        yield from _nodes_in_order(tier.fit, scores, wanted)
        return
    domain, inner = tier.levels[-1], tier.levels[:-1]
    near = _smallest_fit(tier.fit, inner, room, wanted) if wanted > 0 else None
    first = np.zeros(0, np.int64) if near is None else np.flatnonzero(domain == domain[near])
    rest = np.setdiff1d(np.arange(len(domain)), first)
    left = wanted
    parts = (rest[part] for part in _domains_in_order(tier.fit[rest], domain[rest], room[rest], wanted, 0))
    for members in (part for part in chain([first], parts) if len(part)):
        inside = _Tier(tier.rows[members], tier.fit[members], [level[members] for level in inner])
        for at in _nodes_near(inside, room[members], scores[members], left):
            yield int(members[at])
        left = max(0, left - int(tier.fit[members].sum()))


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


def _fill(session: SchedulingSession, shape: Shape, account: Account, row: int, count: int) -> list[Claim]:
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


def _filled(
    session: SchedulingSession, shape: Shape, account: Account, row: int, count: int, on_row: _OnRow
) -> list[Claim]:
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


def _on_emptiest(session: SchedulingSession, shape: Shape, row: int, budget: int | None) -> Claim | None:
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
