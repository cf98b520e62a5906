"""Time slicing: training that has run for its turn is evicted for work that has not, and continues afterwards.

Most of a pool's time goes into a few long runs, so a short job would wait behind them. Run times need not be known: the
work with the least run time so far goes first (least attained service, as in Tiresias, NSDI 2019, with two levels). The
price is that training is stopped and started more often, so it must save its work.

Evictions are bounded: a replica stays for half a turn, and for a quarter of all its earlier run time. So the number of
evictions grows with the logarithm of the run time. Starvation is bounded too: a replica that has had a turn queues as
if it was submitted later, by its run time and at least one day, and has its normal place after that
(``user_order.Ordering``).
"""

from __future__ import annotations

from math import inf

import numpy as np

from gpupool.domain.units import format_duration
from gpupool.scheduling.eviction.notices import evict
from gpupool.scheduling.fairness.model_quotas import safe
from gpupool.scheduling.gang_placement import model_choices, place
from gpupool.scheduling.scheduling_order import SchedulingOrder
from gpupool.scheduling.session import SchedulingSession
from gpupool.scheduling.state.allocation import Bools, Claim, Ints
from gpupool.scheduling.state.queue import Group
from gpupool.scheduling.state.running import NO_GANG, Floats, RunningTable
from gpupool.scheduling.values import EvictionKind, HoldKind, PendingReplica, ReplicaKey

STAY = 0.5  # of a turn: minimum run time after a start
STAY_SERVED = 0.25  # of the earlier run time: another minimum
MAX_SEARCHES = 16  # per cycle


def evict_for_time_slicing(session: SchedulingSession) -> None:
    """Evict replicas that have had a turn, for replicas that have not and do not fit."""
    turn_s = session.demand.ordering.turn_s
    if turn_s is None or not session.demand.evictable:
        return
    session.outcome.wake_at(_next_due(session))
    waiting = [p for p in session.demand.project_queues if _somebody_due(session, p)]
    if not waiting:
        return
    rotation = _Rotation(session, turn_s)
    if rotation.victims.size:
        rotation.serve_reserved()
        rotation.serve(waiting)
    if rotation.next_evictable_at < inf:
        session.outcome.wake_running_at(rotation.next_evictable_at)


def _somebody_due(session: SchedulingSession, project: int) -> bool:
    """Return True if some replica's place in the queue is not in the future."""
    return any(group.entries[0][0] <= session.now for group in session.demand.groups(project))


def _next_due(session: SchedulingSession) -> float:
    """Return when the next place in the queue is no longer in the future; infinite if there is none."""
    found = inf
    for group in session.demand.groups():
        at = group.count_before(session.now, 0)
        if at < len(group.entries):
            found = min(found, group.entries[at][0])
    return found


