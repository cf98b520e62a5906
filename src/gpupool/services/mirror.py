"""The part of the truth that is alive, kept in memory, and drafts of what changes in it.

The store is the truth; the mirror is what the store holds of workloads that have not ended. It changes only by
``Mirror.apply`` of a draft that has been committed.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from gpupool.domain.events import Event
from gpupool.domain.ids import Epoch, WorkloadId
from gpupool.domain.lifecycle import Effect, Step, summarise
from gpupool.domain.workload import Lease, Replica, ReplicaState, Workload, WorkloadKind
from gpupool.services.ports import ChangeSet, LiveState

ReplicaId = tuple[WorkloadId, int]

MOST_ENDED_REMEMBERED = 256
MOST_REPLICAS_REMEMBERED = 16


@dataclass(frozen=True, slots=True)
class Ended:
    """A workload that ended a moment ago: whoever waited for it asks for it once more."""

    workload: Workload
    replicas: tuple[Replica, ...]


class Mirror:
    """Live workloads, their replicas and the leases that are not released, by the keys the services look them up with.

    ``execs`` gives the placed programs that run on the GPUs of another workload's lease.
    """

    def __init__(self) -> None:
        self.workloads: dict[WorkloadId, Workload] = {}
        self.replicas: dict[WorkloadId, dict[int, Replica]] = {}
        self.counts: dict[WorkloadId, Counter[ReplicaState]] = {}
        self.leases: dict[Epoch, Lease] = {}
        self.leases_by_workload: dict[WorkloadId, set[Epoch]] = defaultdict(set)
        self.placed: dict[str, set[ReplicaId]] = defaultdict(set)
        self.execs: dict[Epoch, set[ReplicaId]] = defaultdict(set)
        self.ended: OrderedDict[WorkloadId, Ended] = OrderedDict()
        self.last_epoch = Epoch(0)

    def load(self, state: LiveState) -> None:
        """Take over what the store holds; of what has ended and left a program on its GPUs, the lease alone."""
        for workload in state.workloads:
            if not workload.state.final:
                self.workloads[workload.id] = workload
        for row in state.replicas:
            if row.workload in self.workloads:
                self._put_replica(row)
        for lease in state.leases:
            self._put_lease(lease)
        self.last_epoch = state.last_epoch

    def replica(self, workload: WorkloadId, index: int) -> Replica | None:
        """One replica of a live workload."""
        return self.replicas.get(workload, {}).get(index)

    def has_lease(self, workload: WorkloadId, index: int) -> bool:
        """Whether a lease of this replica is not released yet, an older attempt's included."""
        return any(self.leases[e].index == index for e in self.leases_by_workload.get(workload, ()))

    def apply(self, changes: ChangeSet) -> None:
        """Take over what was just committed; workloads that have ended leave the mirror with their replicas."""
        for workload in changes.workloads:
            self.workloads[workload.id] = workload
            self.ended.pop(workload.id, None)
        for row in changes.replicas:
            self._put_replica(row)
        for lease in changes.leases:
            self._put_lease(lease)
        for workload in changes.workloads:
            if workload.state.final:
                self._drop(workload.id)

    def _put_replica(self, row: Replica) -> None:
        key = (row.workload, row.index)
        rows = self.replicas.setdefault(row.workload, {})
        counts = self.counts.setdefault(row.workload, Counter())
        old = rows.get(row.index)
        if old is not None:
            counts[old.state] -= 1
            self._unplace(old, key)
        rows[row.index] = row
        counts[row.state] += 1
        if row.state.placed:
            self._place(row, key)

    def _place(self, row: Replica, key: ReplicaId) -> None:
        if row.node is not None:
            self.placed[row.node].add(key)
        workload = self.workloads.get(row.workload)
        if workload is not None and workload.kind is WorkloadKind.EXEC and row.lease is not None:
            self.execs[row.lease].add(key)

    def _unplace(self, row: Replica, key: ReplicaId) -> None:
        if row.node is not None:
            self.placed[row.node].discard(key)
        if row.lease is not None and row.lease in self.execs:
            self.execs[row.lease].discard(key)
            if not self.execs[row.lease]:
                del self.execs[row.lease]

    def _put_lease(self, lease: Lease) -> None:
        self.last_epoch = max(self.last_epoch, lease.epoch)
        if lease.released_at is None:
            self.leases[lease.epoch] = lease
            self.leases_by_workload[lease.workload].add(lease.epoch)
            return
        self.leases.pop(lease.epoch, None)
        held = self.leases_by_workload.get(lease.workload)
        if held is not None:
            held.discard(lease.epoch)
            if not held:
                del self.leases_by_workload[lease.workload]

    def _drop(self, workload: WorkloadId) -> None:
        rows = self.replicas.pop(workload, {})
        for index, row in rows.items():
            self._unplace(row, (workload, index))
        if workload in self.workloads and len(rows) <= MOST_REPLICAS_REMEMBERED:
            self.ended[workload] = Ended(self.workloads[workload], tuple(rows[index] for index in sorted(rows)))
            if len(self.ended) > MOST_ENDED_REMEMBERED:
                self.ended.popitem(last=False)
        self.counts.pop(workload, None)
        self.workloads.pop(workload, None)


