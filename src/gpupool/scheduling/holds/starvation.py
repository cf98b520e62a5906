"""Starvation: hold the GPUs that become free first for work that needs whole or several GPUs and waits long.

A gang gets a place for each member of its minimum, from the time at which the last of these places is free. Until then
the others are idle. Where work without a time limit runs, several GPUs are therefore held in a part of the wait only;
see ``windows``.

Backfill: work that ends in time may use GPUs that are held for a later start. The time limit proves that it ends in
time. Preemptible work is also admitted if most past runs of its user in the project would have ended in time. If it
runs longer and only it blocks the reservation, it is evicted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf

import numpy as np
import numpy.typing as npt

from gpupool.domain.units import WHOLE_GPU, format_duration
from gpupool.scheduling.gang_placement import Placed, find_all, model_choices
from gpupool.scheduling.holds.windows import in_window, may_hold, waiting_since
from gpupool.scheduling.placement.capacity import runs
from gpupool.scheduling.placement.node_filter import Relax, mode_fits, mode_on, usable_rows, usable_slots
from gpupool.scheduling.policy import Settings
from gpupool.scheduling.session import ActiveHold, SchedulingSession
from gpupool.scheduling.state.allocation import Bools, Claim, Ints
from gpupool.scheduling.state.cluster import ALONE, Shape, domains, levels_of
from gpupool.scheduling.state.queue import Group
from gpupool.scheduling.state.running import NO_GANG
from gpupool.scheduling.values import Eviction, EvictionKind, HoldKind, PendingReplica, ReplicaKey, RunningReplica

Floats = npt.NDArray[np.float64]
_UNKNOWN = 1e300  # a time later than any
_MAX_PARTS = 16  # members that a plan puts on one GPU


class Starvation:
    """The state of reservations and backfill in one cycle: what its bounds leave, and what is known of run times.

    With ``stop_early``, no place is reserved once something was granted: ``interrupted`` is True then.
    """

    def __init__(self, session: SchedulingSession, settings: Settings, *, stop_early: bool = False) -> None:
        self.session, self.settings, self.stop_early = session, settings, stop_early
        self.interrupted = False
        self.backfills_left = settings.max_backfills
        self.known_likely_s: dict[tuple[str, str, int], float | None] = {}  # see ``likely_s``
        self.known_slot_ends: Floats | None = None  # see ``slot_ends``
        self.refused: dict[tuple[int, int], tuple[tuple[int, int], float]] = {}  # see ``_due_once``
        self.without_limits: set[tuple[Shape, int]] = set()  # what could get GPUs only after work without a time limit

    def note_backfill(self) -> None:
        """Count one try to backfill a replica."""
        self.backfills_left -= 1


def may_backfill(state: Starvation, shapes: Iterable[Shape]) -> set[Shape]:
    """Return the shapes with a replica that might be backfilled."""
    session = state.session
    if state.backfills_left <= 0 or not _reserved_after(session, session.now):
        return set()
    demand, known = session.demand, session.demand.ordering.past.known
    return {shape for shape in shapes if demand.timed[shape] > 0 or (known and demand.restartable[shape] > 0)}


def under_reservations(state: Starvation, group: Group, replica: PendingReplica) -> Placed:
    """Return charged places on reserved GPUs for work that will (probably) end before the reservation begins."""
    session = state.session
    if not session.holds.active or state.backfills_left <= 0:
        return []
    run_s = _run_s(state, group, replica)
    if run_s is None:
        return []
    lifted = _reserved_after(session, session.now + run_s)
    # ``_let_in`` later identifies backfilled work by the age of the hold
    if replica.max_time_s is None or replica.max_time_s > run_s:
        lifted = [key for key in lifted if session.holds.active[key].hold.since < session.now]
    if not lifted:
        return []
    for key in lifted:
        session.cluster.discharge(session.holds.active[key].claim)
    placed = find_all(session, group, replica)
    for key in lifted:
        session.cluster.charge(session.holds.active[key].claim)
    return placed


def _run_s(state: Starvation, group: Group, replica: PendingReplica) -> float | None:
    """Return the expected run time: the time limit, and for preemptible work the time in which most such runs end."""
    session = state.session
    likely = None
    if replica.preemptible:
        likely = likely_s(state, replica.project, replica.user, session.placer.least_permille(group.shape))
    if likely is not None and replica.checkpoint_s is None and likely > state.settings.unsaved_after_s:
        likely = None  # it could not be evicted if it ran longer
    return min((s for s in (replica.max_time_s, likely) if s is not None), default=None)


def _reserved_after(session: SchedulingSession, end: float) -> list[ReplicaKey]:
    active_holds = session.holds.active.items()
    reserved = [(k, g.hold.starts_at) for k, g in active_holds if g.hold.kind is HoldKind.RESERVED]
    return [key for key, starts_at in reserved if max(end, session.now + 1) <= starts_at < inf]


def end_overruns(state: Starvation) -> None:
    """Evict backfilled work that overran, if the reservation can then start."""
    session = state.session
    for active_holds in session.holds.reservations().values():
        late = [key for key in _let_in(session, active_holds) if _overran(state, key)]
        if late and _free_without(session, active_holds, late):
            _evict(session, late, active_holds[0])


def _let_in(session: SchedulingSession, active_holds: list[ActiveHold]) -> list[ReplicaKey]:
    """Return the replicas that started on GPUs that were already reserved."""
    found: dict[ReplicaKey, None] = {}
    for active in active_holds:
        row, wanted = active.claim.row, active.claim.gpu > 0
        for key in sorted(session.cluster.on_node(session.cluster.name_of(row))):
            running = session.demand.running.get(key)
            if running is None or key in session.outcome.leaving or running.started_at <= active.hold.since:
                continue
            if running.preemptible and (session.cluster.claims[key].gpu[wanted] > 0).any():
                found[key] = None
    return list(found)


def _overran(state: Starvation, key: ReplicaKey) -> bool:
    session = state.session
    running = session.demand.running[key]
    due = foreseen_end(state, running)
    ran_s = session.now - running.started_at
    if running.checkpoint_s is None and ran_s > state.settings.unsaved_after_s:
        return False
    if due is not None and due > session.now:
        session.outcome.wake_running_at(due)
    return due is not None and due <= session.now


def foreseen_end(state: Starvation, running: RunningReplica) -> float | None:
    """Return the expected end of a run: its time limit, or the time in which most such runs ended."""
    lease, likely = running.lease, None
    if running.preemptible:
        usual = likely_s(state, lease.project, lease.user, lease.permille)
        likely = None if usual is None else running.started_at + usual
    return min((end for end in (running.expected_end, likely) if end is not None), default=None)


def likely_s(state: Starvation, project: str, user: str, permille: int) -> float | None:
    """Return the time in which most past runs of a kind ended; None with too few runs."""
    kind = (project, user, permille)
    if kind not in state.known_likely_s:
        state.known_likely_s[kind] = state.session.demand.ordering.past.likely_s(*kind)
    return state.known_likely_s[kind]


def _free_without(session: SchedulingSession, active_holds: list[ActiveHold], late: list[ReplicaKey]) -> bool:
    mark = session.log.checkpoint()
    for active in active_holds:
        session.discharge(active.claim, active.account)
    for key in late:
        session.discharge_running(key)
    free = True
    for active in active_holds:
        free = free and session.placer.holds(active.claim)
        session.charge(active.claim, active.account)
    session.log.rollback(mark)
    return free


def _evict(session: SchedulingSession, late: list[ReplicaKey], active: ActiveHold) -> None:
    for key in late:
        ran = format_duration(session.now - session.demand.running[key].started_at)
        who = active.hold.workload
        reason = f"It was backfilled before the hold of {who} and ran longer than predicted ({ran})."
        session.outcome.evict(Eviction(*key, *active.hold.key, EvictionKind.BACKFILL, reason))


def refresh_reservations(state: Starvation) -> None:
    """Update when reserved GPUs become free: time limits change, and work ends early. End holds outside a window."""
    session = state.session
    ends: dict[int, Floats] = {}
    for leader, active_holds in session.holds.reservations().items():
        starts_at = session.now
        for active in active_holds:
            row = active.claim.row
            if row not in ends:
                ends[row] = _row_ends(state, row)
            starts_at = max(starts_at, float(ends[row][active.claim.gpu > 0].max(initial=session.now)))
        claims = [active.claim for active in active_holds]
        held = may_hold(session, session.demand.pending[leader], claims, _let_in(session, active_holds))
        for active in active_holds:
            if held:
                session.holds.set_start(active, starts_at)
            else:
                session.holds.remove(active.hold.key)


def starving_shapes(state: Starvation) -> Bools:
    """Return by number the shapes with a replica that has waited long enough for a reservation, if more are allowed."""
    session = state.session
    demand, after = session.demand, state.settings.reserve_after_s
    next_since = demand.mature(session.now - after)
    if next_since is not None:
        session.outcome.wake_at(next_since + after)
    starving = demand.starved_shapes().copy()
    if reservations_left(state) <= 0:
        return np.zeros_like(starving)
    settled, starved = session.outcome.settled, demand.starved
    touched = {group.shape for key in settled if (group := demand.group_of(key)) is not None}
    served = [shape for shape in touched & starved.keys() if starved[shape] <= settled]
    return affordable(state, starving & ~demand.first_groups().shapes.mask(served))


def affordable(state: Starvation, among: Bools) -> Bools:
    """Return the shapes for which one more reservation is allowed, by number."""
    if reservations_left(state) <= 0:
        return np.zeros_like(among)
    room, shapes = _room_to_keep(state), state.session.demand.first_groups().shapes
    fixed = (shapes.gpu_memory == 0) & (shapes.count > 0)
    return among if room == inf else among & fixed & (shapes.permille * shapes.count <= room)


def reservations_left(state: Starvation) -> int:
    """Return how many more reservations are allowed; a gang counts as one."""
    return state.settings.max_reservations - state.session.holds.count_reservations()[0]


def reserve_if_starving(state: Starvation, group: Group, replica: PendingReplica) -> bool:
    """Reserve the GPUs that become free first for a starving replica (or its gang) at its turn."""
    if not group.starvable or not _waited(state, replica) or reservations_left(state) <= 0:
        return False
    return _reserve_for(state, group, replica)


def _waited(state: Starvation, replica: PendingReplica) -> bool:
    return state.session.now - waiting_since(replica) >= state.settings.reserve_after_s


def _reserve_for(state: Starvation, group: Group, replica: PendingReplica) -> bool:
    session = state.session
    if not _is_permitted(state, group, replica):
        return False
    if state.stop_early and session.outcome.grants:
        state.interrupted = True
        return False
    rows = np.flatnonzero(session.cluster.present)
    everywhere = len(rows)
    if (group.shape.fixed_permille or 0) * group.size > WHOLE_GPU and not in_window(session, replica):
        rows = rows[_limited_gpus(state)[rows] >= group.shape.request.count]
    choices = model_choices(session, group) if len(rows) else []
    plans = [plan for choice in choices if (plan := _plan(state, choice, rows)) is not None]
    if not plans:
        if len(rows) < everywhere and (group.gang is None or not len(rows)):
            state.without_limits.add((group.shape, group.size))
        return False
    starts_at, claims = min(plans, key=lambda plan: plan[0])
    if not may_hold(session, replica, claims):
        state.without_limits.add((group.shape, group.size))
        return False
    if not session.may_charge(group.shape, group.account, claims):
        return False
    members = session.demand.together_with(replica)
    for member, claim in zip(members, claims, strict=False):
        session.holds.hold(member, claim, group.account, HoldKind.RESERVED, starts_at)
    return True


def _limited_gpus(state: Starvation) -> Ints:
    """Return by row how many GPUs may have only work that ends: ``may_hold`` permits no others outside a window."""
    return np.asarray(((slot_ends(state) < inf) & state.session.cluster.available).sum(axis=1))


def _is_permitted(state: Starvation, group: Group, replica: PendingReplica) -> bool:
    """Return whether the limits of the group's owners and of reservations permit one for it now."""
    session, need = state.session, group.shape.fixed_permille
    if need is None:
        return False
    need *= group.size
    if need > session.ledger.room(group.account) or need > _room_to_keep(state):
        return False
    if (group.shape, group.size) in state.without_limits and not in_window(session, replica):
        return False
    return _due_once(state, group, replica, need)


