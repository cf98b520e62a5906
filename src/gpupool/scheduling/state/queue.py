"""Waiting and running replicas, grouped so that a cycle handles kinds of work instead of single replicas."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import replace
from heapq import heapify, heappop, heappush
from math import inf
from operator import itemgetter

from gpupool.domain.ids import WorkloadId
from gpupool.domain.nodes.sharing import traits_of
from gpupool.domain.units import WHOLE_GPU
from gpupool.domain.work.gang import Gang
from gpupool.scheduling.state.allocation import Bools, Ints
from gpupool.scheduling.state.cluster import Shape, Shapes
from gpupool.scheduling.state.gang_members import GangEntry, Gangs, Members
from gpupool.scheduling.state.ledger import Account, Ledger
from gpupool.scheduling.state.queue_tables import First, FirstGroups, LeastNeeds, Searched
from gpupool.scheduling.state.queue_window import ROTATED, ROTATION_S, QueueWindow
from gpupool.scheduling.state.reservations import Reservations
from gpupool.scheduling.state.running import RunningTable
from gpupool.scheduling.state.undo import UndoLog
from gpupool.scheduling.state.user_division import UserDivision
from gpupool.scheduling.state.user_order import Ordering
from gpupool.scheduling.values import PendingReplica, ReplicaKey, RunningReplica

Entry = tuple[float, int, PendingReplica]  # its place (see ``user_order``), arrival number
# project, priority, user, preemptible, shape, gang, workload of a running gang (for members that join it), how many
# must start at once
GroupKey = tuple[int, int, int, bool, Shape, Gang | None, WorkloadId | None, int]
# an entry that is parked: its queue time, arrival number, and its part of a gang
Parked = tuple[PendingReplica, float, int, GangEntry | None]
# -priority, not a joiner, held by the user in the project, place, arrival number
QueueKey = tuple[int, bool, int, float, int]


class Group:
    """Pending replicas that are equal to the scheduler, oldest first.

    With ``gang``, each entry stands for a gang: its first member at the place of its oldest. With ``joins`` as well,
    the entries are single members that join the running gang ``joins``. ``size`` is how many replicas of the shape must
    start at once. In a gang of different shapes, it counts the members with the largest request.
    """

    __slots__ = ("account", "entries", "gang", "joins", "key", "priority", "shape", "size")

    def __init__(self, key: GroupKey, account: Account) -> None:
        self.key, self.account = key, account
        self.priority, self.shape, self.gang, self.joins, self.size = key[1], key[4], key[5], key[6], key[7]
        self.entries: list[Entry] = []

    @property
    def starvable(self) -> bool:
        """Return True if smaller work could delay it for ever."""
        return self.gang is not None or self.shape.starvable

    def of_shape(self, shape: Shape) -> Group:
        """Return a group without entries that differs in its shape only."""
        return Group((*self.key[:4], shape, *self.key[5:]), self.account)

    def count_before(self, queued_at: float, arrival: int) -> int:
        """Return how many entries are older than a place."""
        return bisect_left(self.entries, (queued_at, arrival), key=lambda entry: entry[:2])


class Demand:
    """All waiting and running replicas, with the ledger of their use.

    Ready replicas are in ``project_queues``: project -> shape -> groups. Replicas that wait only for time sleep until
    ``wake``; those that are ``held`` are stored but not queued. Replicas with a hold are ready too. Of users with very
    many different requests, some are parked in ``window``.
    """

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.ordering = Ordering()
        self.shapes = Shapes()
        self.gangs = Gangs()
        self.window: QueueWindow[Parked] = QueueWindow()
        self.pending: dict[ReplicaKey, PendingReplica] = {}
        self.running: dict[ReplicaKey, RunningReplica] = {}
        self.accounts: dict[ReplicaKey, Account] = {}  # of running replicas
        self.releasing: set[ReplicaKey] = set()
        self.holders = RunningTable()
        self.evictable: dict[int, Counter[int]] = {}  # project -> priority -> preemptible running replicas
        self.project_queues: dict[int, dict[Shape, dict[GroupKey, Group]]] = {}
        self.shape_projects: dict[Shape, set[int]] = {}  # the projects in whose queue a shape is
        self.shape_gangs: dict[Shape, Counter[int]] = {}  # of these projects, those with gangs, and how many groups
        self.timed: Counter[Shape] = Counter()  # ready replicas with a time limit
        self.restartable: Counter[Shape] = Counter()  # preemptible ready replicas
        self.importance: dict[int, Counter[int]] = {}  # project -> priority -> groups
        self.priorities_waiting: Counter[int] = Counter()  # the same over all projects: priority -> groups
        self.priorities_evictable: Counter[int] = Counter()  # priority -> preemptible running replicas
        self.starved: dict[Shape, set[ReplicaKey]] = {}  # see ``mature``
        self._starved_changed: list[Shape] = []  # see ``starved_shapes``
        self.changes = 0  # how often a replica was added, started or removed
        self.room_wanted = False  # the last cycle granted something and skipped evictions
        # see ``consolidation``: the last search, the first of this round
        self.moves_sought_at = self.moves_since = -inf
        # the change counts at that time, and the pause before the next round
        self.moves_for, self.moves_pause_s = (-1, -1), 0.0
        self.unmovable: set[Shape] = set()  # shapes without a result in this round
        self.moves_interrupted = False  # the last search stopped at its bounds
        # see ``serve_by_eviction``: the change counts at its last search, and the rounds completed since they changed
        self.searched_for, self.search_rounds = (-1, -1), 0
        self.user_division = UserDivision()  # see ``user_shares``: of the last cycle that divided
        self.searched = Searched()  # without success, by an interrupted cycle
        self._maturing: list[tuple[float, int, ReplicaKey]] = []
        self._heads: dict[int, dict[Shape, tuple[QueueKey, Group]]] = {}
        self._first_groups = FirstGroups()
        self._least_needs = LeastNeeds()
        self._sleeping: list[tuple[float, int, ReplicaKey]] = []
        self._asked: dict[ReplicaKey, int] = {}  # thousandths requested by ready replicas, as counted in the ledger
        self._entries: dict[ReplicaKey, tuple[Group, float, int]] = {}
        self._arrivals = 0
        self._users_apart = False
        self._rotated_at = -inf
        self.reservations = Reservations()
        self._log = UndoLog()

    @contextmanager
    def with_pending(self, replicas: Sequence[PendingReplica], now: float) -> Iterator[None]:
        """Run a block as if ``replicas`` waited too; then restore the queue and what a cycle noted about itself.

        A project or user that is not known becomes known, without bounds. Raise ``ValueError`` for replicas that wait
        already.
        """
        if any(replica.key in self.pending for replica in replicas):
            raise ValueError("the replica waits already")
        for replica in replicas:
            self.account_of(replica)
        noted = {name: value for name, value in vars(self).items() if isinstance(value, int | float | tuple)}
        sets = {name: (value, value.copy()) for name, value in vars(self).items() if isinstance(value, set)}
        searched = self.searched.copy()
        known = set(self.importance)
        self.window.bounded = False
        try:
            for replica in replicas:
                self.add(replica, now)
            yield
        finally:
            self.window.bounded = True
            for replica in replicas:
                self.remove(replica.key)
            self._forget_times({replica.key for replica in replicas})
            for project in set(self.importance) - known:
                del self.importance[project]
            for name, number in noted.items():
                setattr(self, name, number)
            for name, (value, before) in sets.items():
                if value != before or getattr(self, name) is not value:
                    value.clear()
                    value.update(before)
                    setattr(self, name, value)
            self.searched = searched
            for replica in replicas:
                self._forget_cached(self.account_of(replica).project)
            self.starved_shapes()

    # --- waiting replicas

    def add(self, replica: PendingReplica, now: float) -> None:
        """Add a waiting replica; it replaces a waiting replica with the same key."""
        self.changes += 1
        self.remove(replica.key)
        self.pending[replica.key] = replica
        self._arrivals += 1
        if replica.held is not None:
            return
        if replica.not_before > now:
            heappush(self._sleeping, (replica.not_before, self._arrivals, replica.key))
        else:
            self._enqueue(replica, self._arrivals)

    def remove(self, key: ReplicaKey) -> PendingReplica | None:
        """Remove a waiting replica and return it, or None."""
        replica = self.pending.get(key)
        if replica is not None:
            self._unlist(replica)
            del self.pending[key]
            self.ledger.wait(self.account_of(replica), -self._asked.pop(key, 0))
            self.gangs.waits_no_more(key)
        return replica

    def wake(self, now: float) -> None:
        """Queue the replicas whose time has come, and complete gangs."""
        for project in self.ledger.refresh_recent(now):
            self._forget_order(project)
        while self._sleeping and self._sleeping[0][0] <= now:
            _, arrival, key = heappop(self._sleeping)
            replica = self.pending.get(key)
            if replica is not None and key not in self._entries and replica.held is None and replica.not_before <= now:
                self._enqueue(replica, arrival)
        for members in self.gangs.changed(now):
            self._list_gang(members)

    def rotate(self, now: float, keep: Container[ReplicaKey]) -> None:
        """Let parked requests change places with others of the same user; those of the replicas ``keep`` stay."""
        if not self.window or now - self._rotated_at < ROTATION_S:
            return
        self._rotated_at = now
        for who in self.window.users():
            project, priority, user = who
            moved = list[Parked]()
            for shape in self.window.oldest(who)[:ROTATED]:
                groups = [
                    group
                    for group in self.project_queues[project][shape].values()
                    if group.priority == priority and group.account.user == user
                ]
                entries = [entry for group in groups for entry in group.entries]
                small = len(entries) <= ROTATED and all(group.gang is None for group in groups)
                if small and not any(entry[2].key in keep for entry in entries):
                    moved += [(replica, replica.queued_at, arrival, None) for _, arrival, replica in entries]
            for parked in moved:
                self._unlist(parked[0])
            for parked in moved:
                self._list(*parked)

    def next_wake(self) -> float | None:
        """Return the time at which the next replica joins the queue; None when none sleeps or is parked."""
        while self._sleeping and (self._sleeping[0][2] in self._entries or self._sleeping[0][2] not in self.pending):
            heappop(self._sleeping)
        times = [entry[0] for entry in self._sleeping[:1]]
        if self.window:
            times.append(max(self._rotated_at, self.ledger.now) + ROTATION_S)
        return min(times, default=None)

    def _forget_times(self, keys: Container[ReplicaKey]) -> None:
        """Remove the timers of replicas that were removed."""
        for heap in (self._maturing, self._sleeping):
            kept = [entry for entry in heap if entry[2] not in keys]
            if len(kept) < len(heap):
                heapify(kept)
                heap[:] = kept

    def mature(self, waiting_since: float) -> float | None:
        """Update ``starved`` with replicas that have waited since then; return the start of the next one's wait."""
        while self._maturing and (self._maturing[0][0] <= waiting_since or not self._waits(self._maturing[0])):
            entry = heappop(self._maturing)
            if self._waits(entry):
                shape = self._entries[entry[2]][0].shape
                self.starved.setdefault(shape, set()).add(entry[2])
                self._starved_changed.append(shape)
        return self._maturing[0][0] if self._maturing else None

    def starved_shapes(self) -> Bools:
        """Return which shapes are ``starved``, by number. Do not change it."""
        shapes = self.first_groups().shapes
        for shape in self._starved_changed:
            shapes.starved[shapes.number(shape)] = shape in self.starved
        self._starved_changed.clear()
        shapes.starved[0] = False  # of those that do not wait any more
        return shapes.starved

    def _waits(self, entry: tuple[float, int, ReplicaKey]) -> bool:
        placed = self._entries.get(entry[2])
        return placed is not None and placed[2] == entry[1]

    def group_of(self, key: ReplicaKey) -> Group | None:
        """Return the group in which a ready replica waits."""
        placed = self._entries.get(self.gangs.leader(key))
        return None if placed is None else placed[0]

    def arrival_of(self, key: ReplicaKey) -> tuple[float, int]:
        """Return the queue time and the arrival number of a ready replica; of a waiting gang, those of its oldest."""
        return self._entries[self.gangs.leader(key)][1:]

    def together_with(self, replica: PendingReplica) -> list[PendingReplica]:
        """Return the replicas that start together with a queue entry, itself first: its gang, or it alone."""
        members = self.gangs.get(replica.workload) if replica.gang is not None else None
        if members is None or members.running:
            return [replica]
        return [self.pending[key] for key in members.in_order(self.pending)[: members.gang.most]]

    def groups(self, project: int | None = None) -> Iterator[Group]:
        """Return all groups, or those of one project."""
        queues = self.project_queues.values() if project is None else [self.project_queues.get(project, {})]
        for shapes in queues:
            for groups in shapes.values():
                yield from groups.values()

    def heads(self, project: int) -> dict[Shape, tuple[QueueKey, Group]]:
        """Return the first group of each shape of a project with its key; cached until something changes."""
        if project not in self._heads:
            ledger, by_user = self.ledger, self.ordering.by_user
            self._heads[project] = {
                shape: min(((queue_key(ledger, g, 0, by_user), g) for g in groups.values()), key=lambda head: head[0])
                for shape, groups in self.project_queues.get(project, {}).items()
            }
        return self._heads[project]

    def first_groups(self) -> FirstGroups:
        """Return the first group of each shape of all projects. Do not change it."""
        self._first_groups.update(self._firsts_of)
        return self._first_groups

    def _firsts_of(self, project: int) -> list[First]:
        firsts = [group for _, group in sorted(self.heads(project).values(), key=itemgetter(0))]
        return [(group.shape, group.size, group.entries[0][2].queued_at) for group in firsts]

    def least_needs(self) -> Ints:
        """Return what each user with GPU work in a queue needs at least; see ``LeastNeeds``. Do not change it."""
        return self._least_needs.rows(self.ledger, self._needs_of)

    def _needs_of(self, project: int) -> Iterator[tuple[int, int]]:
        for group in self.groups(project):
            if not group.shape.gpuless:
                yield group.account.pair, (group.shape.fixed_permille or 1) * group.size

    def _forget_cached(self, project: int) -> None:
        self._forget_order(project)
        self._least_needs.outdate(project)

    def _forget_order(self, project: int) -> None:
        self._heads.pop(project, None)
        self._first_groups.outdate(project)

    def shape_of(self, replica: PendingReplica) -> Shape:
        """Return the shape of a replica, ready or not; a member of a mixed gang has its own."""
        mixed = replica.gang is not None and replica.gang.mixed
        group = None if mixed else self.group_of(replica.key)
        return group.shape if group else self._make_shape(replica)

    def _make_shape(self, replica: PendingReplica) -> Shape:
        wanted = replica.request
        mode = wanted.sharing
        served = not wanted.whole and (self._users_apart if mode is None else traits_of(mode).single_user)
        user = replica.user if served else ""
        grace_s = replica.grace_s if replica.preemptible else None
        guest = self.reservations.guest(replica.project, replica.user, replica.max_time_s, grace_s)
        cpus, memory_mib = replica.cpus, replica.memory_mib
        return self.shapes.get(wanted, cpus, memory_mib, user, replica.node_pools, guest=guest)

    def distinguish_users(self, *, apart: bool) -> None:
        """Set whether shapes include the user: some GPU serves one user at a time, and the request names no mode."""
        if apart is not self._users_apart:
            self._users_apart = apart
            self.rebuild()

    def rebuild(self) -> None:
        """Rebuild the queue after the definition of shapes has changed."""
        for key in list(self._entries):
            replica, arrival = self.pending[key], self._entries[key][2]
            self._unlist(replica)
            if replica.gang is None:
                self._enqueue(replica, arrival)
        for replica, queued_at, arrival, gang_entry in list(self.window.clear()):
            if gang_entry is None:
                self._list(replica, queued_at, arrival)
        self.gangs.change_all()

    def account_of(self, replica: PendingReplica) -> Account:
        """Return the account that a pending replica would use."""
        models = replica.request.models
        return self.ledger.account(replica.project, replica.user, preemptible=replica.preemptible, models=models)

    def _enqueue(self, replica: PendingReplica, arrival: int) -> None:
        self._ask(replica)
        if replica.gang is None:
            self._list(replica, replica.queued_at, arrival)
        else:
            self.gangs.waits(replica, arrival)

    def _ask(self, replica: PendingReplica) -> None:
        if replica.key not in self._asked:
            request = replica.request
            most = (WHOLE_GPU if request.memory_mib is not None else request.permille) * request.count
            self._asked[replica.key] = most
            self.ledger.wait(self.account_of(replica), most)

    def _list_gang(self, members: Members) -> None:
        wanted = members.entries(self.pending)
        if wanted == members.listed and all(entry.key in self._entries for entry in wanted):
            return
        for entry in members.listed:
            if entry.key in self.pending:
                self._unlist(self.pending[entry.key])
        for entry in wanted:
            self._list(self.pending[entry.key], entry.queued_at, entry.arrival, entry)
        members.listed = wanted

    def _list(
        self, replica: PendingReplica, queued_at: float, arrival: int, gang_entry: GangEntry | None = None
    ) -> None:
        account = self.account_of(replica)
        gang = None if gang_entry is None else gang_entry.gang
        joins = replica.workload if gang_entry is not None and gang_entry.joins else None
        shape, size = self._starts(replica, gang if joins is None else None)
        key = (account.project, replica.priority, account.user, replica.preemptible, shape, gang, joins, size)
        if not self.window.has_room(key[:3], shape):
            self.window.park(key[:3], shape, replica.key, (replica, queued_at, arrival, gang_entry))
            return
        self._forget_cached(account.project)
        groups = self.project_queues.setdefault(account.project, {}).setdefault(shape, {})
        if key not in groups:
            groups[key] = Group(key, account)
            self.window.enter(key[:3], shape)
            self.shape_projects.setdefault(shape, set()).add(account.project)
            if gang is not None:
                _count(self.shape_gangs.setdefault(shape, Counter()), account.project, 1)
            _count(self.importance.setdefault(account.project, Counter()), replica.priority, 1)
            _count(self.priorities_waiting, replica.priority, 1)
        place = queued_at + self._late_s(replica, groups[key])
        insort(groups[key].entries, (place, arrival, replica), key=lambda entry: entry[:2])
        self._entries[replica.key] = (groups[key], place, arrival)
        self.timed[shape] += replica.max_time_s is not None
        self.restartable[shape] += replica.preemptible
        if groups[key].starvable:
            heappush(self._maturing, (max(queued_at, replica.not_before), arrival, replica.key))

    def _starts(self, replica: PendingReplica, gang: Gang | None) -> tuple[Shape, int]:
        """Return the shape and the count that a replica or its gang needs to start; of a mixed gang the largest."""
        if gang is None or not gang.mixed:
            return self._make_shape(replica), 1 if gang is None else gang.least
        shapes = [self._make_shape(member) for member in self.together_with(replica)[: gang.least]]
        return shapes[0], shapes.count(shapes[0])

    def _late_s(self, replica: PendingReplica, group: Group) -> float:
        fixed = group.shape.fixed_permille
        permille = group.size * (replica.request.count * WHOLE_GPU if fixed is None else fixed)
        return self.ordering.late_s(replica.project, replica.user, permille, replica.served_s)

    def _unlist(self, replica: PendingReplica) -> None:
        placed = self._entries.pop(replica.key, None)
        if placed is None:
            self.window.forget(replica.key)
            return
        group, queued_at, arrival = placed
        self._forget_cached(group.account.project)
        self.timed[group.shape] -= replica.max_time_s is not None
        self.restartable[group.shape] -= replica.preemptible
        del group.entries[group.count_before(queued_at, arrival)]
        if replica.key in self.starved.get(group.shape, ()):
            self.starved[group.shape].remove(replica.key)
            if not self.starved[group.shape]:
                del self.starved[group.shape]
                self._starved_changed.append(group.shape)
        if not group.entries:
            self._drop(group)

    def _drop(self, group: Group) -> None:
        shapes = self.project_queues[group.account.project]
        del shapes[group.shape][group.key]
        if group.gang is not None:
            _count(self.shape_gangs[group.shape], group.account.project, -1)
            if not self.shape_gangs[group.shape]:
                del self.shape_gangs[group.shape]
        if not shapes[group.shape]:
            del shapes[group.shape]
            self._drop_shape(group.account.project, group.shape)
        if not shapes:
            del self.project_queues[group.account.project]
        importance = self.importance[group.account.project]
        _count(importance, group.priority, -1)
        _count(self.priorities_waiting, group.priority, -1)
        self.window.leave(group.key[:3], group.shape)
        for parked in self.window.next(group.key[:3]):
            self._list(*parked)

    def _drop_shape(self, project: int, shape: Shape) -> None:
        self.shape_projects[shape].remove(project)
        if not self.shape_projects[shape]:
            del self.shape_projects[shape], self.timed[shape], self.restartable[shape]
            self.unmovable.discard(shape)

    # --- running replicas

    def start(self, replica: RunningReplica) -> None:
        """Add or update a running replica. It no longer waits."""
        self.changes += 1
        self.remove(replica.key)
        before = self._drop_running(replica.key)
        if before is not None:
            self.ledger.started(before[1], -before[0].lease.permille, before[0].lease.granted_at)
        lease = replica.lease
        models = () if replica.request is None else replica.request.models
        account = self.ledger.account(lease.project, lease.user, preemptible=replica.preemptible, models=models)
        self.running[replica.key], self.accounts[replica.key] = replica, account
        self.holders.start(replica, account)
        self.ledger.add(self._log, account, lease.permille)
        self.ledger.started(account, lease.permille, lease.granted_at)
        self._forget_order(account.project)
        self._log.commit()
        if replica.releasing:
            self.releasing.add(replica.key)
            return
        self.gangs.runs(replica)
        if replica.preemptible:
            _count(self.evictable.setdefault(account.project, Counter()), replica.priority, 1)
            _count(self.priorities_evictable, replica.priority, 1)

    def leaves(self, key: ReplicaKey) -> None:
        """Mark a running replica as ending. Equivalent to ``start`` with ``releasing``, but faster."""
        replica = self.running[key]
        if replica.releasing:
            return
        self.changes += 1
        self.running[key] = replace(replica, releasing=True)
        self.releasing.add(key)
        self.gangs.runs_no_more(key)
        self.holders.leaves(key)
        if replica.preemptible:
            _count(self.evictable[self.accounts[key].project], replica.priority, -1)
            _count(self.priorities_evictable, replica.priority, -1)

    def finish(self, key: ReplicaKey, at: float | None = None) -> None:
        """Remove a running replica whose lease was released, ``at`` or now; unknown replicas are ignored."""
        self.changes += 1
        before = self._drop_running(key)
        if before is not None:
            lease, account = before[0].lease, before[1]
            self.ledger.ended(account, lease.permille, max(lease.granted_at, self.ledger.now if at is None else at))

    def _drop_running(self, key: ReplicaKey) -> tuple[RunningReplica, Account] | None:
        replica = self.running.pop(key, None)
        self.gangs.runs_no_more(key)
        if replica is None:
            return None
        account = self.accounts.pop(key)
        self.ledger.add(self._log, account, -replica.lease.permille)
        self._forget_order(account.project)
        self._log.commit()
        self.releasing.discard(key)
        self.holders.finish(key)
        if replica.preemptible and not replica.releasing:
            _count(self.evictable[account.project], replica.priority, -1)
            _count(self.priorities_evictable, replica.priority, -1)
        return replica, account