class _Rotation:
    """The searches of one cycle among ``victims``: slots that have had a turn, the longest run time first."""

    def __init__(self, session: SchedulingSession, turn_s: float) -> None:
        self.session, self.holders = session, session.demand.holders
        self.turn_s = turn_s
        self._models = session.guarantees()
        self.holders.catch_up(session.cluster)
        h, now = self.holders, session.now
        at = np.flatnonzero(h.evictable & h.occupied())
        at = at[[h.keys[slot] not in session.outcome.leaving for slot in at.tolist()]] if len(at) else at
        evictable_at = _evictable_at(h, at, turn_s, session.settings.min_runtime_s)
        self.next_evictable_at = float(evictable_at[evictable_at > now].min(initial=inf))
        self.served: Floats = h.served_s + now - h.started_at
        cheap = h.at_stake(at, now, session.settings.unsaved_after_s) == 0
        at = at[(evictable_at <= now) & cheap]
        self.victims: Ints = at[np.argsort(-self.served[at], kind="stable")]
        self._hopeless: set[tuple[object, ...]] = set()

    def serve_reserved(self) -> None:
        """Serve replicas with a reservation: with victims they need not wait for natural ends."""
        session = self.session
        for leader, reserved in session.holds.reservations().items():
            group = session.demand.group_of(leader)
            if group is None or session.demand.arrival_of(leader)[0] > session.now:
                continue
            active_holds = [session.holds.remove(active.hold.key) for active in reserved]
            if not self._evict_for_any(group, session.demand.pending[leader]):
                for active in active_holds:
                    session.holds.add(active)

    def serve(self, waiting: list[int]) -> None:
        """Serve groups one after another, in scheduling order."""
        turns = SchedulingOrder(self.session, waiting)
        searches = MAX_SEARCHES
        while searches and self.victims.size and (first := turns.next()) is not None:
            group, replica, queue = first
            known = self._search_key(group)
            due = self.session.demand.arrival_of(replica.key)[0] <= self.session.now
            if not due or known in self._hopeless:
                queue.drop()
            else:
                searches -= 1
                if not self._evict_for_any(group, replica):
                    self._hopeless.add(known)
                    queue.drop()
            turns.again(group.account.project)

    def _search_key(self, group: Group) -> tuple[object, ...]:
        """Return everything that decides the search of a group: after one failed, others with the same key fail."""
        account, most = group.account, self.session.placer.most_permille(group.shape) * group.size
        room = min(self.session.ledger.room(account), most)
        return (account.project, account.preemptible, room, group.priority, group.shape, group.gang, group.size)

    def _evict_for_any(self, group: Group, replica: PendingReplica) -> bool:
        """Hold GPUs of one model for a replica, or for all members of a gang that must start together."""
        return any(self._evict_for(choice, replica) for choice in model_choices(self.session, group))

    def _evict_for(self, group: Group, replica: PendingReplica) -> bool:
        """Hold GPUs for a replica, or for all members of a gang that must start together."""
        session, mark = self.session, self.session.log.checkpoint()
        members = session.waiting_with(replica)[: group.size]
        need = session.placer.least_permille(group.shape) * group.size
        near = group.gang is not None and group.gang.within
        if near or group.shape.gpuless or need > session.ledger.room(group.account):
            return False
        chosen: list[int] = []
        claims: list[Claim] = []
        for placed in range(group.size):
            found = self._room_for_one(group, need, placed, chosen)
            if found is None:
                session.log.rollback(mark)
                return False
            claims.append(found)
            session.charge(found, group.account)
        if group.gang is not None:
            claims = self._near(group, members, claims)
        for claim in reversed(claims):
            session.discharge(claim, group.account)
        self._carry_out(group, members, claims, chosen)
        return True

    def _near(self, group: Group, members: list[PendingReplica], claims: list[Claim]) -> list[Claim]:
        """Return the places that the gang's own placement would choose with the new free GPUs."""
        session, mark = self.session, self.session.log.checkpoint()
        for claim in claims:
            session.discharge(claim, group.account)
        better = place(session, members, group.shape, group.account, group.size)
        if better is not None and len(better) == len(claims):
            return better
        session.log.rollback(mark)
        return claims

    def _room_for_one(self, group: Group, need: int, placed: int, chosen: list[int]) -> Claim | None:
        """Return a place for one more replica and record its victims; else revert and return None."""
        session = self.session
        if (claim := session.find(group.shape, group.account)) is not None:
            return claim
        best: tuple[int, int, list[int]] | None = None
        for row, slots in self._rows(group, need, placed, chosen):
            if (found := self._fewest_on(row, group, slots)) is None:
                continue
            cost = int(self.holders.permille[found].sum())
            if best is None or cost < best[0]:
                best = cost, row, found
            if cost <= session.placer.least_permille(group.shape):
                break
        if best is None:
            return None
        _, row, found = best
        for slot in found:
            session.discharge_running(self._key(slot))
        chosen += found
        room = session.ledger.room(group.account)
        claim = session.placer.on_row(group.shape, row, room)
        return session.permitted(group.shape, group.account, claim, room, row)

    def _rows(self, group: Group, need: int, placed: int, chosen: list[int]) -> list[tuple[int, list[int]]]:
        """Return the nodes with possible victims for this group, and the victims, longest run time first."""
        h, session = self.holders, self.session
        project = group.account.project
        ours = h.project[self.victims] == project
        left = need - need // group.size * placed  # placed members are charged already
        yields = {
            other: session.shares.may_take(project, left, other, left, {})
            for other in np.unique(h.project[self.victims[~ours]]).tolist()
        }
        allowed = ours | np.array([yields.get(p, False) for p in h.project[self.victims].tolist()], np.bool_)
        allowed &= ours | ~self._safe(session.placer.accepted(group.shape))
        at = self.victims[allowed & (h.priority[self.victims] <= group.priority)]
        rows: dict[int, list[int]] = {}
        for slot in at[~np.isin(at, chosen)].tolist():
            if self._worth(slot, need):
                rows.setdefault(int(h.row[slot]), []).append(slot)
        return list(rows.items())[: session.settings.max_nodes_searched]

    def _safe(self, accepted: Bools) -> Bools:
        """Return a mask of the victims on GPUs within a model quota."""
        h, models, found = self.holders, self._models, np.zeros(len(self.victims), np.bool_)
        for at, slot in enumerate(self.victims.tolist()) if models else ():
            whole = h.members(int(h.gang[slot])) if h.gang[slot] != NO_GANG else [slot]
            portion = models.portion(h, whole)
            found[at] = safe(portion, models.at_risk(int(h.project[slot]), portion, {}), accepted)[0]
        return found

    def _worth(self, slot: int, need: int) -> bool:
        """Return True if the victim is not a gang that holds more than twice what is needed: a gang ends as a whole."""
        gang = int(self.holders.gang[slot])
        if gang == NO_GANG:
            return True
        return 2 * need >= int(self.holders.permille[self.holders.members(gang)].sum())

    def _fewest_on(self, row: int, group: Group, slots: list[int]) -> list[int] | None:
        """Return the fewest victims of a node with which one replica fits; the cluster stays unchanged."""
        session, mark = self.session, self.session.log.checkpoint()
        room = session.ledger.room(group.account)
        found: list[int] = []
        for slot in slots:
            session.discharge_running(self._key(slot))
            found.append(slot)
            if session.placer.on_row(group.shape, row, room) is not None:
                break
        else:
            session.log.rollback(mark)
            return None
        for slot in found[:-1]:
            session.log.rollback(mark)
            rest = [other for other in found if other != slot]
            for other in rest:
                session.discharge_running(self._key(other))
            if session.placer.on_row(group.shape, row, room) is not None:
                found = rest
        session.log.rollback(mark)
        return found

    def _carry_out(self, group: Group, members: list[PendingReplica], claims: list[Claim], chosen: list[int]) -> None:
        session = self.session
        keys = [self._key(slot) for slot in chosen]
        turn = format_duration(self.turn_s)
        reasons = [
            f"It has run for {format_duration(float(self.served[slot]))}; {members[0].workload} waits for its turn "
            f"of {turn} yet."
            for slot in chosen
        ]
        evict(session, keys, members[0].key, EvictionKind.TURN, reasons)
        self.victims = self.victims[~np.isin(self.victims, chosen)]
        for member, claim in zip(members, claims, strict=True):
            session.holds.hold(member, claim, group.account, HoldKind.NOMINATED)

    def _key(self, slot: int) -> ReplicaKey:
        key = self.holders.keys[slot]
        if key is None:
            raise LookupError(f"slot {slot} is empty")
        return key


def _evictable_at(h: RunningTable, at: Ints, turn_s: float, min_runtime_s: float) -> Floats:
    """Return when each replica has had a turn and its minimum run time since the start."""
    before = h.served_s[at]
    stay = np.maximum(np.maximum(turn_s - before, STAY * turn_s), STAY_SERVED * before)
    return np.asarray(np.maximum(h.started_at[at] + stay, h.evictable_at(at, min_runtime_s)))