def _due_once(state: Starvation, group: Group, replica: PendingReplica, need: int) -> bool:
    """Return ``_due``, from the last refusal of the project for this need if nothing has changed since.

    A replica that was queued later has been overtaken by fewer jobs, so it is refused as well.
    """
    session, since = state.session, waiting_since(replica)
    key, now = (group.account.project, need), (len(session.outcome.grants), len(session.holds.active))
    before = state.refused.get(key)
    if replica.preemptible and before is not None and before[0] == now and since >= before[1]:
        return False
    due = _due(session, group, replica, need)
    if not due:
        state.refused[key] = now, since
    return due


def _due(session: SchedulingSession, group: Group, replica: PendingReplica, need: int) -> bool:
    """Return True if no project could reclaim the reserved GPUs; protected work is never reclaimed.

    Small jobs that the project started after this one was queued do not count against it. Otherwise a flood of them
    would delay it for ever.
    """
    project, ledger, holders = group.account.project, session.ledger, session.demand.holders
    if not replica.preemptible:
        return True
    holders.catch_up(session.cluster)
    dept, overtaken = ledger.dept[project], holders.occupied() & (holders.started_at > waiting_since(replica))
    overtaken &= (holders.gang == NO_GANG) & (2 * holders.permille <= need)
    at = np.flatnonzero(overtaken)
    own, inside = holders.project[at] == project, ledger.dept[holders.project[at]] == dept
    settled = int(ledger.used[project] - holders.permille[at[own]].sum())
    dept_settled = int(ledger.dept_used[dept] - holders.permille[at[inside]].sum())
    for _, claim, account in session.outcome.placed:
        settled -= claim.permille * (account.project == project)
        dept_settled -= claim.permille * bool(ledger.dept[account.project] == dept)
    return session.shares.may_reserve(project, need, settled, dept_settled)


