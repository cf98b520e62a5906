"""Keeps the scheduler's picture in step with the mirror, change by change, and can build it anew at any time.

Not every pending replica is offered to the scheduler: those of suspended workloads, with unmet dependencies, outside
their time windows, above their workload's parallelism, whose folder is on another head, or whose last attempt still
holds a lease wait outside.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, tzinfo

from gpupool.domain.access import Department, Project, ProjectRules, User
from gpupool.domain.booking import Booking
from gpupool.domain.events import Reason
from gpupool.domain.gpu import Node
from gpupool.domain.ids import WorkloadId
from gpupool.domain.lifecycle import EVICTED
from gpupool.domain.workload import Lease, Replica, ReplicaState, Workload, WorkloadState
from gpupool.scheduling.pastruns import PastRuns
from gpupool.scheduling.policy import Policy
from gpupool.scheduling.scheduler import (
    BookingChanged,
    BookingRemoved,
    DepartmentChanged,
    LeaseReleased,
    LeaseTaken,
    NodeChanged,
    PendingAdded,
    PendingRemoved,
    ProjectChanged,
    Scheduler,
    UserChanged,
)
from gpupool.scheduling.values import Decisions, Held, ReplicaKey, RunningReplica
from gpupool.services.dependencies import Dependencies
from gpupool.services.mirror import Mirror
from gpupool.services.nodebook import NodeBook
from gpupool.services.offers import pending, running
from gpupool.services.opening import Openings, WindowRules
from gpupool.services.pastuse import HALF_LIVES, UseBook
from gpupool.services.ports import ChangeSet, PastLease
from gpupool.services.rounds import Rounds

MOST_SENT_BACK = 1_000  # of those who were evicted are remembered until it is said when they go on
MOST_RUNS = 5_000  # past runs that tell what to expect of those to come


class Demand:
    """What waits and what runs, as the scheduler sees it."""

    def __init__(self, mirror: Mirror, nodes: NodeBook, now: Callable[[], float], zone: tzinfo = UTC) -> None:
        self._mirror = mirror
        self._nodes = nodes
        self._now = now
        self._projects: dict[str, Project] = {}
        self._users: dict[str, User] = {}
        self._departments: dict[str, Department] = {}
        self._stale = True
        self._runs = PastRuns()
        self._served: dict[WorkloadId, dict[int, float]] = {}  # seconds that replicas of live workloads ran before
        self._scheduler = Scheduler(past=self._runs)
        self._past = UseBook(self._scheduler.settings.decay)
        self._offered: dict[WorkloadId, set[int]] = {}
        self._rounds = Rounds()
        self._outside: dict[WorkloadId, list[int]] = {}  # heaps of pending indices that are not offered
        self.dependencies = Dependencies(mirror)
        self._openings = Openings(zone)
        self.windows = WindowRules(self._openings, self._rules, now)
        self._sent_back: list[Replica] = []
        self.bookings: dict[str, Booking] = {}
        self._wake_at: float | None = None  # when the scheduler wants to be asked again
        self._impatient: set[WorkloadId] = set()
        self.away: Callable[[Workload], bool] = lambda _workload: False  # whether its folder is still on another head

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler, up to date; for explaining."""
        self._refresh()
        return self._scheduler

    def set_policy(self, policy: Policy) -> None:
        """Decide under another policy from now on."""
        self._nodes.lost_after_s = policy.node_lost_after_s
        self._scheduler = Scheduler(policy.settings(self._scheduler.settings), self._runs)
        self._stale = True

    def invalidate(self) -> None:
        """The picture may be wrong (a write failed): build it anew before it is used again."""
        self._stale = True

    def has_pending(self) -> bool:
        """Whether anybody waits, or time alone has changed something."""
        now = self._now()
        due = (self._wake_at is not None and self._wake_at <= now) or self._rounds.due(now) or self._openings.due(now)
        return due or self._stale or any(self._offered.values())

    def impatient(self) -> tuple[WorkloadId, ...]:
        """Workloads that the last cycle did not start although they would not wait."""
        waiting = tuple(self._impatient)
        self._impatient.clear()
        return waiting

    def load(self, projects: Iterable[Project], users: Iterable[User], departments: Iterable[Department] = ()) -> None:
        """Begin with these projects, users and departments; the rest comes from the mirror."""
        self._projects = {project.name: project for project in projects}
        self._users = {user.name: user for user in users}
        self._departments = {department.name: department for department in departments}
        self.dependencies.learn_all(self._mirror.workloads.values())

    @property
    def remembers_since(self) -> float:
        """Leases released before then no longer count as use."""
        return self._now() - HALF_LIVES * self._scheduler.settings.decay.half_life_s

    def remember(self, leases: Iterable[PastLease], runs: Iterable[PastLease] = ()) -> None:
        """Begin anew with the use of these leases, all that were released and count, and with these run times."""
        self._past = UseBook(self._scheduler.settings.decay, leases)
        self._runs = PastRuns()
        for run in runs:
            self._runs.add(run.project, run.user, run.permille, run.released_at - run.granted_at)
        self._stale = True

    def project_removed(self, name: str) -> None:
        """A project is gone."""
        self._projects.pop(name, None)
        self.invalidate()

    def fence_after_s(self, workload: Workload, node: str) -> float | None:
        """See ``NodeBook.fence_after_s``."""
        return self._nodes.fence_after_s(workload, node)

    # What changes

    def node_changed(self, node: Node) -> None:
        """A node came, went, was cordoned, or its GPUs changed."""
        if not self._stale:
            self._scheduler.apply(NodeChanged(node))

    def project_changed(self, project: Project) -> None:
        """A project came or its bounds changed."""
        old = self._projects.get(project.name)
        self._projects[project.name] = project
        if self._stale:
            return
        self._scheduler.apply(ProjectChanged(project))
        if old is not None and old.rules != project.rules:
            self._rules_changed(project.name)

    def _rules_changed(self, project: str) -> None:
        """Tell the scheduler anew of all work of a project: its rules are a part of what is told."""
        for lease in [lease for lease in self._mirror.leases.values() if lease.project == project]:
            self._lease_changed(lease)
        for workload in [w for w in self._mirror.workloads.values() if w.project == project]:
            self._call_back(workload.id)
            self._offer(workload.id)

    def _call_back(self, workload: WorkloadId) -> None:
        """Take what is offered of a workload out of the queue; it waits outside."""
        for index in list(self._offered.get(workload, ())):
            self._withdraw(workload, index)
            heapq.heappush(self._outside.setdefault(workload, []), index)

    def department_changed(self, department: Department) -> None:
        """A department came or its bounds changed."""
        self._departments[department.name] = department
        if not self._stale:
            self._scheduler.apply(DepartmentChanged(department))

    def user_changed(self, user: User) -> None:
        """A user came or a bound changed."""
        self._users[user.name] = user
        if not self._stale:
            self._scheduler.apply(UserChanged(user))

    def booking_changed(self, booking: Booking) -> None:
        """Nodes were booked."""
        self.bookings[booking.id] = booking
        self._wake_at = 0.0
        if not self._stale:
            self._scheduler.apply(BookingChanged(booking))

    def booking_removed(self, booking_id: str) -> None:
        """A booking is over or was cancelled."""
        self.bookings.pop(booking_id, None)
        self._wake_at = 0.0
        if not self._stale:
            self._scheduler.apply(BookingRemoved(booking_id))

    def update(self, changes: ChangeSet) -> None:
        """Take over what was just committed and is in the mirror by now."""
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
            if row.state is ReplicaState.PENDING and row.reason in EVICTED and len(self._sent_back) < MOST_SENT_BACK:
                self._sent_back.append(row)
        for workload in changes.workloads:
            touched |= self._workload_changed(workload)
        for workload_id in touched:
            self._offer(workload_id)

    def decide(self, now: float) -> Decisions:
        """One cycle of the scheduler."""
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
        self._scheduler.apply_all(map(BookingChanged, self.bookings.values()))
        self._scheduler.apply_all(self._past.events(self._now()))
        self._stale = False
        for lease in self._mirror.leases.values():
            self._lease_changed(lease)
        for workload in self._mirror.workloads.values():
            for row in self._mirror.replicas.get(workload.id, {}).values():
                self._replica_changed(row)
        for workload in list(self._mirror.workloads.values()):
            self._note_impatience(workload)  # a write that failed, or a crash, may have swallowed the first answer
            self._offer(workload.id)

    def _workload_changed(self, workload: Workload) -> dict[WorkloadId, None]:
        """Take it back if it is in the queue with another priority; who waits for it, if it has ended."""
        offered = self._offered.get(workload.id)
        pending = self._scheduler.demand.pending.get((workload.id, next(iter(offered)))) if offered else None
        if pending is not None and pending.priority != workload.priority:
            self._call_back(workload.id)
        return dict.fromkeys(self.dependencies.waiting_for(workload))

    def _note_impatience(self, workload: Workload) -> None:
        if workload.limits.wait_s == 0 and workload.state is WorkloadState.QUEUED:
            self._impatient.add(workload.id)

    def _lease_changed(self, lease: Lease, row: Replica | None = None) -> None:
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

    def _running(self, lease: Lease) -> RunningReplica:
        workload = self._mirror.workloads.get(lease.workload)
        replica = self._mirror.replica(lease.workload, lease.index)
        releasing = replica is None or replica.state is ReplicaState.STOPPING or replica.lease != lease.epoch
        if workload is None:
            return RunningReplica(lease, lease.granted_at, releasing=True)
        evictions = 0 if replica is None else replica.interruptions
        told = running(self._with_gang(workload), lease, self._rules(workload.project), evictions)
        return replace(told, releasing=releasing, served_s=self._served_s(*told.key))

    def _served_s(self, workload: WorkloadId, index: int) -> float:
        """How long a replica ran before, since this control plane came up."""
        return self._served.get(workload, {}).get(index, 0.0)

    def _with_gang(self, workload: Workload) -> Workload:
        """Members of a gang that have succeeded are not missing."""
        done = self._mirror.counts.get(workload.id, Counter())[ReplicaState.SUCCEEDED]
        gang = workload.gang
        if gang is None or not done:
            return workload
        least = max(1, gang.least - done)
        return replace(workload, gang=replace(gang, least=least, most=max(least, gang.most - done)))

    def _gang_shrank(self, workload: Workload) -> None:
        """Tell the scheduler: the latest word about one member counts for all."""
        leases = self._mirror.leases_by_workload.get(workload.id)
        if leases:
            self._scheduler.apply(LeaseTaken(self._running(self._mirror.leases[min(leases)])))
        self._call_back(workload.id)

    def _rules(self, project: str) -> ProjectRules:
        found = self._projects.get(project)
        return ProjectRules() if found is None else found.rules

    def take_sent_back(self) -> list[Replica]:
        """Who was evicted and put back into the queue since the last call."""
        found, self._sent_back = self._sent_back, []
        return found

    def _replica_changed(self, row: Replica) -> None:
        workload = self._mirror.workloads.get(row.workload)
        if row.state is not ReplicaState.PENDING or workload is None:
            self._withdraw(row.workload, row.index)
            if workload is not None and workload.gang is not None and row.state is ReplicaState.SUCCEEDED:
                self._gang_shrank(workload)
            if row.state is ReplicaState.STOPPING and row.lease in self._mirror.leases:
                lease = self._mirror.leases[row.lease]
                if lease.workload == row.workload:
                    self._scheduler.apply(LeaseTaken(self._running(lease)))
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
        """Offer as many of a workload's pending replicas as its parallelism leaves room for."""
        workload = self._mirror.workloads.get(workload_id)
        if workload is None:
            self._drop(workload_id)
            return
        offered = self._offered.setdefault(workload_id, set())
        held = self.held(workload)
        if held is not None:
            self._call_back(workload_id)
            return
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
            waiting = pending(self._with_gang(workload), row, self._rules(workload.project))
            served_s = self._served_s(workload_id, index)
            self._scheduler.apply(PendingAdded(replace(waiting, served_s=served_s), self._now()))
        for index in blocked:
            heapq.heappush(outside, index)

    def look_again(self, workloads: Iterable[WorkloadId]) -> None:
        """Something that held these up is over."""
        for workload in () if self._stale else workloads:
            self._offer(workload)

    def _drop(self, workload_id: WorkloadId) -> None:
        for index in list(self._offered.pop(workload_id, ())):
            self._scheduler.apply(PendingRemoved((workload_id, index)))
        self._outside.pop(workload_id, None)
        self.dependencies.forget(workload_id)
        self._served.pop(workload_id, None)

    def held(self, workload: Workload) -> Held | None:
        """Why none of a workload's pending replicas is in the queue, if so."""
        if workload.suspended or workload.stop_reason is not None:
            return Held.SUSPENDED
        if not self.dependencies.met(workload):
            return Held.DEPENDENCY
        if self.away(workload):
            return Held.FOLDER
        if self._rounds.closed(workload, self._mirror.counts.get(workload.id, Counter()), self._now()):
            return Held.PARALLELISM
        may_start = self._openings.look_at(workload, self._rules(workload.project), self._now())
        return None if may_start else Held.WINDOW

    def first_offered(self, workload: WorkloadId, index: int | None = None) -> ReplicaKey | None:
        """The replica of a workload that is next in the queue; of ``index``, that one if it is there."""
        offered = self._offered.get(workload, set())
        if index is not None:
            return (workload, index) if index in offered else None
        return (workload, min(offered)) if offered else None
