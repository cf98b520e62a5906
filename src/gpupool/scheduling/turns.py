"""Turns: training that has run for its time makes way for work that has not, and goes on when that has had its turn.

Most of a pool's time goes into a few long runs, so that a short one waits behind them unless somebody makes way. Who
runs how long need not be known for it: who has run least so far goes first (least attained service, as in Tiresias,
NSDI 2019, with two levels). The price is that training is ended and started again more often: it must save its work.

Nobody is sent away again and again: whoever starts stays for half a turn, and for a quarter of all the time it has run
before, so that the number of evictions grows with the logarithm of the run time only. And nobody is kept out for good:
who has had a turn queues as if it came later, by as long as it ran and at least a day, and takes part again then
(``order.Ordering``).
"""

from __future__ import annotations

from math import inf

import numpy as np

from gpupool.domain.units import format_duration
from gpupool.scheduling.allocate import Turns
from gpupool.scheduling.claims import Bools, Claim, Ints
from gpupool.scheduling.evict import evict
from gpupool.scheduling.gang import place
from gpupool.scheduling.guarantees import safe
from gpupool.scheduling.holders import NO_GANG, Floats, Holders
from gpupool.scheduling.queue import Group
from gpupool.scheduling.session import Session
from gpupool.scheduling.shape import Shape
from gpupool.scheduling.values import EvictionKind, HoldKind, PendingReplica, ReplicaKey

STAY = 0.5  # of a turn: so long nobody is evicted after a start
STAY_SERVED = 0.25  # nor for this part of all the time it had run before
MOST_SEARCHES = 16  # per cycle


def take_turns(session: Session) -> None:
    """Decide on evictions of those who have had a turn, for those who have not and cannot be placed."""
    turn_s = session.demand.ordering.turn_s
    if turn_s is None or not session.demand.evictable:
        return
    session.later.append(_next_due(session))
    waiting = [p for p in session.demand.lanes if _somebody_due(session, p)]
    if not waiting:
        return
    rotation = _Rotation(session, turn_s)
    if rotation.victims.size:
        rotation.serve_reserved()
        rotation.serve(waiting)
    if rotation.next_ripe < inf:
        session.alarms.append(rotation.next_ripe)


def _somebody_due(session: Session, project: int) -> bool:
    """Whether somebody's place in the queue is not in the future: who is there is due."""
    return any(group.entries[0][0] <= session.now for group in session.demand.groups(project))


def _next_due(session: Session) -> float:
    """When the next one of those is due whose place in the queue is in the future; infinite: none is."""
    found = inf
    for group in session.demand.groups():
        at = group.count_before(session.now, 0)
        if at < len(group.entries):
            found = min(found, group.entries[at][0])
    return found