class Draft:
    """What one transition is about to write: reads see the draft first, then the mirror.

    ``changes`` gives each row once, in its last form, with its version counted up by one; workload states are derived
    from their replicas, and leases that nobody uses any more are released.
    """

    def __init__(self, mirror: Mirror, now: float) -> None:
        self.now = now
        self.effects: list[Effect] = []
        self._mirror = mirror
        self._workloads: dict[WorkloadId, Workload] = {}
        self._rows: dict[WorkloadId, dict[int, Replica]] = defaultdict(dict)
        self._leases: dict[Epoch, Lease] = {}
        self._events: list[Event] = []
        self._touched: set[WorkloadId] = set()

    def workload(self, workload: WorkloadId) -> Workload | None:
        """As it will be."""
        return self._workloads.get(workload) or self._mirror.workloads.get(workload)

    def replica(self, workload: WorkloadId, index: int) -> Replica | None:
        """As it will be."""
        return self._rows.get(workload, {}).get(index) or self._mirror.replica(workload, index)

    def replicas(self, workload: WorkloadId) -> Iterable[Replica]:
        """All replicas of a workload as they will be."""
        indices = set(self._mirror.replicas.get(workload, ())) | set(self._rows.get(workload, ()))
        for index in sorted(indices):
            row = self.replica(workload, index)
            if row is not None:
                yield row

    def execs_on(self, epoch: Epoch) -> list[Replica]:
        """Placed programs on this lease, as they will be."""
        keys = set(self._mirror.execs.get(epoch, ()))
        keys |= {(r.workload, r.index) for r in self._drafted() if r.lease == epoch and self._is_exec(r)}
        rows = [self.replica(*key) for key in keys]
        return [row for row in rows if row is not None and row.state.placed and row.lease == epoch]

    def put_workload(self, workload: Workload) -> None:
        """Insert or change a workload."""
        self._workloads[workload.id] = workload
        self._touched.add(workload.id)

    def put_final(self, workload: Workload) -> None:
        """Change a workload that has ended (and is not in the mirror any more); its version is the caller's."""
        self._workloads[workload.id] = workload

    def put_replica(self, row: Replica) -> None:
        """Insert or change a replica."""
        self._rows[row.workload][row.index] = row
        self._touched.add(row.workload)

    def put_lease(self, lease: Lease) -> None:
        """Insert or change a lease."""
        self._leases[lease.epoch] = lease

    def take(self, step: Step) -> Replica:
        """Record a step of the state machine; its effects are carried out after the commit."""
        before = self.replica(step.replica.workload, step.replica.index)
        if before != step.replica:
            self.put_replica(step.replica)
        self._events.extend(step.events)
        self.effects.extend(step.effects)
        return step.replica

    def note(self, event: Event) -> None:
        """Record an event."""
        self._events.append(event)

    def changes(self) -> ChangeSet:
        """Close the draft."""
        self._release_unused()
        for workload in list(self._touched):
            self._settle(workload)
        return ChangeSet(
            tuple(self._count_workload(w) for w in self._workloads.values()),
            tuple(self._count_replica(r) for r in self._drafted()),
            tuple(self._leases.values()),
            tuple(self._events),
        )

    def _drafted(self) -> Iterable[Replica]:
        return (row for rows in self._rows.values() for row in rows.values())

    def _is_exec(self, row: Replica) -> bool:
        workload = self.workload(row.workload)
        return workload is not None and workload.kind is WorkloadKind.EXEC

    def _release_unused(self) -> None:
        touched = {row.lease for row in self._drafted() if row.lease is not None}
        touched |= {e for w in self._touched for e in self._mirror.leases_by_workload.get(w, ())}
        touched |= {old.lease for old in self._before() if old.lease is not None}
        for epoch in touched:
            lease = self._leases.get(epoch) or self._mirror.leases.get(epoch)
            if lease is None or lease.released_at is not None:
                continue
            if not self._in_use(lease):
                self._leases[epoch] = replace(lease, released_at=self.now)

    def _before(self) -> Iterable[Replica]:
        rows = (self._mirror.replica(row.workload, row.index) for row in self._drafted())
        return [row for row in rows if row is not None]

    def _in_use(self, lease: Lease) -> bool:
        holder = self.replica(lease.workload, lease.index)
        if holder is not None and holder.lease == lease.epoch and holder.state.placed:
            return True
        return bool(self.execs_on(lease.epoch))

    def _settle(self, workload_id: WorkloadId) -> None:
        """Derive the workload's state and times from its replicas."""
        workload = self.workload(workload_id)
        if workload is None:
            return
        counts = self._counts(workload_id)
        state = summarise(workload, counts)
        changed = replace(
            workload,
            state=state,
            started_at=workload.started_at or self._first_start(workload_id),
            finished_at=self.now if state.final else None,
        )
        if changed != workload:
            self._workloads[workload_id] = changed

    def _counts(self, workload_id: WorkloadId) -> dict[ReplicaState, int]:
        counts = Counter(self._mirror.counts.get(workload_id, Counter()))
        for index, row in self._rows.get(workload_id, {}).items():
            old = self._mirror.replica(workload_id, index)
            if old is not None:
                counts[old.state] -= 1
            counts[row.state] += 1
        return {state: n for state, n in counts.items() if n}

    def _first_start(self, workload_id: WorkloadId) -> float | None:
        times = [r.started_at for r in self._rows.get(workload_id, {}).values() if r.started_at is not None]
        return min(times, default=None)

    def _count_workload(self, workload: Workload) -> Workload:
        old = self._mirror.workloads.get(workload.id)
        return workload if old is None else replace(workload, version=old.version + 1)

    def _count_replica(self, row: Replica) -> Replica:
        old = self._mirror.replica(row.workload, row.index)
        return row if old is None else replace(row, version=old.version + 1)
