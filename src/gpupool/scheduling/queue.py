"""What waits and what runs, kept so that a cycle looks at kinds of work and not at each piece of it."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Container, Iterator
from dataclasses import replace
from heapq import heapify, heappop, heappush
from math import inf

from gpupool.domain.gang import Gang
from gpupool.domain.gpu import Sharing
from gpupool.domain.ids import WorkloadId
from gpupool.domain.units import WHOLE_GPU
from gpupool.scheduling.bookings import Bookings
from gpupool.scheduling.holders import Holders
from gpupool.scheduling.ledger import Account, Ledger
from gpupool.scheduling.members import GangEntry, Gangs, Members
from gpupool.scheduling.order import Ordering
from gpupool.scheduling.shape import Shape, Shapes
from gpupool.scheduling.undo import UndoLog
from gpupool.scheduling.values import EvictionKind, PendingReplica, ReplicaKey, RunningReplica

Entry = tuple[float, int, PendingReplica]  # its place (see ``order``), number of arrival
# project, priority, user, preemptible, shape, gang, workload of a gang that runs (of one that members join), how many
# have to start at once
GroupKey = tuple[int, int, int, bool, Shape, Gang | None, WorkloadId | None, int]
# -priority, not a joiner, held by the user in the project, place, number of arrival
LaneKey = tuple[int, bool, int, float, int]


class Group:
    """Pending replicas that are alike to the scheduler, oldest first.

    With ``gang``, each entry stands for a gang: its first member at the place of its oldest. With
    ``joins`` as well, the entries are members that join the one gang ``joins``, each for itself. ``size`` is how many
    of the shape have to start at once; of a gang whose members ask for different things, those that ask for most.
    """

    __slots__ = ("account", "entries", "gang", "joins", "key", "priority", "shape", "size")

    def __init__(self, key: GroupKey, account: Account) -> None:
        self.key, self.account = key, account
        self.priority, self.shape, self.gang, self.joins, self.size = key[1], key[4], key[5], key[6], key[7]
        self.entries: list[Entry] = []

    @property
    def starvable(self) -> bool:
        """Whether smaller work could keep it out for ever."""
        return self.gang is not None or self.shape.starvable

    def count_before(self, queued_at: float, arrival: int) -> int:
        """How many are older than an entry."""
        return bisect_left(self.entries, (queued_at, arrival), key=lambda entry: entry[:2])


class Demand:
    """Everybody who waits or runs, with the ledger of what they hold.

    Ready replicas are in ``lanes``: project -> shape -> groups. Those that wait for time alone sleep until ``wake``;
    those that are ``held`` are only known. Replicas with a hold are ready too.
    """

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.ordering = Ordering()
        self.shapes = Shapes()
        self.gangs = Gangs()
        self.pending: dict[ReplicaKey, PendingReplica] = {}
        self.running: dict[ReplicaKey, RunningReplica] = {}
        self.accounts: dict[ReplicaKey, Account] = {}  # of those that run
        self.releasing: set[ReplicaKey] = set()
        self.holders = Holders()
        self.evictable: dict[int, Counter[int]] = {}  # project -> priority -> preemptible replicas that run
        self.lanes: dict[int, dict[Shape, dict[GroupKey, Group]]] = {}
        self.shape_users: dict[Shape, int] = {}
        self.timed: Counter[Shape] = Counter()  # ready replicas with a time limit
        self.restartable: Counter[Shape] = Counter()  # ready replicas that may be evicted again
        self.importance: dict[int, Counter[int]] = {}  # project -> priority -> groups
        self.priorities_waiting: Counter[int] = Counter()  # the same over all projects: priority -> groups
        self.priorities_evictable: Counter[int] = Counter()  # and priority -> preemptible replicas that run
        self.starved: dict[Shape, set[ReplicaKey]] = {}  # see ``mature``
        self.changes = 0  # how often somebody came, started or went
        self.room_wanted = False  # see ``cycle``: the last cycle granted something and left it at that
        self.moves_sought_at = self.moves_since = -inf  # see ``consolidate``: the last look, the first of this round
        self.moves_for, self.moves_pause_s = (-1, -1), 0.0  # how things stood then, and how long till the next round
        self.unmovable: set[Shape] = set()  # for which nothing was found in this round
        self.searched: set[tuple[EvictionKind, int, Shape]] = set()  # in vain, by a cycle that was cut short
        self._ripening: list[tuple[float, int, ReplicaKey]] = []
        self._heads: dict[int, dict[Shape, tuple[LaneKey, Group]]] = {}
        self._sleeping: list[tuple[float, int, ReplicaKey]] = []
        self._asked: dict[ReplicaKey, int] = {}  # thousandths that the ready ones ask for, as the ledger counts them
        self._entries: dict[ReplicaKey, tuple[Group, float, int]] = {}
        self._arrivals = 0
        self._users_apart = False
        self.bookings = Bookings()
        self._log = UndoLog()

    # --- who waits

    def add(self, replica: PendingReplica, now: float) -> None:
        """A replica waits; one that waited already under the same key is replaced."""
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
        """It waits no more; returns what was known of it."""
        replica = self.pending.get(key)
        if replica is not None:
            self._unlist(replica)
            del self.pending[key]
            self.ledger.wait(self.account_of(replica), -self._asked.pop(key, 0))
            self.gangs.waits_no_more(key)
        return replica

    def wake(self, now: float) -> None:
        """Let those whose time has come join the queue, and gangs that are complete."""
        if self.ledger.refresh_recent(now):
            self._heads.clear()
        while self._sleeping and self._sleeping[0][0] <= now:
            _, arrival, key = heappop(self._sleeping)
            replica = self.pending.get(key)
            if replica is not None and key not in self._entries and replica.held is None and replica.not_before <= now:
                self._enqueue(replica, arrival)
        for members in self.gangs.changed(now):
            self._list_gang(members)

    def next_wake(self) -> float | None:
        """When the next one would join; None when nobody sleeps."""
        while self._sleeping and (self._sleeping[0][2] in self._entries or self._sleeping[0][2] not in self.pending):
            heappop(self._sleeping)
        return self._sleeping[0][0] if self._sleeping else None

    def forget_times(self, keys: Container[ReplicaKey]) -> None:
        """Nobody of these waits for a time any more: entries that nobody else would drop in time."""
        for heap in (self._ripening, self._sleeping):
            kept = [entry for entry in heap if entry[2] not in keys]
            if len(kept) < len(heap):
                heapify(kept)
                heap[:] = kept

    def mature(self, waiting_since: float) -> float | None:
        """Note in ``starved`` whose shape is starvable and who waits since then; returns who comes next since when."""
        while self._ripening and (self._ripening[0][0] <= waiting_since or not self._waits(self._ripening[0])):
            entry = heappop(self._ripening)
            if self._waits(entry):
                self.starved.setdefault(self._entries[entry[2]][0].shape, set()).add(entry[2])
        return self._ripening[0][0] if self._ripening else None

    def _waits(self, entry: tuple[float, int, ReplicaKey]) -> bool:
        placed = self._entries.get(entry[2])
        return placed is not None and placed[2] == entry[1]

    def group_of(self, key: ReplicaKey) -> Group | None:
        """The group in which a ready replica waits."""
        placed = self._entries.get(self.gangs.leader(key))
        return None if placed is None else placed[0]

    def arrival_of(self, key: ReplicaKey) -> tuple[float, int]:
        """When a ready replica queued, and its number of arrival; of a gang that waits, those of its oldest."""
        return self._entries[self.gangs.leader(key)][1:]

    def together_with(self, replica: PendingReplica) -> list[PendingReplica]:
        """Who would start together with the replica of a queue's entry, itself first: a gang, or it alone."""
        members = self.gangs.get(replica.workload) if replica.gang is not None else None
        if members is None or members.running:
            return [replica]
        return [self.pending[key] for key in members.in_order(self.pending)[: members.gang.most]]

    def groups(self, project: int | None = None) -> Iterator[Group]:
        """All groups, or those of one project."""
        lanes = self.lanes.values() if project is None else [self.lanes.get(project, {})]
        for shapes in lanes:
            for groups in shapes.values():
                yield from groups.values()

    def heads(self, project: int) -> dict[Shape, tuple[LaneKey, Group]]:
        """The first group of each shape of a project with its key, as things stand; kept until something changes."""
        if project not in self._heads:
            ledger, by_user = self.ledger, self.ordering.by_user
            self._heads[project] = {
                shape: min(((lane_key(ledger, g, 0, by_user), g) for g in groups.values()), key=lambda head: head[0])
                for shape, groups in self.lanes.get(project, {}).items()
            }
        return self._heads[project]

    def shape_of(self, replica: PendingReplica) -> Shape:
        """The shape of a replica, whether it is ready or not; of a member of a mixed gang its own."""
        mixed = replica.gang is not None and replica.gang.mixed
        group = None if mixed else self.group_of(replica.key)
        return group.shape if group else self._make_shape(replica)

    def _make_shape(self, replica: PendingReplica) -> Shape:
        wanted = replica.request
        mode = wanted.sharing
        served = not wanted.whole and (mode is Sharing.MPS or (mode is None and self._users_apart))
        user = replica.user if served else ""
        guest = self.bookings.guest(replica)
        cpus, memory_mib = replica.cpus, replica.memory_mib
        return self.shapes.get(wanted, cpus, memory_mib, user, replica.node_pools, guest=guest)

    def tell_users_apart(self, *, apart: bool) -> None:
        """Whether some GPU serves one user at a time, so that it matters who asks for a part without saying how."""
        if apart is not self._users_apart:
            self._users_apart = apart
            self.list_anew()

    def list_anew(self) -> None:
        """What makes up a shape has changed: sort all that is ready into the queue again."""
        for key in list(self._entries):
            replica, arrival = self.pending[key], self._entries[key][2]
            self._unlist(replica)
            if replica.gang is None:
                self._enqueue(replica, arrival)
        self.gangs.change_all()

    def account_of(self, replica: PendingReplica) -> Account:
        """Where a pending replica would be counted."""
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
        self._heads.pop(account.project, None)
        gang = None if gang_entry is None else gang_entry.gang
        joins = replica.workload if gang_entry is not None and gang_entry.joins else None
        shape, size = self._starts(replica, gang if joins is None else None)
        key = (account.project, replica.priority, account.user, replica.preemptible, shape, gang, joins, size)
        groups = self.lanes.setdefault(account.project, {}).setdefault(shape, {})
        if key not in groups:
            groups[key] = Group(key, account)
            self.shape_users[shape] = self.shape_users.get(shape, 0) + 1
            _count(self.importance.setdefault(account.project, Counter()), replica.priority, 1)
            _count(self.priorities_waiting, replica.priority, 1)
        place = queued_at + self._late_s(replica, groups[key])
        insort(groups[key].entries, (place, arrival, replica), key=lambda entry: entry[:2])
        self._entries[replica.key] = (groups[key], place, arrival)
        self.timed[shape] += replica.max_time_s is not None
        self.restartable[shape] += replica.preemptible
        if groups[key].starvable:
            heappush(self._ripening, (max(queued_at, replica.not_before), arrival, replica.key))

    def _starts(self, replica: PendingReplica, gang: Gang | None) -> tuple[Shape, int]:
        """What has to be found for a replica or its gang to start, and how many times; of a mixed gang the largest."""
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
            return
        group, queued_at, arrival = placed
        self._heads.pop(group.account.project, None)
        self.timed[group.shape] -= replica.max_time_s is not None
        self.restartable[group.shape] -= replica.preemptible
        del group.entries[group.count_before(queued_at, arrival)]
        if replica.key in self.starved.get(group.shape, ()):
            self.starved[group.shape].remove(replica.key)
            if not self.starved[group.shape]:
                del self.starved[group.shape]
        if not group.entries:
            self._drop(group)

    def _drop(self, group: Group) -> None:
        shapes = self.lanes[group.account.project]
        del shapes[group.shape][group.key]
        if not shapes[group.shape]:
            del shapes[group.shape]
        if not shapes:
            del self.lanes[group.account.project]
        importance = self.importance[group.account.project]
        _count(importance, group.priority, -1)
        _count(self.priorities_waiting, group.priority, -1)
        self.shape_users[group.shape] -= 1
        if not self.shape_users[group.shape]:
            del self.shape_users[group.shape]
            del self.timed[group.shape], self.restartable[group.shape]
            self.unmovable.discard(group.shape)

    # --- who runs

    def start(self, replica: RunningReplica) -> None:
        """A replica holds a lease; told again, the newer word counts. It no longer waits."""
        self.changes += 1
        self.remove(replica.key)
        before = self._drop_running(replica.key)
        if before is not None:
            self.ledger.started(before[1], -before[0].lease.permille, before[0].lease.granted_at)
        lease = replica.lease
        models = () if replica.request is None else replica.request.models
        account = self.ledger.account(lease.project, lease.user, preemptible=replica.preemptible, models=models)
        self.running[replica.key], self.accounts[replica.key] = replica, account
        self.holders.start(replica, account.project, account.user)
        self.ledger.add(self._log, account, lease.permille)
        self.ledger.started(account, lease.permille, lease.granted_at)
        self._heads.pop(account.project, None)
        self._log.commit()
        if replica.releasing:
            self.releasing.add(replica.key)
            return
        self.gangs.runs(replica)
        if replica.preemptible:
            _count(self.evictable.setdefault(account.project, Counter()), replica.priority, 1)
            _count(self.priorities_evictable, replica.priority, 1)

    def leaves(self, key: ReplicaKey) -> None:
        """A replica that runs has been told to end; the same as telling ``start`` so, in less time."""
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
        """A replica's lease is released, ``at`` or now; unknown ones are ignored."""
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
        self._heads.pop(account.project, None)
        self._log.commit()
        self.releasing.discard(key)
        self.holders.finish(key)
        if replica.preemptible and not replica.releasing:
            _count(self.evictable[account.project], replica.priority, -1)
            _count(self.priorities_evictable, replica.priority, -1)
        return replica, account


def _count(counts: Counter[int], kind: int, more: int) -> None:
    """Count, and forget what there is none of."""
    counts[kind] += more
    if not counts[kind]:
        del counts[kind]


def lane_key(ledger: Ledger, group: Group, cursor: int, by_user: bool) -> LaneKey:
    """Where a group stands in its lane, by its entry at ``cursor``."""
    place, arrival, _ = group.entries[cursor]
    burden = ledger.burden(group.account) if by_user else 0
    return (-group.priority, group.joins is None, burden, place, arrival)