class _Rotation:
    """The searches of one cycle among ``victims``: slots of those who have had a turn, who ran longest first."""

    def __init__(self, session: Session, turn_s: float) -> None:
        self.session, self.holders = session, session.demand.holders
        self.turn_s = turn_s
        self._models = session.guarantees()
        self.holders.catch_up(session.cluster)
        h, now = self.holders, session.now
        at = np.flatnonzero(h.evictable & h.occupied())
        at = at[[h.keys[slot] not in session.leaving for slot in at.tolist()]] if len(at) else at
        ripe_at = _ripe_at(h, at, turn_s, session.settings.min_runtime_s)
        self.next_ripe = float(ripe_at[ripe_at > now].min(initial=inf))
        self.served: Floats = h.served_s + now - h.started_at
        at = at[ripe_at <= now]
        self.victims: Ints = at[np.argsort(-self.served[at], kind="stable")]
        self._hopeless: set[tuple[int, int, Shape, int]] = set()

    def serve_reserved(self) -> None:
        """Those who wait for space to come free by itself need not."""
        session, reserved = self.session, dict[ReplicaKey, list[ReplicaKey]]()
        for key, ghost in session.ghosts.items():
            if ghost.hold.kind is HoldKind.RESERVED:
                reserved.setdefault(session.demand.gangs.leader(key), []).append(key)
        for leader, keys in reserved.items():
            group = session.demand.group_of(leader)
            if group is None or session.demand.arrival_of(leader)[0] > session.now:
                continue
            ghosts = [session.drop_ghost(key) for key in keys]
            if not self._make_way(group, session.demand.pending[leader]):
                for ghost in ghosts:
                    session.add_ghost(ghost)

    def serve(self, waiting: list[int]) -> None:
        """One after another, in the order in which they would be granted."""
        turns = Turns(self.session, waiting, set(), lambda _project, _shape: True)
        searches = MOST_SEARCHES
        while searches and self.victims.size and (first := turns.next()) is not None:
            group, replica, lane = first
            known = (group.account.project, group.priority, group.shape, group.size)
            due = self.session.demand.arrival_of(replica.key)[0] <= self.session.now
            if not due or known in self._hopeless:
                lane.drop()
            else:
                searches -= 1
                if not self._make_way(group, replica):
                    self._hopeless.add(known)
                    lane.drop()
            turns.again(group.account.project)

    def _make_way(self, group: Group, replica: PendingReplica) -> bool:
        """Hold space for a replica, or for all of a gang that must start at once."""
        session, mark = self.session, self.session.log.checkpoint()
        members = [r for r in session.demand.together_with(replica) if r.key not in session.gone][: group.size]
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
        """The places of a gang as it would choose them itself now that there is room."""
        session, mark = self.session, self.session.log.checkpoint()
        for claim in claims:
            session.discharge(claim, group.account)
        better = place(session, members, group.shape, group.account, group.size)
        if better is not None and len(better) == len(claims):
            return better
        session.log.rollback(mark)
        return claims

    def _room_for_one(self, group: Group, need: int, placed: int, chosen: list[int]) -> Claim | None:
        """A place for one more, with those it takes lifted and noted; None, nothing changed, if there is none."""
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
            session.lift_running(self._key(slot))
        chosen += found
        return session.placer.on_row(group.shape, row, session.ledger.room(group.account))

    def _rows(self, group: Group, need: int, placed: int, chosen: list[int]) -> list[tuple[int, list[int]]]:
        """Nodes with victims that this group may take, with these, those who ran longest first."""
        h, session = self.holders, self.session
        project = group.account.project
        ours = h.project[self.victims] == project
        left = need - need // group.size * placed  # what is placed is charged already
        yields = {
            other: session.shares.may_take(project, left, other, {})
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
        """Which of the victims are on GPUs that are guaranteed to their projects."""
        h, models, found = self.holders, self._models, np.zeros(len(self.victims), np.bool_)
        for at, slot in enumerate(self.victims.tolist()) if models else ():
            whole = h.members(int(h.gang[slot])) if h.gang[slot] != NO_GANG else [slot]
            portion = models.portion(h, whole)
            found[at] = safe(portion, models.at_risk(int(h.project[slot]), portion, {}), accepted)[0]
        return found

    def _worth(self, slot: int, need: int) -> bool:
        """A gang goes as a whole: not for work that needs less than half of what it holds."""
        gang = int(self.holders.gang[slot])
        if gang == NO_GANG:
            return True
        return 2 * need >= int(self.holders.permille[self.holders.members(gang)].sum())

    def _fewest_on(self, row: int, group: Group, slots: list[int]) -> list[int] | None:
        """Of those on a node so many that one fits, and no more; the cluster is left as it was."""
        session, mark = self.session, self.session.log.checkpoint()
        room = session.ledger.room(group.account)
        found: list[int] = []
        for slot in slots:
            session.lift_running(self._key(slot))
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
                session.lift_running(self._key(other))
            if session.placer.on_row(group.shape, row, room) is not None:
                found = rest
        session.log.rollback(mark)
        return found

    def _carry_out(self, group: Group, members: list[PendingReplica], claims: list[Claim], chosen: list[int]) -> None:
        session = self.session
        keys = [self._key(slot) for slot in chosen]
        turn = format_duration(self.turn_s)
        reasons = [
            f"It has run for {format_duration(float(self.served[slot]))}; {members[0].workload} has not had a turn "
            f"of {turn} yet."
            for slot in chosen
        ]
        evict(session, keys, members[0].key, EvictionKind.TURN, reasons)
        self.victims = self.victims[~np.isin(self.victims, chosen)]
        for member, claim in zip(members, claims, strict=True):
            session.hold_for(member, claim, group.account, HoldKind.NOMINATED)

    def _key(self, slot: int) -> ReplicaKey:
        key = self.holders.keys[slot]
        if key is None:
            raise LookupError(f"nobody is in slot {slot}")
        return key


def _ripe_at(h: Holders, at: Ints, turn_s: float, min_runtime_s: float) -> Floats:
    """When each has had a turn and has stayed long enough since its start."""
    before = h.served_s[at]
    stay = np.maximum(np.maximum(turn_s - before, STAY * turn_s), STAY_SERVED * before)
    return np.asarray(np.maximum(h.started_at[at] + stay, h.ripe_at(at, min_runtime_s)))
