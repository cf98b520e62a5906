"""Preemption: evictions inside a project, for work of higher priority and for users below their share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property, partial
from math import inf

import numpy as np

from gpupool.scheduling.eviction.notices import reason_of, reason_of_user
from gpupool.scheduling.eviction.planner import EvictionPlanner, Why, without_reservations
from gpupool.scheduling.eviction.victim_search import Clearing, Refused
from gpupool.scheduling.eviction.victims import VictimPool
from gpupool.scheduling.fairness.user_shares import UserRows, UserShares, divide_among_users
from gpupool.scheduling.fairness.water_filling import Floats
from gpupool.scheduling.scheduling_order import Wanted
from gpupool.scheduling.session import SchedulingSession
from gpupool.scheduling.state.allocation import EPSILON, Bools, Ints
from gpupool.scheduling.state.ledger import Account
from gpupool.scheduling.state.queue import Group, GroupKey, ProjectQueue
from gpupool.scheduling.state.queue_tables import DeadShapes, marked
from gpupool.scheduling.state.running import NO_GANG
from gpupool.scheduling.values import EvictionKind, PendingReplica


@dataclass(frozen=True, slots=True)
class _Grounds:
    """A reason to evict inside a project: the suitable pieces, those that are refused, and the event."""

    among: Bools
    refused: Refused
    kind: EvictionKind
    why: Why


@dataclass(frozen=True, slots=True, eq=False)
class _Holdings:
    """Holdings of the users with evictable work in a project, with their shares and smallest open pieces.

    All in thousandths; ``of_piece`` is the row of each piece of the pool, whose ``version`` this is.
    """

    version: int
    of_piece: Ints
    amount: Floats
    users: UserRows
    smallest: Floats


class Preemption(Wanted):
    """The evictions inside projects of one cycle, with the searches that are known to fail.

    Work of every shape may be helped: priorities and the shares of users decide.
    """

    kind = EvictionKind.PREEMPT

    def __init__(self, room: EvictionPlanner) -> None:
        self.dead = DeadShapes(room.session.demand.first_groups().shapes)
        self._room = room
        self._hopeless: set[GroupKey] = set()
        self._holdings: dict[int, _Holdings] = {}  # by project

    def projects(self) -> list[int]:
        """Return the projects with waiting work that may evict other work of its project."""
        demand, by_priority = self._room.session.demand, self._by_priority
        of_users = self._users.projects if demand.project_queues and demand.priorities_evictable else set[int]()
        if not (by_priority or of_users):
            return []
        queues = demand.project_queues
        return [p for p in queues if p in of_users or (by_priority and self._outranks(p))]

    @cached_property
    def _by_priority(self) -> bool:
        """Return whether any higher priority waits than that of the least important evictable work."""
        demand = self._room.session.demand
        return max(demand.priorities_waiting, default=-inf) > min(demand.priorities_evictable, default=inf)

    def _outranks(self, project: int) -> bool:
        """Return whether a higher priority waits in a project than that of its least important evictable work."""
        return max(self._room.session.demand.importance[project]) > self.lowest(project)

    def lowest(self, project: int) -> float:
        """Return the lowest priority of evictable work in a project."""
        return min(self._room.session.demand.evictable.get(project, ()), default=inf)

    def hopeful(self, projects: list[int]) -> list[int]:
        """Return those in which a higher priority waits, or a user might take GPUs from another one."""
        able = set(self._room.session.demand.ledger.pair_project[list(self._possible_takers)].tolist())
        return [p for p in projects if p in able or (self._by_priority and self._outranks(p))]

    def also_failed(self) -> AbstractSet[int]:
        """Return nothing: each project evicts its own work only."""
        return frozenset()

    def bar(self, group: Group, replica: PendingReplica, queue: ProjectQueue) -> None:
        """Close the queue if the rest of it, with no higher priority, may not evict in its project."""
        project = group.account.project
        if replica.priority <= self.lowest(project) and project not in self._users.projects:
            queue.close()

    @cached_property
    def _users(self) -> UserShares:
        """Return the shares of the users, as of the first call."""
        session, demand, promised = self._room.session, self._room.session.demand, Counter[int]()
        for active in session.holds.active.values():
            promised[active.account.pair] += active.claim.permille
        demand.user_division = divide_among_users(session.ledger, demand.user_division)
        return UserShares(session.ledger, promised, demand.user_division)

    @cached_property
    def _possible_takers(self) -> set[int]:
        """Return the users (``Account.pair``) that might take GPUs from others of their project.

        A quick check, as of the first call: later evictions of the cycle let no user take more.
        """
        demand = self._room.session.demand
        if not self._users.projects:
            return set()
        needs = demand.least_needs()
        pairs = np.flatnonzero((needs > 0) & demand.user_division.uneven[demand.ledger.pair_project])
        if not len(pairs):
            return set()
        session, holders = self._room.session, demand.holders
        at = np.flatnonzero(holders.evictable)
        at = at[holders.at_stake(at, session.now, session.settings.unsaved_after_s) == 0]
        pairs = self._takers_of(at, pairs, needs)
        concerned = marked(set(demand.ledger.pair_project[pairs].tolist()), len(demand.ledger.projects))
        at = at[concerned[holders.project[at]]]
        until = holders.shielded_until(at, session.settings.min_runtime_s)
        later = (holders.gang[at] == NO_GANG) & (until > session.now)  # not gangs: their oldest member decides
        if later.any():
            session.outcome.wake_at(float(until[later].min()))
        return set(self._takers_of(at[~later], pairs, needs).tolist())

    def _takers_of(self, slots: Ints, pairs: Ints, needs: Ints) -> Ints:
        """Return which users ``pairs`` might take what they need if others can lose the replicas in ``slots``."""
        smallest, holders = np.full(len(needs), inf), self._room.session.demand.holders
        np.minimum.at(smallest, holders.pair[slots], holders.permille[slots])
        return pairs[self._users.might_take(pairs, needs[pairs], smallest)]

    def serve(self, group: Group, replica: PendingReplica) -> bool:
        """Hold GPUs for a replica, by eviction in its project if needed: of lower priorities, then of other users."""
        account, need = group.account, self._room.permille(group)
        by_priority = replica.priority > self.lowest(account.project)
        for_user = account.pair in self._possible_takers and self._users.may_take(account, need)
        for_user = for_user and self._somebody_can_lose(account, need)
        if group.shape.gpuless or not (by_priority or for_user):
            return False
        if self._room.nominate(group, replica):
            return True
        if group.key in self._hopeless:
            return False
        self._room.work.begin()
        pool = self._room.pool(account.project)
        found = by_priority and self._take(group, replica, pool, self._lower(pool, replica))
        if not found and for_user and self._users.may_take(account, need):
            found = self._take(group, replica, pool, self._of_users(pool, group, replica))
        if not found:
            self._hopeless.add(group.key)
        return found

    def _lower(self, pool: VictimPool, replica: PendingReplica) -> _Grounds:
        among = (pool.pieces.priority < replica.priority) & pool.alive
        return _Grounds(among, _nobody, EvictionKind.PREEMPT, partial(reason_of, kind=EvictionKind.PREEMPT))

    def _of_users(self, pool: VictimPool, group: Group, replica: PendingReplica) -> _Grounds:
        """Return the pieces of other users of the project that are not more important; shielded work stays."""
        p, account, need = pool.pieces, group.account, self._room.permille(group)
        held = self._held_in(account.project)
        spare = held.amount - self._users.least(held.users, account, need) + EPSILON
        among = (pool.users() != account.user) & (p.priority <= replica.priority) & (p.weight <= spare[held.of_piece])
        among &= pool.alive & pool.open(promised=False)
        refused = _RefusedUser(self._room.session, pool, self._users, account, need)
        return _Grounds(among, refused, EvictionKind.RECLAIM, partial(reason_of_user, shares=self._users))

    def _somebody_can_lose(self, account: Account, need: int) -> bool:
        """Return False if no user of the project can lose even its smallest piece to this one; a quick check."""
        held = self._held_in(account.project)
        least = self._users.least(held.users, account, need)
        return bool((held.amount - held.smallest >= least - EPSILON).any())

    def _held_in(self, project: int) -> _Holdings:
        """Return what the users of a project hold; cached until something is evicted."""
        pool = self._room.pool(project)
        found = self._holdings.get(project)
        if found is None or found.version != pool.version:
            found = self._holdings[project] = self._read_holdings(pool)
        return found

    def _read_holdings(self, pool: VictimPool) -> _Holdings:
        _, first, of_piece = np.unique(pool.users(), return_index=True, return_inverse=True)
        keys = [pool.keys(pool.slots_of([piece])[0])[0] for piece in first.tolist()]
        accounts = [self._room.session.demand.accounts[key] for key in keys]
        smallest = np.full(len(first), inf)
        open_ = pool.alive & pool.open(promised=False)
        np.minimum.at(smallest, of_piece[open_], pool.pieces.weight[open_])
        held = np.array([self._users.held(account) for account in accounts], np.float64)
        return _Holdings(pool.version, of_piece, held, self._users.rows(accounts), smallest)

    def _take(self, group: Group, replica: PendingReplica, pool: VictimPool, grounds: _Grounds) -> bool:
        session, project = self._room.session, group.account.project
        room = session.ledger.room(group.account)
        if self._room.permille(group) > room:
            return self._take_for_bounds(group, replica, pool, grounds)
        budget = room // group.size
        found = self._take_from(group, replica, pool, grounds, budget)
        if not found:
            with without_reservations(session, self._gives_way_in(project)) as anything:
                found = anything and self._take_from(group, replica, pool, grounds, budget)
        return found

    def _gives_way_in(self, project: int) -> Callable[[Group], bool]:
        """Return which groups yield to a project: for a project within a configured quota, those without one."""
        within = self._room.rights.promised(project, 0)
        return lambda reserved: within and self._room.gives_way(reserved)

    def _take_from(
        self, group: Group, replica: PendingReplica, pool: VictimPool, grounds: _Grounds, budget: int
    ) -> bool:
        search = self._room.search(group, pool, grounds.among.copy(), grounds.refused, budget)
        return search is not None and self._room.evict(group, replica, search, grounds.kind, grounds.why)

    def _take_for_bounds(self, group: Group, replica: PendingReplica, pool: VictimPool, grounds: _Grounds) -> bool:
        """Evict one after another until quotas and limits have room, then remove unnecessary victims."""
        groups = self._until_it_fits(group, replica, pool, grounds)
        for unit in reversed(groups.copy()):
            rest = [other for other in groups if other is not unit]
            if self._fits_without(group, replica, pool, rest):
                groups = rest
        slots = tuple(slot for unit in groups for slot in unit)
        return bool(slots) and self._room.carry_out(group, replica, Clearing(slots), grounds.kind, grounds.why, pool)

    def _until_it_fits(
        self, group: Group, replica: PendingReplica, pool: VictimPool, grounds: _Grounds
    ) -> list[list[int]]:
        p, at, users = pool.pieces, np.flatnonzero(grounds.among), pool.holders.user
        other_user = users[np.where(p.slot[at] >= 0, p.slot[at], 0)] != group.account.user
        at = at[np.lexsort((-p.newness[at], p.stake[at], p.priority[at], other_user))]
        chosen: list[int] = []
        for piece in at[: self._room.session.settings.max_nodes_searched].tolist():
            units = pool.slots_of([*chosen, piece])
            if grounds.refused(units):
                continue
            chosen.append(piece)
            if self._fits_without(group, replica, pool, units):
                return units
        return []

    def _fits_without(
        self, group: Group, replica: PendingReplica, pool: VictimPool, units: Sequence[Sequence[int]]
    ) -> bool:
        """Return True if there is a place once the victims are gone."""
        session = self._room.session
        self._room.work.look()
        mark = session.log.checkpoint()
        for key in pool.keys(slot for unit in units for slot in unit):
            session.discharge_running(key)
        fits = self._room.claims(group, replica) is not None
        session.log.rollback(mark)
        return fits


class _RefusedUser:
    """Find the victims whose users would hold too little once the previous ones are gone."""

    def __init__(
        self, session: SchedulingSession, pool: VictimPool, shares: UserShares, taker: Account, extra: int
    ) -> None:
        self._accounts, self._pool, self._shares = session.demand.accounts, pool, shares
        self._taker, self._extra = taker, extra

    def __call__(self, units: Sequence[Sequence[int]]) -> list[int]:
        freed, refused = Counter[int](), list[int]()
        for at, slots in enumerate(units):
            account = self._accounts[self._pool.keys(slots)[0]]
            piece = int(self._pool.holders.permille[slots].sum())
            kept = self._shares.held(account) - freed[account.pair] - piece
            if kept >= self._shares.least(self._shares.rows([account]), self._taker, self._extra)[0] - EPSILON:
                freed[account.pair] += piece
            else:
                refused.append(at)
        return refused


def _nobody(_units: Sequence[Sequence[int]]) -> list[int]:
    return []
