"""Who belongs to which gang: the members that could start, those that run, and whether that is enough."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpupool.domain.gang import Gang
from gpupool.domain.ids import WorkloadId
from gpupool.scheduling.values import PendingReplica, ReplicaKey, RunningReplica


@dataclass(frozen=True, slots=True)
class GangEntry:
    """What stands in the queue for a gang: all of it at the place of its oldest member, or one member that joins."""

    key: ReplicaKey  # of the first member (see ``in_order``), or of the one that joins
    queued_at: float
    arrival: int
    gang: Gang
    joins: bool


@dataclass(slots=True)
class Members:
    """The members of one gang.

    ``waiting`` could start now (with their numbers of arrival), ``running`` hold a lease
    and have not been told to end; ``listed`` are its entries in the queue.
    """

    gang: Gang
    waiting: dict[ReplicaKey, int] = field(default_factory=dict)
    running: set[ReplicaKey] = field(default_factory=set)
    listed: list[GangEntry] = field(default_factory=list)

    @property
    def short(self) -> bool:
        """Whether too few of it run, but some."""
        return 0 < len(self.running) < self.gang.least

    def entries(self, pending: Mapping[ReplicaKey, PendingReplica]) -> list[GangEntry]:
        """What should stand in the queue for it now."""
        if self.running:
            waiting = sorted(self.waiting)[: max(0, self.gang.most - len(self.running))]
            return [self._entry(key, key, pending, joins=True) for key in waiting]
        if not self.waiting or len(self.waiting) < self.gang.least:
            return []
        oldest = min(self.waiting, key=lambda key: (pending[key].queued_at, self.waiting[key]))
        first = self.in_order(pending)[0] if self.gang.mixed else min(self.waiting)
        return [self._entry(first, oldest, pending, joins=False)]

    def in_order(self, pending: Mapping[ReplicaKey, PendingReplica]) -> list[ReplicaKey]:
        """Those that wait, by index.

        Where they ask for different things, of those that have to start the ones that ask for most are first.
        """
        found = sorted(self.waiting)
        if self.gang.mixed:
            found[: self.gang.least] = sorted(found[: self.gang.least], key=lambda key: _by_size(pending[key]))
        return found

    def _entry(
        self, key: ReplicaKey, oldest: ReplicaKey, pending: Mapping[ReplicaKey, PendingReplica], *, joins: bool
    ) -> GangEntry:
        return GangEntry(key, pending[oldest].queued_at, self.waiting[oldest], self.gang, joins)


@dataclass(slots=True)
class Gangs:
    """All gangs of which some member is ready or runs.

    ``short``: since when too few members of a gang have been running, as seen by the cycles.
    """

    short: dict[WorkloadId, float] = field(default_factory=dict)
    _members: dict[WorkloadId, Members] = field(default_factory=dict)
    _changed: dict[WorkloadId, None] = field(default_factory=dict)  # in order

    def get(self, workload: WorkloadId) -> Members | None:
        """The members of a gang, if there is such a gang."""
        return self._members.get(workload)

    def waits(self, replica: PendingReplica, arrival: int) -> None:
        """A member could start."""
        if replica.gang is not None:
            members = self._of(replica.workload, replica.gang)
            members.waiting[replica.key] = arrival

    def waits_no_more(self, key: ReplicaKey) -> None:
        """A member has started, or was taken out of the queue."""
        members = self._members.get(key[0])
        if members is not None and members.waiting.pop(key, None) is not None:
            self._note(key[0], members)

    def runs(self, replica: RunningReplica) -> None:
        """A member holds a lease."""
        if replica.gang is None:
            return
        if not replica.releasing:
            self._of(replica.lease.workload, replica.gang).running.add(replica.key)

    def runs_no_more(self, key: ReplicaKey) -> None:
        """A member's lease is released, or about to be told anew."""
        members = self._members.get(key[0])
        if members is not None and key in members.running:
            members.running.discard(key)
            self._note(key[0], members)

    def change_all(self) -> None:
        """All entries in the queue have to be made anew."""
        for workload, members in self._members.items():
            members.listed = []
            self._changed[workload] = None

    def changed(self, now: float) -> Iterator[Members]:
        """Those whose entries may be out of date, once each."""
        changed, self._changed = self._changed, {}
        for workload in changed:
            members = self._members.get(workload)
            if members is None:
                self.short.pop(workload, None)
                continue
            if members.short:
                self.short.setdefault(workload, now)
            else:
                self.short.pop(workload, None)
            yield members

    def leader(self, key: ReplicaKey) -> ReplicaKey:
        """Whose place in the queue a ready member shares; itself if it has its own."""
        members = self._members.get(key[0])
        if members is None or key not in members.waiting or not members.listed or members.listed[0].joins:
            return key
        return members.listed[0].key

    def _note(self, workload: WorkloadId, members: Members) -> None:
        self._changed[workload] = None
        if not members.waiting and not members.running:
            del self._members[workload]
            if workload not in self.short:
                del self._changed[workload]

    def _of(self, workload: WorkloadId, gang: Gang) -> Members:
        self._changed[workload] = None
        members = self._members.get(workload)
        if members is None:
            members = self._members[workload] = Members(gang)
        members.gang = gang
        return members


def _by_size(replica: PendingReplica) -> tuple[int, int, float, int, int]:
    """What asks for most comes first."""
    request = replica.request
    part = request.permille if request.memory_mib is None else request.memory_mib
    return (-request.count, -part, -replica.cpus, -replica.memory_mib, replica.index)