def _room_to_keep(state: Starvation) -> float:
    """Return how many more thousandths may be held: unlimited for the first, then a small part of the pool.

    Held GPUs are idle until all of them are free.
    """
    session = state.session
    _, kept = session.holds.count_reservations()
    return state.settings.reserved_part * session.cluster.capacity_permille() - kept if kept else inf


@dataclass(frozen=True, slots=True, eq=False)
class _Outlook:
    """The places that become free: R rows, S places each (a GPU or a slice), the first to become free first."""

    rows: Ints
    slots: Ints  # the GPU of each place
    ends: Floats  # when it becomes free; infinite: never
    busy: Bools
    room: Ints  # thousandths free on the row now
    late_keys: Callable[[Ints], Ints]  # tie-break between equal rows

    def members(self, shape: Shape, most: Ints) -> _PlaceOptions:
        """Return when the first, second, ... member could start on each row, as one flat list."""
        count = shape.request.count
        ends = self.ends[:, count - 1 :: count]
        which = np.broadcast_to(np.arange(ends.shape[1]), ends.shape)
        busy = self.busy.cumsum(axis=1)[:, count - 1 :: count]
        at, nth = np.nonzero((ends < inf) & (which < most[:, None]))
        return _PlaceOptions(at, nth, ends[at, nth], busy[at, nth], self.room[at], self.rows[at], self.late_keys)


