"""Input of the scheduler: follows the mirror change by change, and can be rebuilt at any time.

Not every pending replica is offered to the scheduler. Not offered are replicas of suspended workloads, with unmet
dependencies, outside their time windows, above their workload's parallelism, with a folder on another head, or whose
last attempt still holds a lease.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, tzinfo

from gpupool.domain.events import Reason
from gpupool.domain.ids import WorkloadId
from gpupool.domain.nodes.gpu import GpuHealth, Node, NodeState
from gpupool.domain.nodes.reservation import Reservation
from gpupool.domain.people.access import Department, Project, ProjectRules, User
from gpupool.domain.work.lifecycle import EVICTED, keeps_place
from gpupool.domain.work.workload import LAZY_GPUS, GpuLease, Replica, ReplicaState, Workload, WorkloadState
from gpupool.scheduling.policy import Policy
from gpupool.scheduling.scheduler import (
    CheckpointSaved,
    DepartmentChanged,
    LeaseReleased,
    LeaseTaken,
    NodeChanged,
    PastUse,
    PendingAdded,
    PendingRemoved,
    ProjectChanged,
    ReservationChanged,
    ReservationRemoved,
    Scheduler,
    UserChanged,
)
from gpupool.scheduling.state.decayed_usage import Decay, Usage
from gpupool.scheduling.state.user_order import PastRuns
from gpupool.scheduling.values import BlockReason, Decisions, PendingReplica, ReplicaKey, RunningReplica
from gpupool.services.control.scheduler_requests import pending, pending_gpus, pending_place, running
from gpupool.services.lifecycle.wait_conditions import Dependencies, GangRounds, WindowOpenings, WindowRules
from gpupool.services.ports.store import ChangeSet, PastLease
from gpupool.services.state.gpu_hours import GpuHourBudgets
from gpupool.services.state.mirror import Mirror
from gpupool.services.state.node_registry import NodeRegistry

HALF_LIVES = 10.0  # older use counts for less than a thousandth
MAX_REQUEUED = 1_000  # evicted replicas that wait for an event with their estimate
MAX_PAST_RUNS = 5_000  # past runs from which run times are predicted


class DecayedUsage:
    """The decayed usage of every user in every project, from released leases."""

    def __init__(self, decay: Decay, leases: Iterable[PastLease] = ()) -> None:
        self.decay = decay
        self._usage = Usage(decay)
        self._numbers: dict[tuple[str, str], int] = {}
        for lease in leases:
            self._add(lease.project, lease.user, lease.permille, lease.granted_at, lease.released_at)

    def add(self, lease: GpuLease) -> None:
        """Add a released lease; ignore others."""
        if lease.released_at is not None:
            self._add(lease.project, lease.user, lease.permille, lease.granted_at, lease.released_at)

    def _add(self, project: str, user: str, permille: int, start: float, end: float) -> None:
        number = self._numbers.setdefault((project, user), len(self._numbers))
        self._usage.remember(number, self.decay.lease_use(permille, start, max(start, end), end), end)

    def events(self, now: float) -> Iterator[PastUse]:
        """Yield the past use for a scheduler that starts at ``now``."""
        for (project, user), number in self._numbers.items():
            permille_s = self._usage.average_of(number, 0, now) * self.decay.weight_s
            yield PastUse(project, user, permille_s, now)


class SchedulerFeed:
    """Waiting and running replicas as the scheduler sees them.

    ``folder_missing`` returns True for a workload whose folder is still on another head.
    """

    def __init__(
        self,
        mirror: Mirror,
        nodes: NodeRegistry,
        now: Callable[[], float],
        folder_missing: Callable[[Workload], bool],
        budgets: GpuHourBudgets,
        zone: tzinfo = UTC,
    ) -> None:
        self.folder_missing = folder_missing
        self.budgets = budgets
        self._mirror = mirror
        self._nodes = nodes
        self._now = now
        self._projects: dict[str, Project] = {}
        self._users: dict[str, User] = {}
        self._departments: dict[str, Department] = {}
        self._stale = True
        self._runs = PastRuns()
        self._served: dict[WorkloadId, dict[int, float]] = {}  # earlier run time in seconds, of live workloads
        self._scheduler = Scheduler(past=self._runs)
        self._past = DecayedUsage(self._scheduler.settings.decay)
        self._offered: dict[WorkloadId, set[int]] = {}
        self._rounds = GangRounds()
        self._outside: dict[WorkloadId, list[int]] = {}  # heaps of pending indices that are not offered
        self.dependencies = Dependencies(mirror)
        self._openings = WindowOpenings(zone)
        self.windows = WindowRules(self._openings, self._rules, now)
        self._requeued: list[Replica] = []
        self.reservations: dict[str, Reservation] = {}
        self._wake_at: float | None = None  # time of the next cycle that the scheduler asked for
        self._impatient: set[WorkloadId] = set()
        self.policy = Policy()

    @property
    def scheduler(self) -> Scheduler:
        """Return the scheduler, up to date, for explanations."""
        self._refresh()
        return self._scheduler

    def set_policy(self, policy: Policy) -> None:
        """Use another policy from now on."""
        self._nodes.lost_after_s = policy.node_lost_after_s
        self.policy = policy
        self._scheduler = Scheduler(policy.settings(self._scheduler.settings), self._runs)
        self._stale = True

    def invalidate(self) -> None:
        """Rebuild the scheduler before its next use, for example after a failed write."""
        self._stale = True

    def has_pending(self) -> bool:
        """Return True if a replica waits or a time has come that can change decisions."""
        now = self._now()
        due = (self._wake_at is not None and self._wake_at <= now) or self._rounds.due(now) or self._openings.due(now)
        return due or self._stale or any(self._offered.values())

    @property
    def queue_length(self) -> int:
        """Return the number of replicas in the queue that could start; -1 until the scheduler is rebuilt."""
        return -1 if self._stale else sum(map(len, self._offered.values()))

    def impatient(self) -> tuple[WorkloadId, ...]:
        """Return the workloads with a queue time limit of 0 that the last cycle did not start."""
        waiting = tuple(self._impatient)
        self._impatient.clear()
        return waiting

    def load(self, projects: Iterable[Project], users: Iterable[User], departments: Iterable[Department] = ()) -> None:
        """Load projects, users and departments; the rest comes from the mirror."""
        self._projects = {project.name: project for project in projects}
        self._users = {user.name: user for user in users}
        self._departments = {department.name: department for department in departments}
        self.dependencies.learn_all(self._mirror.workloads.values())

    @property
    def usage_since(self) -> float:
        """Return the time before which released leases no longer count as past use."""
        return self._now() - HALF_LIVES * self._scheduler.settings.decay.half_life_s

    def remember(self, leases: Iterable[PastLease], runs: Iterable[PastLease] = ()) -> None:
        """Replace past use and past run times by those of these released leases and runs."""
        self._past = DecayedUsage(self._scheduler.settings.decay, leases)
        self._runs = PastRuns()
        for run in runs:
            self._runs.add(run.project, run.user, run.permille, run.released_at - run.granted_at)
        self._stale = True

    def project_removed(self, name: str) -> None:
        """Handle the deletion of a project."""
        self._projects.pop(name, None)
        self.invalidate()

    def may_start_on(self, workload: Workload, row: Replica, lease: GpuLease) -> bool:
        """Return True if a pending replica may start now on the GPUs of a lease: nothing holds it, and they work."""
        node = self._nodes.find(lease.node)
        if node is None or node.state is not NodeState.UP:
            return False
        failed = {gpu.uuid for gpu in node.report.gpus if gpu.health is GpuHealth.FAILED}
        working = {gpu.uuid for gpu in node.report.gpus} - failed
        ready = row.not_before <= self._now() and self.held(workload) is None
        return ready and working.issuperset(share.gpu_uuid for share in lease.shares)

    def fence_after_s(self, workload: Workload, node: str) -> float | None:
        """Return ``NodeRegistry.fence_after_s``."""
        return self._nodes.fence_after_s(workload, node)

    # Changes

    def node_changed(self, node: Node) -> None:
        """Handle a node that came, left, was cordoned, or has other GPUs."""
        if self._stale:
            return
        self._scheduler.apply(NodeChanged(node))
        for workload in [self._mirror.workloads.get(id_) for id_, offered in self._offered.items() if 0 in offered]:
            if workload is not None and workload.limits.lazy:  # its request names the nodes that are suitable
                self._withdraw_all(workload.id)
                self._offer(workload.id)

    def project_changed(self, project: Project) -> None:
        """Handle a new project or changed limits of one."""
        old = self._projects.get(project.name)
        self._projects[project.name] = project
        if self._stale:
            return
        self._scheduler.apply(ProjectChanged(project))
        if old is not None and old.rules != project.rules:
            self._rules_changed(project.name)

    def _rules_changed(self, project: str) -> None:
        """Send all work of a project to the scheduler again, because each request contains the project's rules."""
        for lease in [lease for lease in self._mirror.leases.values() if lease.project == project]:
            self._lease_changed(lease)
        for workload in [w for w in self._mirror.workloads.values() if w.project == project]:
            self._withdraw_all(workload.id)
            self._offer(workload.id)

    def _withdraw_all(self, workload: WorkloadId) -> None:
        """Remove all offered replicas of a workload from the scheduler's queue."""
        for index in list(self._offered.get(workload, ())):
            self._withdraw(workload, index)
            heapq.heappush(self._outside.setdefault(workload, []), index)

    def department_changed(self, department: Department) -> None:
        """Handle a new department or changed limits of one."""
        self._departments[department.name] = department
        if not self._stale:
            self._scheduler.apply(DepartmentChanged(department))

    def user_changed(self, user: User) -> None:
        """Handle a new user or a changed limit of one."""
        self._users[user.name] = user
        if not self._stale:
            self._scheduler.apply(UserChanged(user))

    def reservation_changed(self, reservation: Reservation) -> None:
        """Handle a new or changed reservation."""
        self.reservations[reservation.id] = reservation
        self._wake_at = 0.0
        if not self._stale:
            self._scheduler.apply(ReservationChanged(reservation))

    def reservation_removed(self, reservation_id: str) -> None:
        """Handle a reservation that is over or was cancelled."""
        self.reservations.pop(reservation_id, None)
        self._wake_at = 0.0
        if not self._stale:
            self._scheduler.apply(ReservationRemoved(reservation_id))

    def update(self, changes: ChangeSet) -> None:
        """Apply a committed change that the mirror already has."""
        for workload in changes.workloads:
            self.dependencies.learn(workload)
            self._note_impatience(workload)
        for lease in changes.leases:
            self._past.add(lease)
        if self._stale:
            return
        rows = {(row.workload, row.index): row for row in changes.replicas}
        for lease in changes.leases:
            self._lease_changed(lease, rows.get((lease.workload, lease.index)))
        touched = dict.fromkeys(
            [row.workload for row in changes.replicas]
            + [w.id for w in changes.workloads]
            + [lease.workload for lease in changes.leases]
        )
        for row in changes.replicas:
            self._replica_changed(row)
            if row.state is ReplicaState.PENDING and row.reason in EVICTED and len(self._requeued) < MAX_REQUEUED:
                self._requeued.append(row)
        for workload in changes.workloads:
            touched |= self._workload_changed(workload)
        for workload_id in touched:
            self._offer(workload_id)

    def decide(self, now: float) -> Decisions:
        """Run one cycle of the scheduler."""
        self._refresh()
        for workload in self._openings.take_due(now):
            self._offer(workload)
        for workload in self._rounds.take_due(now):
            self._offer(workload)
        decisions = self._scheduler.decide(now)
        self._wake_at = decisions.wake_at
        return decisions

    # Building

    def _refresh(self) -> None:
        if not self._stale:
            return
        self._scheduler = Scheduler(self._scheduler.settings, self._runs)
        self._offered, self._outside = {}, {}
        self.dependencies.forget_waiting()
        self._scheduler.apply_all(NodeChanged(node) for node in self._nodes.all())
        self._scheduler.apply_all(DepartmentChanged(department) for department in self._departments.values())
        self._scheduler.apply_all(ProjectChanged(project) for project in self._projects.values())
        self._scheduler.apply_all(UserChanged(user) for user in self._users.values())
        self._scheduler.apply_all(map(ReservationChanged, self.reservations.values()))
        self._scheduler.apply_all(self._past.events(self._now()))
        self._stale = False
        for lease in self._mirror.leases.values():
            self._lease_changed(lease)
        for workload in self._mirror.workloads.values():
            for row in self._mirror.replicas.get(workload.id, {}).values():
                self._replica_changed(row)
        for workload in list(self._mirror.workloads.values()):
            self._note_impatience(workload)  # a failed write or a crash may have lost the first answer
            self._offer(workload.id)

    def _workload_changed(self, workload: Workload) -> dict[WorkloadId, None]:
        """Withdraw it if its priority changed; return the workloads that wait for its end, if it has ended."""
        offered = self._offered.get(workload.id)
        pending = self._scheduler.demand.pending.get((workload.id, next(iter(offered)))) if offered else None
        if pending is not None and pending.priority != workload.priority:
            self._withdraw_all(workload.id)
        return dict.fromkeys(self.dependencies.waiting_for(workload))

    def _note_impatience(self, workload: Workload) -> None:
        if workload.limits.wait_s == 0 and workload.state is WorkloadState.QUEUED:
            self._impatient.add(workload.id)

    def _lease_changed(self, lease: GpuLease, row: Replica | None = None) -> None:
        key = (lease.workload, lease.index)
        if lease.released_at is not None:
            own_end = row is not None and (row.state is ReplicaState.SUCCEEDED or row.reason is Reason.TIME_LIMIT)
            ran_s = lease.released_at - lease.granted_at if own_end else None
            if lease.workload in self._mirror.workloads:
                served = self._served.setdefault(lease.workload, {})
                served[lease.index] = served.get(lease.index, 0.0) + lease.released_at - lease.granted_at
            self._scheduler.apply(LeaseReleased(key, ran_s, at=lease.released_at))
            return
        self._scheduler.apply(LeaseTaken(self._running(lease)))

    def _running(self, lease: GpuLease) -> RunningReplica:
        workload = self._mirror.workloads.get(lease.workload)
        replica = self._mirror.holder(lease)
        ends = replica is None or _ends(replica, lease)
        releasing = ends and (replica is None or not keeps_place(replica))
        if workload is None:
            return RunningReplica(lease, lease.granted_at, releasing=True)
        found = running(self._with_gang(workload), lease, self._rules(workload.project), replica)
        return replace(found, releasing=releasing, served_s=self._served_s(*found.key))

    def _served_s(self, workload: WorkloadId, index: int) -> float:
        """Return how long a replica ran in earlier attempts, since this control plane started."""
        return self._served.get(workload, {}).get(index, 0.0)

    def _with_gang(self, workload: Workload) -> Workload:
        """Return the workload with a gang size that leaves out members that have succeeded."""
        done = self._mirror.counts.get(workload.id, Counter())[ReplicaState.SUCCEEDED]
        gang = workload.gang
        if gang is None or not done:
            return workload
        least = max(1, gang.least - done)
        return replace(workload, gang=replace(gang, least=least, most=max(least, gang.most - done)))

    def _gang_shrank(self, workload: Workload) -> None:
        """Send the smaller gang to the scheduler; the latest update of one member counts for all."""
        leases = self._mirror.leases_by_workload.get(workload.id)
        if leases:
            self._scheduler.apply(LeaseTaken(self._running(self._mirror.leases[min(leases)])))
        self._withdraw_all(workload.id)

    def _rules(self, project: str) -> ProjectRules:
        found = self._projects.get(project)
        return ProjectRules() if found is None else found.rules

    def take_requeued(self) -> list[Replica]:
        """Return the replicas that were evicted and queued again since the last call."""
        found, self._requeued = self._requeued, []
        return found

    def _replica_changed(self, row: Replica) -> None:
        workload = self._mirror.workloads.get(row.workload)
        if row.state is not ReplicaState.PENDING or workload is None:
            self._withdraw(row.workload, row.index)
            if workload is not None and workload.gang is not None and row.state is ReplicaState.SUCCEEDED:
                self._gang_shrank(workload)
            if row.state is ReplicaState.STOPPING or row.suspend_asked_at is not None:
                for lease in [self._mirror.leases[epoch] for epoch in row.leases if epoch in self._mirror.leases]:
                    if lease.workload == row.workload:
                        self._scheduler.apply(LeaseTaken(self._running(lease)))
            elif row.saved_at is not None:
                index = row.index if row.gpu_lease is None else LAZY_GPUS
                self._scheduler.apply(CheckpointSaved((row.workload, index), row.saved_at))
            return
        if row.index in self._offered.get(row.workload, ()):
            self._withdraw(row.workload, row.index)
        heapq.heappush(self._outside.setdefault(row.workload, []), row.index)
        self.dependencies.wait(workload)

    def _withdraw(self, workload: WorkloadId, index: int) -> None:
        offered = self._offered.get(workload)
        if offered is not None and index in offered:
            offered.discard(index)
            self._scheduler.apply(PendingRemoved((workload, index)))

    def _offer(self, workload_id: WorkloadId) -> None:
        """Offer pending replicas of a workload, up to its parallelism."""
        workload = self._mirror.workloads.get(workload_id)
        if workload is None:
            self._drop(workload_id)
            return
        offered = self._offered.setdefault(workload_id, set())
        held = self.held(workload)
        self._schedule_check(workload, held)
        if held is not None:
            self._withdraw_all(workload_id)
            return
        if workload.limits.separate_gpus:
            self._offer_gpus(workload, offered)
        counts = self._mirror.counts.get(workload_id, Counter())
        room = workload.parallelism - sum(n for state, n in counts.items() if state.placed) - len(offered)
        outside = self._outside.get(workload_id, [])
        blocked: list[int] = []
        while room > 0 and outside:
            index = heapq.heappop(outside)
            row = self._mirror.replica(workload_id, index)
            if row is None or row.state is not ReplicaState.PENDING or index in offered:
                continue
            if self._mirror.has_lease(workload_id, index):
                blocked.append(index)
                continue
            offered.add(index)
            room -= 1
            waiting = self._pending(workload, row)
            served_s = self._served_s(workload_id, index)
            self._scheduler.apply(PendingAdded(replace(waiting, served_s=served_s), self._now()))
        for index in blocked:
            heapq.heappush(outside, index)

    def _pending(self, workload: Workload, row: Replica) -> PendingReplica:
        rules = self._rules(workload.project)
        if workload.limits.lazy:
            return pending_place(workload, row, rules, self._nodes.all())
        return pending(self._with_gang(workload), row, rules)

    def _offer_gpus(self, workload: Workload, offered: set[int]) -> None:
        """Offer the request of a running replica for GPUs, or withdraw it."""
        row = self._mirror.replica(workload.id, 0)
        wants = row is not None and row.waits_for_gpus
        if row is not None and wants and LAZY_GPUS not in offered:
            offered.add(LAZY_GPUS)
            asked = pending_gpus(workload, row, self._rules(workload.project))
            self._scheduler.apply(PendingAdded(asked, self._now()))
        elif not wants:
            self._withdraw(workload.id, LAZY_GPUS)

    def offer_again(self, workloads: Iterable[WorkloadId]) -> None:
        """Offer workloads after an obstacle outside the scheduler is gone."""
        for workload in () if self._stale else workloads:
            self._offer(workload)

    def _drop(self, workload_id: WorkloadId) -> None:
        for index in list(self._offered.pop(workload_id, ())):
            self._scheduler.apply(PendingRemoved((workload_id, index)))
        self._outside.pop(workload_id, None)
        self.dependencies.forget(workload_id)
        self._served.pop(workload_id, None)

    def held(self, workload: Workload) -> BlockReason | None:
        """Return why none of a workload's pending replicas is in the queue, or None. Changes nothing."""
        if workload.suspended or workload.stop_reason is not None:
            return BlockReason.SUSPENDED
        if not self.dependencies.met(workload):
            return BlockReason.DEPENDENCY
        if self.folder_missing(workload):
            return BlockReason.FOLDER
        if self._rounds.closed(workload, self._mirror.counts.get(workload.id, Counter()), self._now()):
            return BlockReason.PARALLELISM
        if self.budgets.used_up(workload):
            return BlockReason.BUDGET
        return None if self.windows.opens_at(workload) <= self._now() else BlockReason.WINDOW

    def _schedule_check(self, workload: Workload, held: BlockReason | None) -> None:
        """Note when, or that, a workload has to be checked again, given what holds it now."""
        if held is BlockReason.DEPENDENCY and self.dependencies.impossible(workload):
            self.dependencies.unmet.add(workload.id)
        elif held is BlockReason.PARALLELISM:
            self._rounds.schedule_check(workload, self._mirror.counts.get(workload.id, Counter()))
        elif held in {None, BlockReason.WINDOW}:
            self._openings.schedule_check(workload, self._rules(workload.project), self._now())

    def first_offered(self, workload: WorkloadId, index: int | None = None) -> ReplicaKey | None:
        """Return the next replica of a workload in the queue; with ``index``, that one if it is in the queue."""
        offered = self._offered.get(workload, set())
        if index is not None:
            return (workload, index) if index in offered else None
        return (workload, min(offered)) if offered else None


def _ends(replica: Replica, lease: GpuLease) -> bool:
    """Return whether a lease ends soon: its replica stops, is being suspended, or uses another one."""
    suspended = replica.suspend_asked_at is not None and lease.index == LAZY_GPUS
    return replica.state is ReplicaState.STOPPING or suspended or lease.epoch not in replica.leases
