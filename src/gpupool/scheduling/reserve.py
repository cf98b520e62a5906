"""Reserve: whoever needs whole GPUs, or several at once, and has waited long gets the space that frees first kept.

A gang gets a place for each of its fewest members, all from the time at which the last of these places is free.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

import numpy as np
import numpy.typing as npt

from gpupool.scheduling.backfill import foreseen_end, likely_s
from gpupool.scheduling.capacity import runs
from gpupool.scheduling.claims import Bools, Claim, Ints
from gpupool.scheduling.queue import Group
from gpupool.scheduling.session import Ghost, Session
from gpupool.scheduling.shape import Shape
from gpupool.scheduling.topology import ALONE, domains
from gpupool.scheduling.usable import Relax, mode_fits, mode_on, usable_rows, usable_slots
from gpupool.scheduling.values import HoldKind, PendingReplica, ReplicaKey

Floats = npt.NDArray[np.float64]
_UNKNOWN = 1e300  # a time later than any
_MOST_PARTS = 16  # members that a plan puts on one GPU


def refresh_reservations(session: Session) -> None:
    """Work out again when reserved space will be free: run times get extended, work ends early."""
    units: dict[ReplicaKey, list[Ghost]] = {}
    for key, ghost in session.ghosts.items():
        if ghost.hold.kind is HoldKind.RESERVED:
            units.setdefault(session.demand.gangs.leader(key), []).append(ghost)
    ends: dict[int, Floats] = {}
    for ghosts in units.values():
        starts_at = session.now
        for ghost in ghosts:
            row = ghost.claim.row
            if row not in ends:
                ends[row] = _row_ends(session, row)
            starts_at = max(starts_at, float(ends[row][ghost.claim.gpu > 0].max(initial=session.now)))
        for ghost in ghosts:
            ghost.hold = replace(ghost.hold, starts_at=starts_at)


def starving_shapes(session: Session) -> set[Shape]:
    """The shapes for which somebody has waited long enough for a reservation, while more may be made."""
    demand, after = session.demand, session.settings.reserve_after_s
    next_since = demand.mature(session.now - after)
    if next_since is not None:
        session.later.append(next_since + after)
    return affordable(session, {shape for shape, keys in demand.starved.items() if not keys <= session.gone})


def affordable(session: Session, shapes: set[Shape]) -> set[Shape]:
    """Those of some shapes of which one more may have space kept for it."""
    if not shapes or reservations_left(session) <= 0:
        return set()
    room = _room_to_keep(session)
    return {shape for shape in shapes if (shape.fixed_permille or inf) <= room}


def reservations_left(session: Session) -> int:
    """How many more reservations may be made; that of a gang is one."""
    leader, ghosts = session.demand.gangs.leader, session.ghosts.items()
    made = {leader(key) for key, ghost in ghosts if ghost.hold.kind is HoldKind.RESERVED}
    return session.settings.max_reservations - len(made)


def reserve_if_starving(session: Session, group: Group, replica: PendingReplica) -> bool:
    """Keep the space that frees first for a replica (or its gang) whose turn it was, if it has waited long."""
    if not group.starvable or not _waited(session, replica) or reservations_left(session) <= 0:
        return False
    return _reserve_for(session, group, replica)


def _since(replica: PendingReplica) -> float:
    return max(replica.queued_at, replica.not_before)


def _waited(session: Session, replica: PendingReplica) -> bool:
    return session.now - _since(replica) >= session.settings.reserve_after_s


def _reserve_for(session: Session, group: Group, replica: PendingReplica) -> bool:
    need = group.shape.fixed_permille
    if need is None or need * group.size > session.ledger.room(group.account):
        return False
    if need * group.size > _room_to_keep(session):
        return False
    if session.hasty and session.grants:
        session.cut_short = True
        return False
    plan = _plan(session, group)
    if plan is None:
        return False
    starts_at, claims = plan
    members = session.demand.together_with(replica)
    for member, claim in zip(members, claims, strict=False):
        session.hold_for(member, claim, group.account, HoldKind.RESERVED, starts_at)
    return True


def _room_to_keep(session: Session) -> float:
    """How many more thousandths may be kept: any number for the first, then while little of the pool is.

    What is kept is idle until all of it is free.
    """
    kept = sum(g.claim.permille for g in session.ghosts.values() if g.hold.kind is HoldKind.RESERVED)
    return session.settings.reserved_part * session.cluster.capacity_permille() - kept if kept else inf


@dataclass(frozen=True, slots=True, eq=False)
class _Outlook:
    """What comes free on some rows: R rows, S places each (a GPU, or a part of one), the first to come free first."""

    rows: Ints
    slots: Ints  # the GPU of each place
    ends: Floats  # when it comes free; infinite: never
    busy: Bools
    room: Ints  # thousandths free on the row now
    late_keys: Callable[[Ints], Ints]  # what tells rows apart that are alike in all of that

    def members(self, shape: Shape, most: Ints) -> _Options:
        """When the first, second, ... member could start on each row, as one flat list."""
        count = shape.request.count
        ends = self.ends[:, count - 1 :: count]
        which = np.broadcast_to(np.arange(ends.shape[1]), ends.shape)
        busy = self.busy.cumsum(axis=1)[:, count - 1 :: count]
        at, nth = np.nonzero((ends < inf) & (which < most[:, None]))
        return _Options(at, nth, ends[at, nth], busy[at, nth], self.room[at], self.rows[at], self.late_keys)


@dataclass(frozen=True, slots=True, eq=False)
class _Options:
    """Places for members: position of the row, the how many-th there, when, GPUs in use till then, room on the row."""

    at: Ints
    nth: Ints
    time: Floats
    in_use: Ints
    room: Ints
    rows: Ints
    late_keys: Callable[[Ints], Ints]

    def among(self, which: Ints) -> _Options:
        """Only some of them."""
        at, nth, rows = self.at[which], self.nth[which], self.rows[which]
        return _Options(at, nth, self.time[which], self.in_use[which], self.room[which], rows, self.late_keys)

    def soonest_one(self) -> Ints | None:
        """As ``soonest`` for one place anywhere, without a sort."""
        best = np.arange(len(self.at))
        for column in (self.time, self.in_use, self.room):
            if len(best) > 1:
                best = best[column[best] == column[best].min()]
        return best[[self.late_keys(self.rows[best]).argmin()]] if len(best) else None

    def soonest(self, domain: Ints, size: int) -> Ints | None:
        """Positions of the ``size`` places of one domain that are all free first."""
        late_keys = self.late_keys(self.rows)
        order = np.lexsort((late_keys, self.room, self.in_use, self.time, domain))
        sorted_domain = domain[order]
        names, first = np.unique(sorted_domain, return_index=True)
        last = first + size - 1
        enough = np.append(first[1:], len(order)) > last
        if not len(names) or not enough.any():
            return None
        first, last = first[enough], last[enough]
        in_use = np.array([self.in_use[order[a : b + 1]].sum() for a, b in zip(first, last, strict=True)])
        room = np.array([self.room[order[a : b + 1]].sum() for a, b in zip(first, last, strict=True)])
        best = int(np.lexsort((late_keys[order[first]], room, in_use, self.time[order[last]]))[0])
        return np.asarray(order[first[best] : last[best] + 1])


def _plan(session: Session, group: Group) -> tuple[float, list[Claim]] | None:
    """Where space for a replica, or the fewest members of its gang, is free first: when, and which GPUs.

    CPU and memory are taken to follow the GPUs. Among nodes that free at the same (or an unknown) time, the one with
    the fewest GPUs still in use, then the fullest.
    """
    outlook = _outlook(session, group.shape, group.size)
    options = outlook.members(group.shape, _most_per_row(session, group.shape, outlook.rows))
    chosen = _nearest(session, group, outlook, options)
    if chosen is None:
        return None
    time = float(options.time[chosen].max())
    where = zip(options.at[chosen].tolist(), options.nth[chosen].tolist(), strict=True)
    claims = [_claim(session, group.shape, outlook, at, nth) for at, nth in where]
    return inf if time == _UNKNOWN else time, claims


def _nearest(session: Session, group: Group, outlook: _Outlook, options: _Options) -> Ints | None:
    """The soonest places: in one domain if the gang insists, or if that is not later than anywhere."""
    gang = group.gang
    anywhere = np.zeros(len(options.at), np.int64)
    if gang is None or not gang.within:
        return options.soonest_one() if group.size == 1 else options.soonest(anywhere, group.size)
    domain = domains(session.cluster, gang.within)[outlook.rows][options.at]
    if gang.strict:
        return _soonest_in(session, group, options, domain)
    domain = np.where(domain == ALONE, -2 - options.at, domain)  # each on its own
    apart, near = options.soonest(anywhere, group.size), options.soonest(domain, group.size)
    if near is None or apart is None or options.time[near].max() > options.time[apart].max():
        return apart
    return near


def _soonest_in(session: Session, group: Group, options: _Options, domain: Ints) -> Ints | None:
    allowed = domain != ALONE
    members = session.demand.gangs.get(group.joins) if group.joins is not None else None
    if members is not None and group.gang is not None:
        rows = [session.cluster.claims[key].row for key in members.running if key in session.cluster.claims]
        used = domains(session.cluster, group.gang.within)[[row for row in rows if row >= 0]]
        allowed &= np.isin(domain, used)
    at = np.flatnonzero(allowed)
    chosen = options.among(at).soonest(domain[at], group.size)
    return None if chosen is None else at[chosen]


def _most_per_row(session: Session, shape: Shape, rows: Ints) -> Ints:
    """How many members the host could carry."""
    c = session.cluster
    most = np.full(len(rows), c.slots * _MOST_PARTS, np.int64)
    if shape.cpu_milli:
        most = np.minimum(most, c.cpu_total[rows] // shape.cpu_milli)
    if shape.mem_mib:
        most = np.minimum(most, c.mem_total[rows] // shape.mem_mib)
    return most


def _outlook(session: Session, shape: Shape, size: int) -> _Outlook:
    cluster, relax = session.cluster, Relax(use=True)
    rows = np.flatnonzero(cluster.present)
    usable, _ = usable_slots(cluster, shape, rows, session.placer.accepted(shape), None, relax)
    fits = usable_rows(cluster, shape, rows, usable, relax)
    rows, usable = rows[fits], usable[fits]
    for ghost in session.ghosts.values():  # their GPUs are spoken for
        usable[np.flatnonzero(rows == ghost.claim.row)] &= ghost.claim.gpu == 0
    free, (need, _) = cluster.gpu_free[rows], shape.needs(cluster.gmem_total[rows])
    room, hosts = np.clip(free, 0, None).sum(axis=1), mode_fits(cluster, shape, rows, cluster.guests[rows])
    later, parts = np.minimum(slot_ends(session)[rows], _UNKNOWN), 1
    if size > 1 and shape.request.count == 1 and not shape.whole:
        parts = max(1, min(size, _MOST_PARTS, 1000 // max(int(need.min(initial=1000)), 1)))
    if parts > 1:
        usable, need, free, hosts, later = (
            np.repeat(grid, parts, axis=1) for grid in (usable, need, free, hosts, later)
        )
        need = need * np.tile(np.arange(1, parts + 1), cluster.slots)
        usable &= need <= 1000
    busy = (free < need) | ~hosts
    ends = np.where(usable, np.where(busy, later, session.now), inf)
    order = np.argsort(ends - ~busy, axis=-1, kind="stable")  # what is free before what is free as soon
    return _Outlook(
        rows,
        order // parts,
        np.take_along_axis(ends, order, axis=1),
        np.take_along_axis(busy, order, axis=1),
        room,
        session.placer.late_keys,
    )


def _claim(session: Session, shape: Shape, outlook: _Outlook, at: int, nth: int) -> Claim:
    cluster, count, row = session.cluster, shape.request.count, int(outlook.rows[at])
    chosen = outlook.slots[at, nth * count : (nth + 1) * count]
    need, mem = shape.needs(cluster.gmem_total[row])
    gpu, gmem = np.zeros(cluster.slots, np.int64), np.zeros(cluster.slots, np.int64)
    gpu[chosen], gmem[chosen] = need[chosen], mem[chosen]
    mode = mode_on(cluster, shape, row, gpu)
    return Claim(row, gpu, gmem, shape.cpu_milli, shape.mem_mib, mode, shape.user)


def slot_ends(session: Session) -> Floats:
    """When the last one on each GPU ends, [N, G]: now for those told to, infinite when nobody knows."""
    if session.slot_ends is None:
        holders = session.demand.holders
        holders.catch_up(session.cluster)
        at = np.flatnonzero(holders.occupied())
        at = at[holders.row[at].argsort(kind="stable")]
        until = np.where(holders.gpu[at] > 0, _ends(session, at)[:, None], session.now)
        session.slot_ends = np.full(session.cluster.gpu_free.shape, session.now)
        if len(at):
            begins = runs(holders.row[at])
            session.slot_ends[holders.row[at[begins]]] = np.maximum.reduceat(until, begins)
    return session.slot_ends


def _ends(session: Session, at: Ints) -> Floats:
    """As ``_end``, for many of the running."""
    holders, now = session.demand.holders, session.now
    known = np.maximum(holders.ends[at], now)
    foreseen = known
    if session.demand.ordering.past.known:
        started = holders.started_at[at]
        likely = np.where(holders.evictable[at], started + _usual_s(session, at), inf)
        foreseen = np.where((likely > now) & (known > now), np.minimum(known, likely), known)
    slots = [holders.slots[key] for key in session.leaving if key in holders.slots]
    return np.where(np.isin(at, slots), now, foreseen)


def _usual_s(session: Session, at: Ints) -> Floats:
    """How long most runs of the kind of each of the running took; infinite when not known."""
    holders, ledger = session.demand.holders, session.ledger
    kinds = np.stack([holders.project[at], holders.user[at], holders.permille[at]], axis=1)
    unique, which = np.unique(kinds, axis=0, return_inverse=True)
    usual = [
        likely_s(session, ledger.projects[project].name, ledger.users[user].name, permille)
        for project, user, permille in unique.tolist()
    ]
    return np.array([inf if s is None else s for s in usual], np.float64)[which.reshape(-1)]


def _end(session: Session, key: ReplicaKey) -> float:
    """When a run will be over; infinite when nobody knows, as of work that runs longer than foreseen."""
    if key in session.leaving:
        return session.now
    running = session.demand.running[key]
    if running.expected_end is not None and running.expected_end <= session.now:
        return session.now
    end = foreseen_end(session, running)
    if end is None or end <= session.now:
        return inf if running.expected_end is None else running.expected_end
    return end


def _row_ends(session: Session, row: int) -> Floats:
    ends = np.full(session.cluster.slots, session.now)
    for key in session.cluster.on_node(session.cluster.name_of(row)):
        if key in session.demand.running:
            used = session.cluster.claims[key].gpu > 0
            ends[used] = np.maximum(ends[used], _end(session, key))
    return ends