@dataclass(frozen=True, slots=True, eq=False)
class _PlaceOptions:
    """Places for members: row index, number of the member there, start, GPUs in use until then, capacity."""

    at: Ints
    nth: Ints
    time: Floats
    in_use: Ints
    room: Ints
    rows: Ints
    late_keys: Callable[[Ints], Ints]

    def among(self, which: Ints) -> _PlaceOptions:
        """Return a subset of the options."""
        at, nth, rows = self.at[which], self.nth[which], self.rows[which]
        return _PlaceOptions(at, nth, self.time[which], self.in_use[which], self.room[which], rows, self.late_keys)

    def soonest_one(self) -> Ints | None:
        """Return the result of ``soonest`` for one place in any domain, without a sort."""
        best = np.arange(len(self.at))
        for column in (self.time, self.in_use, self.room):
            if len(best) > 1:
                best = best[column[best] == column[best].min()]
        return best[[self.late_keys(self.rows[best]).argmin()]] if len(best) else None

    def soonest(self, domain: Ints, size: int) -> Ints | None:
        """Return the ``size`` places of one domain that are all free first."""
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


def _plan(state: Starvation, group: Group, among: Ints) -> tuple[float, list[Claim]] | None:
    """Return when and on which GPUs of the rows ``among`` a replica, or the minimum of its gang, can start first.

    CPU and memory are assumed to follow the GPUs. Among nodes that become free at the same (or an unknown) time, the
    one with the fewest GPUs in use wins, then the fullest.
    """
    session = state.session
    outlook = _outlook(state, group.shape, group.size, among)
    options = outlook.members(group.shape, _most_per_row(session, group.shape, outlook.rows))
    chosen = _nearest(session, group, outlook, options)
    if chosen is None:
        return None
    time = float(options.time[chosen].max())
    where = zip(options.at[chosen].tolist(), options.nth[chosen].tolist(), strict=True)
    claims = [_claim(session, group.shape, outlook, at, nth) for at, nth in where]
    return inf if time == _UNKNOWN else time, claims


