"""Live workloads in memory, and drafts of changes to them.

The store is authoritative. The mirror holds its rows of workloads that have not ended, and changes only by
``Mirror.apply`` of a draft that was committed.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from gpupool.domain.events import Event
from gpupool.domain.ids import Epoch, WorkloadId
from gpupool.domain.units import WHOLE_GPU
from gpupool.domain.work.lifecycle import Effect, Transition, lost_s, workload_state
from gpupool.domain.work.service import Service
from gpupool.domain.work.workload import GpuLease, Replica, ReplicaState, Workload, WorkloadKind, holder_index
from gpupool.domain.work.workspace import Workspace
from gpupool.services.ports.store import ChangeSet, LiveState

ReplicaId = tuple[WorkloadId, int]

MAX_ENDED_WORKLOADS = 256
MAX_ENDED_REPLICAS = 16


@dataclass(frozen=True, slots=True)
class EndedWorkload:
    """A workload that ended recently; clients that waited for it read it once more."""

    workload: Workload
    replicas: tuple[Replica, ...]


class Mirror:
    """Live workloads, their replicas, and unreleased leases, indexed for the services.

    ``execs`` has the placed programs that run on the GPUs of another workload's lease. ``sessions`` has the workload
    that uses the home of each workspace, ``reservations`` the lease that holds its reserved GPUs.
    ``service_replicas`` has the live workloads of each service.
    """

    def __init__(self) -> None:
        self.workloads: dict[WorkloadId, Workload] = {}
        self.replicas: dict[WorkloadId, dict[int, Replica]] = {}
        self.counts: dict[WorkloadId, Counter[ReplicaState]] = {}
        self.leases: dict[Epoch, GpuLease] = {}
        self.leases_by_workload: dict[WorkloadId, set[Epoch]] = defaultdict(set)
        self.placed: dict[str, set[ReplicaId]] = defaultdict(set)
        self.execs: dict[Epoch, set[ReplicaId]] = defaultdict(set)
        self.sessions: dict[str, WorkloadId] = {}
        self.reservations: dict[str, WorkloadId] = {}
        self.service_replicas: dict[str, set[WorkloadId]] = defaultdict(set)
        self.ended: OrderedDict[WorkloadId, EndedWorkload] = OrderedDict()
        self.last_epoch = Epoch(0)

    def load(self, state: LiveState) -> None:
        """Load the rows of the store. A workload that has ended but still has a program on its GPUs: only its lease."""
        for workload in state.workloads:
            if not workload.state.final:
                self._put_workload(workload)
        for row in state.replicas:
            if row.workload in self.workloads:
                self._put_replica(row)
        for lease in state.leases:
            self._put_lease(lease)
        self.last_epoch = state.last_epoch

    def replica(self, workload: WorkloadId, index: int) -> Replica | None:
        """Return one replica of a live workload."""
        return self.replicas.get(workload, {}).get(index)

    def lease_of(self, replica: Replica | None) -> GpuLease | None:
        """Return the unreleased lease that a replica uses; of a lazy one, that of its GPUs if it has them."""
        if replica is None or replica.lease is None:
            return None
        return self.leases.get(replica.gpu_lease or replica.lease)

    def holder(self, lease: GpuLease) -> Replica | None:
        """Return the replica of a live workload that a lease was granted to."""
        return self.replica(lease.workload, holder_index(lease.index))

    def has_lease(self, workload: WorkloadId, index: int) -> bool:
        """Return True if the replica has an unreleased lease, also one of an older attempt."""
        epochs = self.leases_by_workload.get(workload, ())
        return any(holder_index(self.leases[epoch].index) == index for epoch in epochs)

    def apply(self, changes: ChangeSet) -> None:
        """Apply a committed change; workloads that have ended are removed with their replicas."""
        for workload in changes.workloads:
            self._put_workload(workload)
            self.ended.pop(workload.id, None)
        for row in changes.replicas:
            self._put_replica(row)
        for lease in changes.leases:
            self._put_lease(lease)
        for workload in changes.workloads:
            if workload.state.final:
                self._drop(workload.id)

    def session_of(self, workspace: str) -> Workload | None:
        """Return the live workload that uses the home of a workspace."""
        return self.workloads.get(self.sessions.get(workspace, WorkloadId("")))

    def reservation_of(self, workspace: str) -> Workload | None:
        """Return the live lease that holds, or waits for, the reserved GPUs of a workspace."""
        return self.workloads.get(self.reservations.get(workspace, WorkloadId("")))

    def _put_workload(self, workload: Workload) -> None:
        self.workloads[workload.id] = workload
        if workload.program.workspace:
            self._by_workspace(workload)[workload.program.workspace] = workload.id
        if workload.program.serving is not None:
            self.service_replicas[workload.program.serving.service].add(workload.id)

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

    def _put_lease(self, lease: GpuLease) -> None:
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
        if workload in self.workloads and len(rows) <= MAX_ENDED_REPLICAS:
            self.ended[workload] = EndedWorkload(self.workloads[workload], tuple(rows[index] for index in sorted(rows)))
            if len(self.ended) > MAX_ENDED_WORKLOADS:
                self.ended.popitem(last=False)
        self.counts.pop(workload, None)
        gone = self.workloads.pop(workload, None)
        if gone is not None and self._by_workspace(gone).get(gone.program.workspace) == workload:
            del self._by_workspace(gone)[gone.program.workspace]
        if gone is not None and gone.program.serving is not None:
            self.service_replicas[gone.program.serving.service].discard(workload)

    def _by_workspace(self, workload: Workload) -> dict[str, WorkloadId]:
        return self.reservations if workload.kind is WorkloadKind.LEASE else self.sessions


class Draft:
    """The rows that one transition will write; reads see the draft first, then the mirror.

    ``changes`` returns each row once, in its last form, with its version increased by one. It derives workload states
    from their replicas and releases unused leases. Released leases come first, because a new one may have the same key.
    """

    def __init__(self, mirror: Mirror, now: float) -> None:
        self.now = now
        self.effects: list[Effect] = []
        self._mirror = mirror
        self._workloads: dict[WorkloadId, Workload] = {}
        self._rows: dict[WorkloadId, dict[int, Replica]] = defaultdict(dict)
        self._leases: dict[Epoch, GpuLease] = {}
        self._events: list[Event] = []
        self._workspaces: dict[str, Workspace] = {}
        self._services: dict[str, Service] = {}
        self._touched: set[WorkloadId] = set()
        self._last_epoch = mirror.last_epoch

    def next_epoch(self) -> Epoch:
        """Return an epoch for a new lease, above all earlier ones."""
        self._last_epoch = Epoch(self._last_epoch + 1)
        return self._last_epoch

    def lease(self, epoch: Epoch | None) -> GpuLease | None:
        """Return an unreleased lease as drafted."""
        if epoch is None:
            return None
        return self._leases.get(epoch) or self._mirror.leases.get(epoch)

    def workload(self, workload: WorkloadId) -> Workload | None:
        """Return a workload as drafted."""
        return self._workloads.get(workload) or self._mirror.workloads.get(workload)

    def reservation_of(self, workspace: str) -> Workload | None:
        """Return the lease for the reserved GPUs of a workspace, as drafted."""
        found = self._mirror.reservation_of(workspace)
        return None if found is None else self.workload(found.id)

    def replica(self, workload: WorkloadId, index: int) -> Replica | None:
        """Return a replica as drafted."""
        return self._rows.get(workload, {}).get(index) or self._mirror.replica(workload, index)

    def holder(self, lease: GpuLease) -> Replica | None:
        """Return the replica that a lease was granted to, as drafted."""
        return self.replica(lease.workload, holder_index(lease.index))

    def replicas(self, workload: WorkloadId) -> Iterable[Replica]:
        """Yield all replicas of a workload as drafted."""
        indices = set(self._mirror.replicas.get(workload, ())) | set(self._rows.get(workload, ()))
        for index in sorted(indices):
            row = self.replica(workload, index)
            if row is not None:
                yield row

    def execs_on(self, epoch: Epoch) -> list[Replica]:
        """Return the placed programs on this lease, as drafted."""
        keys = set(self._mirror.execs.get(epoch, ()))
        keys |= {(r.workload, r.index) for r in self._drafted() if r.lease == epoch and self._is_exec(r)}
        rows = [self.replica(*key) for key in keys]
        return [row for row in rows if row is not None and row.state.placed and row.lease == epoch]

    def put_workload(self, workload: Workload) -> None:
        """Insert or replace a workload."""
        self._workloads[workload.id] = workload
        self._touched.add(workload.id)

    def put_final(self, workload: Workload) -> None:
        """Replace a workload that has ended and left the mirror; the caller sets its version."""
        self._workloads[workload.id] = workload

    def put_replica(self, row: Replica) -> None:
        """Insert or replace a replica."""
        self._rows[row.workload][row.index] = row
        self._touched.add(row.workload)

    def put_lease(self, lease: GpuLease) -> None:
        """Insert or replace a lease."""
        self._leases[lease.epoch] = lease

    def put_workspace(self, workspace: Workspace) -> None:
        """Insert or replace a workspace."""
        self._workspaces[workspace.id] = workspace

    def put_service(self, service: Service) -> None:
        """Insert or replace a service."""
        self._services[service.id] = service

    def take(self, step: Transition) -> Replica:
        """Record a step of the state machine; its effects are sent after the commit."""
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
        """Close the draft and return its rows."""
        self._release_unused()
        for workload in list(self._touched):
            self._settle(workload)
        return ChangeSet(
            tuple(self._count_workload(w) for w in self._workloads.values()),
            tuple(self._count_replica(r) for r in self._drafted()),
            tuple(sorted(self._leases.values(), key=lambda lease: (lease.released_at is None, lease.epoch))),
            tuple(self._events),
            tuple(self._workspaces.values()),
            tuple(self._services.values()),
        )

    def _drafted(self) -> Iterable[Replica]:
        return (row for rows in self._rows.values() for row in rows.values())

    def _is_exec(self, row: Replica) -> bool:
        workload = self.workload(row.workload)
        return workload is not None and workload.kind is WorkloadKind.EXEC

    def _release_unused(self) -> None:
        touched = {epoch for row in self._drafted() for epoch in row.leases}
        touched |= {e for w in self._touched for e in self._mirror.leases_by_workload.get(w, ())}
        touched |= {epoch for old in self._before() for epoch in old.leases}
        for epoch in touched:
            lease = self.lease(epoch)
            if lease is None or lease.released_at is not None:
                continue
            if not self._in_use(lease):
                self._leases[epoch] = replace(lease, released_at=self.now, lost_s=self._note_loss(lease))

    def _note_loss(self, lease: GpuLease) -> float:
        """Add the work that was lost with an attempt to its replica's row; return its seconds."""
        workload, holder = self.workload(lease.workload), self.holder(lease)
        if workload is None or holder is None or holder.attempt != lease.attempt:
            return 0.0
        lost = lost_s(workload, holder)
        if lost:
            self.put_replica(replace(holder, lost_gpu_s=holder.lost_gpu_s + lost * lease.permille / WHOLE_GPU))
        return lost

    def _before(self) -> Iterable[Replica]:
        rows = (self._mirror.replica(row.workload, row.index) for row in self._drafted())
        return [row for row in rows if row is not None]

    def _in_use(self, lease: GpuLease) -> bool:
        holder = self.holder(lease)
        if holder is not None and lease.epoch in holder.leases and holder.state.placed:
            return True
        return bool(self.execs_on(lease.epoch))

    def _settle(self, workload_id: WorkloadId) -> None:
        """Derive the workload's state and times from its replicas."""
        workload = self.workload(workload_id)
        if workload is None:
            return
        counts = self._counts(workload_id)
        state = workload_state(workload, counts)
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
