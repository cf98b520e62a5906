"""The members of each gang: those ready to start, those that run, and whether these are enough."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpupool.domain.ids import WorkloadId
from gpupool.domain.work.gang import Gang
from gpupool.scheduling.values import PendingReplica, ReplicaKey, RunningReplica


@dataclass(frozen=True, slots=True)
class GangEntry:
    """The queue entry of a gang: the whole gang at the place of its oldest member, or one member that joins."""

    key: ReplicaKey  # of the first member (see ``in_order``), or of the one that joins
    queued_at: float
    arrival: int
    gang: Gang
    joins: bool


@dataclass(slots=True)
class Members:
    """The members of one gang.

    ``waiting`` are ready to start (with their arrival numbers), ``running`` have a lease and were not asked to end;
    ``listed`` are the queue entries of the gang.
    """

    gang: Gang
    waiting: dict[ReplicaKey, int] = field(default_factory=dict)
    running: set[ReplicaKey] = field(default_factory=set)
    listed: list[GangEntry] = field(default_factory=list)

    @property
    def short(self) -> bool:
        """Return True if some members run, but fewer than the minimum."""
        return 0 < len(self.running) < self.gang.least

    def entries(self, pending: Mapping[ReplicaKey, PendingReplica]) -> list[GangEntry]:
        """Return the entries that the queue should have for the gang now."""
        if self.running:
            waiting = sorted(self.waiting)[: max(0, self.gang.most - len(self.running))]
            return [self._entry(key, key, pending, joins=True) for key in waiting]
        if not self.waiting or len(self.waiting) < self.gang.least:
            return []
        oldest = min(self.waiting, key=lambda key: (pending[key].queued_at, self.waiting[key]))
        first = self.in_order(pending)[0] if self.gang.mixed else min(self.waiting)
        return [self._entry(first, oldest, pending, joins=False)]

    def in_order(self, pending: Mapping[ReplicaKey, PendingReplica]) -> list[ReplicaKey]:
        """Return the waiting members by index.

        In a gang of different shapes, the members that must start and request most come first.
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
    """All gangs with a ready or running member.

    ``short``: the time since when too few members of a gang have been running, as seen by the cycles.
    """

    short: dict[WorkloadId, float] = field(default_factory=dict)
    _members: dict[WorkloadId, Members] = field(default_factory=dict)
    _changed: dict[WorkloadId, None] = field(default_factory=dict)  # a dict keeps the order

    def get(self, workload: WorkloadId) -> Members | None:
        """Return the members of a gang, or None."""
        return self._members.get(workload)

    def waits(self, replica: PendingReplica, arrival: int) -> None:
        """Add a member that is ready to start."""
        if replica.gang is not None:
            members = self._of(replica.workload, replica.gang)
            members.waiting[replica.key] = arrival

    def waits_no_more(self, key: ReplicaKey) -> None:
        """Remove a waiting member: it started, or left the queue."""
        members = self._members.get(key[0])
        if members is not None and members.waiting.pop(key, None) is not None:
            self._note(key[0], members)

    def runs(self, replica: RunningReplica) -> None:
        """Add a member that has a lease."""
        if replica.gang is None:
            return
        if not replica.releasing:
            self._of(replica.lease.workload, replica.gang).running.add(replica.key)

    def runs_no_more(self, key: ReplicaKey) -> None:
        """Remove a running member: its lease was released or changes."""
        members = self._members.get(key[0])
        if members is not None and key in members.running:
            members.running.discard(key)
            self._note(key[0], members)

    def change_all(self) -> None:
        """Mark the queue entries of all gangs as outdated."""
        for workload, members in self._members.items():
            members.listed = []
            self._changed[workload] = None

    def changed(self, now: float) -> Iterator[Members]:
        """Return the gangs whose queue entries may be outdated, once each."""
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
        """Return the replica whose queue entry contains a ready member; the member itself if it has its own."""
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
    """Return a sort key: the largest request first."""
    request = replica.request
    part = request.permille if request.memory_mib is None else request.memory_mib
    return (-request.count, -part, -replica.cpus, -replica.memory_mib, replica.index)