def _nearest(session: SchedulingSession, group: Group, outlook: _Outlook, options: _PlaceOptions) -> Ints | None:
    """Return the soonest places: in the domain that the gang requires, and in the smallest one that is not later."""
    gang, cluster = group.gang, session.cluster
    levels = levels_of(cluster, gang) if gang is not None else ()
    anywhere = np.zeros(len(options.at), np.int64)
    if gang is None or not levels:
        return options.soonest_one() if group.size == 1 else options.soonest(anywhere, group.size)
    rows = outlook.rows[options.at]
    if gang.strict:
        apart, levels = _soonest_in(session, group, options, domains(cluster, gang.within)[rows]), levels[:-1]
    else:
        apart = options.soonest(anywhere, group.size)
    for label in levels if apart is not None and group.joins is None else ():
        domain = domains(cluster, label)[rows]
        domain = np.where(domain == ALONE, -2 - options.at, domain)  # without a label each row is a domain
        near = options.soonest(domain, group.size)
        if near is not None and options.time[near].max() <= options.time[apart].max():
            return near
    return apart


def _soonest_in(session: SchedulingSession, group: Group, options: _PlaceOptions, domain: Ints) -> Ints | None:
    allowed = domain != ALONE
    members = session.demand.gangs.get(group.joins) if group.joins is not None else None
    if members is not None and group.gang is not None:
        rows = [session.cluster.claims[key].row for key in members.running if key in session.cluster.claims]
        used = domains(session.cluster, group.gang.within)[[row for row in rows if row >= 0]]
        allowed &= np.isin(domain, used)
    at = np.flatnonzero(allowed)
    chosen = options.among(at).soonest(domain[at], group.size)
    return None if chosen is None else at[chosen]