def _count(counts: Counter[int], kind: int, more: int) -> None:
    """Add to a counter and remove the key at zero."""
    counts[kind] += more
    if not counts[kind]:
        del counts[kind]


def queue_key(ledger: Ledger, group: Group, cursor: int, by_user: bool) -> QueueKey:
    """Return the sort key of a group in its project queue, by its entry at ``cursor``."""
    place, arrival, _ = group.entries[cursor]
    burden = ledger.burden(group.account) if by_user else 0
    return (-group.priority, group.joins is None, burden, place, arrival)


class ProjectQueue:
    """The waiting groups of one project in scheduling order.

    Higher priority first. Within one priority, the user with less current and recent use in the project comes first,
    then the earlier place.
    """

    __slots__ = ("_barred", "_by_user", "_cursors", "_heap", "_ledger", "_skip")

    def __init__(self, demand: Demand, groups: list[Group], skip: AbstractSet[ReplicaKey]) -> None:
        self._ledger, self._skip, self._by_user = demand.ledger, skip, demand.ordering.by_user
        self._cursors: dict[Group, int] = {}
        self._barred: set[Shape] = set()
        heap = [(queue_key(self._ledger, g, 0, self._by_user), at, g) for at, g in enumerate(groups) if g.entries]
        heapify(heap)
        self._heap = heap

    def peek(self) -> tuple[Group, PendingReplica] | None:
        """Return the next group and replica; None when the queue is empty."""
        while self._heap:
            key, at, group = self._heap[0]
            if group.shape in self._barred:
                heappop(self._heap)
                continue
            cursor = self._cursors.get(group, 0)
            while cursor < len(group.entries) and group.entries[cursor][2].key in self._skip:
                cursor += 1
            self._cursors[group] = cursor
            if cursor == len(group.entries):
                heappop(self._heap)
                continue
            fresh = queue_key(self._ledger, group, cursor, self._by_user)
            if fresh == key:
                return group, group.entries[cursor][2]
            heappop(self._heap)
            heappush(self._heap, (fresh, at, group))
        return None

    def drop(self) -> None:
        """Remove the next group: it cannot start in this cycle."""
        heappop(self._heap)

    def bar(self, shape: Shape) -> None:
        """Remove all groups of a shape: they cannot start in this cycle."""
        self._barred.add(shape)

    def close(self) -> None:
        """Remove all groups: none of this project can start in this cycle."""
        self._heap.clear()