def _most_per_row(session: SchedulingSession, shape: Shape, rows: Ints) -> Ints:
    """Return how many members fit by CPU and memory."""
    c = session.cluster
    most = np.full(len(rows), c.slots * _MAX_PARTS, np.int64)
    if shape.cpu_milli:
        most = np.minimum(most, c.cpu_total[rows] // shape.cpu_milli)
    if shape.mem_mib:
        most = np.minimum(most, c.mem_total[rows] // shape.mem_mib)
    return most


def _outlook(state: Starvation, shape: Shape, size: int, rows: Ints) -> _Outlook:
    session = state.session
    cluster, relax = session.cluster, Relax(use=True)
    usable, _ = usable_slots(cluster, shape, rows, session.placer.accepted(shape), None, relax)
    fits = usable_rows(cluster, shape, rows, usable, relax)
    rows = rows[fits]
    usable = usable[fits] & ~session.holds.taken()[rows]
    free, (need, _) = cluster.gpu_free[rows], shape.needs(cluster.gmem_total[rows])
    room, hosts = np.clip(free, 0, None).sum(axis=1), mode_fits(cluster, shape, rows, cluster.guests[rows])
    later, parts = np.minimum(slot_ends(state)[rows], _UNKNOWN), 1
    if size > 1 and shape.request.count == 1 and not shape.whole:
        parts = max(1, min(size, _MAX_PARTS, 1000 // max(int(need.min(initial=1000)), 1)))
    if parts > 1:
        usable, need, free, hosts, later = (
            np.repeat(grid, parts, axis=1) for grid in (usable, need, free, hosts, later)
        )
        need = need * np.tile(np.arange(1, parts + 1), cluster.slots)
        usable &= need <= 1000
    busy = (free < need) | ~hosts
    ends = np.where(usable, np.where(busy, later, session.now), inf)
    # GPUs that are free now come before GPUs that become free now
    order = np.argsort(ends - ~busy, axis=-1, kind="stable")
    return _Outlook(
        rows,
        order // parts,
        np.take_along_axis(ends, order, axis=1),
        np.take_along_axis(busy, order, axis=1),
        room,
        session.placer.late_keys,
    )


def _claim(session: SchedulingSession, shape: Shape, outlook: _Outlook, at: int, nth: int) -> Claim:
    cluster, count, row = session.cluster, shape.request.count, int(outlook.rows[at])
    chosen = outlook.slots[at, nth * count : (nth + 1) * count]
    need, mem = shape.needs(cluster.gmem_total[row])
    gpu, gmem = np.zeros(cluster.slots, np.int64), np.zeros(cluster.slots, np.int64)
    gpu[chosen], gmem[chosen] = need[chosen], mem[chosen]
    mode = mode_on(cluster, shape, row, gpu)
    return Claim(row, gpu, gmem, shape.cpu_milli, shape.mem_mib, mode, shape.user)


def slot_ends(state: Starvation) -> Floats:
    """Return when the last replica on each GPU ends, [N, G]: now if asked to end, infinite if unknown."""
    session = state.session
    if state.known_slot_ends is None:
        holders = session.demand.holders
        holders.catch_up(session.cluster)
        at = np.flatnonzero(holders.occupied())
        at = at[holders.row[at].argsort(kind="stable")]
        until = np.where(holders.gpu[at] > 0, _ends(state, at)[:, None], session.now)
        found = state.known_slot_ends = np.full(session.cluster.gpu_free.shape, session.now)
        if len(at):
            begins = runs(holders.row[at])
            found[holders.row[at[begins]]] = np.maximum.reduceat(until, begins)
    return state.known_slot_ends


def _ends(state: Starvation, at: Ints) -> Floats:
    """Return ``_end`` for many running replicas."""
    session = state.session
    holders, now = session.demand.holders, session.now
    known = np.maximum(holders.ends[at], now)
    foreseen = known
    if session.demand.ordering.past.known:
        started = holders.started_at[at]
        saves = holders.evictable[at] & ~holders.unsaved[at]
        likely = np.where(saves, started + _usual_s(state, at), inf)
        foreseen = np.where((likely > now) & (known > now), np.minimum(known, likely), known)
    slots = [holders.slots[key] for key in session.outcome.leaving if key in holders.slots]
    return np.where(np.isin(at, slots), now, foreseen)


def _usual_s(state: Starvation, at: Ints) -> Floats:
    """Return the usual run time of each running replica's kind; infinite if unknown."""
    session = state.session
    holders, ledger = session.demand.holders, session.ledger
    kinds = np.stack([holders.project[at], holders.user[at], holders.permille[at]], axis=1)
    unique, which = np.unique(kinds, axis=0, return_inverse=True)
    usual = [
        likely_s(state, ledger.projects[project].name, ledger.users[user].name, permille)
        for project, user, permille in unique.tolist()
    ]
    return np.array([inf if s is None else s for s in usual], np.float64)[which.reshape(-1)]


def _end(state: Starvation, key: ReplicaKey) -> float:
    """Return when a run ends; infinite if unknown or overdue.

    Past runs do not count for work that saves nothing: it could not be evicted if it ran longer.
    """
    session = state.session
    if key in session.outcome.leaving:
        return session.now
    running = session.demand.running[key]
    if running.expected_end is not None and running.expected_end <= session.now:
        return session.now
    end = foreseen_end(state, running)
    if running.checkpoint_s is None or end is None or end <= session.now:
        return inf if running.expected_end is None else running.expected_end
    return end


def _row_ends(state: Starvation, row: int) -> Floats:
    session = state.session
    ends = np.full(session.cluster.slots, session.now)
    for key in session.cluster.on_node(session.cluster.name_of(row)):
        if key in session.demand.running:
            used = session.cluster.claims[key].gpu > 0
            ends[used] = np.maximum(ends[used], _end(state, key))
    return ends
