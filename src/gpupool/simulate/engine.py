"""The loop in virtual time: submissions and ends go into the real scheduler, and its decisions are carried out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from gpupool.domain.errors import GpupoolError
from gpupool.domain.ids import WorkloadId
from gpupool.domain.nodes.gpu import GpuRequest, Node
from gpupool.domain.people.access import Project
from gpupool.domain.work.gang import Gang
from gpupool.domain.work.time_windows import TimeWindows, cached_windows
from gpupool.scheduling.policy import Settings
from gpupool.scheduling.scheduler import (
    DepartmentChanged,
    LeaseReleased,
    NodeChanged,
    PendingAdded,
    ProjectChanged,
    ReservationChanged,
    Scheduler,
)
from gpupool.scheduling.state.cluster import MILLI, ClusterState
from gpupool.scheduling.values import BlockReason, Eviction, Grant, PendingReplica, ReplicaKey
from gpupool.simulate.load import capacity_of, permille_of, split
from gpupool.simulate.rows import MAX_SECONDS
from gpupool.simulate.values import Fate, Record, Rules, Sample, TraceJob

_Kind = tuple[str, str, int, bool, GpuRequest, float, int, bool, bool]
Progress = Callable[[int, int], None]  # submitted jobs, of all jobs
COVER = 0.95  # part of the jobs that the typical kinds cover
MAX_KINDS = 64
WINDOWS_OPEN_WITHIN_S = 8 * 86_400.0  # every time window opens within a week
WINDOW_CLOSED = "window closed"  # counted among the kinds of evictions

Ints = npt.NDArray[np.int64]


class _What(IntEnum):
    """Kinds of events, in the order in which those of one moment happen."""

    FINISHED = 0
    EVICTED = 1
    WAKE = 2
    WINDOW = 3  # the time window of a replica opens or closes


@dataclass(frozen=True, slots=True)
class _Run:
    """A running replica: the number of its start, since when, on how much, and its start-up time."""

    number: int
    since: float
    permille: int
    overhead_s: float = 0.0
    leaving: bool = False


class Simulation:
    """One run of a trace on a cluster; ``run`` may be called once."""

    def __init__(
        self,
        jobs: Sequence[TraceJob],
        nodes: Sequence[Node],
        projects: Sequence[Project] = (),
        rules: Rules | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.rules = rules or Rules()
        self.fates = [Fate(job) for job in jobs]
        self.scheduler = Scheduler(settings)
        self.scheduler.apply_all(NodeChanged(node) for node in nodes)
        self.scheduler.apply_all(map(DepartmentChanged, self.rules.departments))
        self.scheduler.apply_all(map(ReservationChanged, self.rules.reservations))
        self._reserved_until = max((made.ends_at for made in self.rules.reservations), default=-math.inf)
        self._patience_s = WINDOWS_OPEN_WITHIN_S if any(job.windows for job in jobs) else 0.0
        named = {project.name: project for project in projects}
        names = dict.fromkeys([*(job.project for job in jobs), *named])
        self._projects = tuple(named.get(name, Project(name)) for name in names)
        self.scheduler.apply_all(ProjectChanged(project) for project in self._projects)
        self._most = max(len(node.report.gpus) for node in nodes)
        self._capacity = capacity_of(nodes)
        self._kinds = usual_kinds(jobs)
        self._possible: dict[object, str] = {}
        self._events: list[
            tuple[float, int, int, ReplicaKey | None, int]
        ] = []  # time, what, order, replica, number of the start
        self._order = self._decisions = self._starts = self._allocated = 0
        self._now = self._first = jobs[0].submitted_s if jobs else 0.0
        self._last = jobs[-1].submitted_s if jobs else 0.0
        self._busy = 0.0
        self._wake: float | None = None
        self._active_at = -math.inf  # the last time at which a job was submitted, started or ended
        self._waiting: dict[ReplicaKey, PendingReplica] = {}
        self._running: dict[ReplicaKey, _Run] = {}
        self._asked: dict[ReplicaKey, PendingReplica] = {}
        self._samples: list[Sample] = []
        self._done: dict[ReplicaKey, float] = {}  # seconds of work of evicted replicas that are saved
        self._alike: Counter[_Kind] = Counter()  # waiting replicas of each kind
        self._evictions: Counter[str] = Counter()  # by kind
        self._held: Counter[str] = Counter()  # project -> thousandths
        self._queued: Counter[str] = Counter()

    def run(self, progress: Progress | None = None) -> Record:
        """Run until nothing more can happen; ``progress`` is called now and then."""
        submitted = 0
        while submitted < len(self.fates) or self._events:
            now = self._next_moment(submitted)
            self._pass_to(now)
            changed = self._happen(now)
            while submitted < len(self.fates) and self.fates[submitted].job.submitted_s <= now:
                changed |= self._submit(submitted)
                submitted += 1
            if changed:
                self._decide(now)
            if progress is not None:
                progress(submitted, len(self.fates))
            if submitted == len(self.fates) and not self._running and self._over(now):
                break  # all GPUs were free and unused: the rest waits for ever
        return self._record()

    def _over(self, now: float) -> bool:
        """Return True if neither a time window nor a reservation can still let something start."""
        return now >= max(self._active_at + self._patience_s, self._reserved_until) or not self._waiting

    # --- time

    def _next_moment(self, submitted: int) -> float:
        times = [self._events[0][0]] if self._events else []
        if submitted < len(self.fates):
            times.append(self.fates[submitted].job.submitted_s)
        return float(min(times))  # the scheduler computes with times as floats

    def _pass_to(self, now: float) -> None:
        """Sample the cluster at every moment before ``now``, and sum the allocation."""
        step = (self._last - self._first) / max(1, self.rules.samples)
        while step and len(self._samples) < self.rules.samples and self._due(step) < now:
            self._samples.append(self._sample(self._due(step)))
        self._busy += self._allocated * max(0.0, min(now, self._last) - self._now)
        self._now = now

    def _due(self, step: float) -> float:
        return self._first + step * (len(self._samples) + 1) - step / 2

    def _sample(self, at_s: float) -> Sample:
        stranded = stranded_permille(self.scheduler.cluster, self._kinds)
        held = {name: held for name, held in self._held.items() if held}
        asked = {name: asked for name, asked in (self._held + self._queued).items() if asked}
        return Sample(at_s, self._allocated, stranded, len(self._waiting), held, asked)

    def _at(self, time: float, what: _What, key: ReplicaKey | None = None, number: int = 0) -> None:
        self._order += 1
        heappush(self._events, (time, what, self._order, key, number))

    # --- what happens

    def _happen(self, now: float) -> bool:
        """Apply the events of a moment; return whether there is something new to decide."""
        changed = False
        while self._events and self._events[0][0] <= now:
            _, what, _, key, number = heappop(self._events)
            if key is None:
                self._wake, changed = None, True
            elif what is _What.WINDOW:
                changed |= self._turn_window(key, now)
            elif (run := self._running.get(key)) is not None and run.number == number:
                self._end(key, run, now, finished=what is _What.FINISHED)
                changed = True
        return changed

    def _end(self, key: ReplicaKey, run: _Run, now: float, *, finished: bool) -> None:
        fate, lasted, self._active_at = self.fates[_number(key)], now - run.since, now
        del self._running[key]
        self._allocated -= run.permille
        self._held[fate.job.project] -= run.permille
        fate.used_permille_s += run.permille * lasted
        fate.wasted_permille_s += run.permille * min(lasted, run.overhead_s)
        self.scheduler.apply(LeaseReleased(key, fate.job.duration_s if finished else None, now))
        if finished:
            fate.finished += 1
            fate.ended_s = now
            return
        fate.preemptions += 1
        fate.wasted_permille_s += run.permille * self._lost(key, max(0.0, lasted - run.overhead_s))
        asked = self._asked[key]
        served_s = asked.served_s + lasted
        self._asked[key] = replace(asked, queued_at=now, served_s=served_s, evictions=asked.evictions + 1)
        self._wait(self._asked[key], now)

    def _turn_window(self, key: ReplicaKey, now: float) -> bool:
        """Let a replica wait or run as its time windows say; return False if it has ended."""
        windows = self._windows(key)
        run, waiting = self._running.get(key), self._waiting.get(key)
        if windows is None or (run is None and waiting is None):
            return False
        if waiting is not None:
            self._forget(waiting)
            self._wait(waiting, now)
        elif run is not None and not windows.open_at(now) and not run.leaving:
            self._evictions[WINDOW_CLOSED] += 1
            self._leave(key, run, now)
        self._at_next_turn(key, windows, now)
        return True

    def _windows(self, key: ReplicaKey) -> TimeWindows | None:
        texts = self.fates[_number(key)].job.windows
        return cached_windows(texts, self.rules.zone) if texts else None

    def _at_next_turn(self, key: ReplicaKey, windows: TimeWindows, now: float) -> None:
        closes = windows.closes_at(now)
        turn = windows.next_open(now) if closes is None else closes
        if turn < math.inf:
            self._at(turn, _What.WINDOW, key)

    def _saves(self, key: ReplicaKey) -> float | None:
        own = self.fates[_number(key)].job.checkpoint_s
        return self.rules.checkpoint_s if own is None else own

    def _lost(self, key: ReplicaKey, worked_s: float) -> float:
        """Return the seconds of work that an evicted replica must repeat; record the saved ones."""
        every = self._saves(key)
        if every is None:
            return worked_s
        before = self._done.get(key, 0.0)
        done = before + worked_s
        self._done[key] = done if not every else max(before, done // every * every)
        return done - self._done[key]

    def _submit(self, number: int) -> bool:
        """Submit a job; return whether it could start: not if an equal one already waits."""
        fate = self.fates[number]
        parts = split(fate.job.request, self._most) * fate.job.members
        fate.replicas = len(parts)
        gang = Gang(len(parts), len(parts)) if len(set(parts)) == 1 < len(parts) else None
        saves = self._saves((WorkloadId(str(number)), 0))
        waiting = [_replica(fate.job, number, index, part, gang, saves) for index, part in enumerate(parts)]
        waiting = [replace(replica, grace_s=self.rules.grace_s) for replica in waiting]
        if self.rules.told:
            place = self._first - MAX_SECONDS + fate.job.duration_s
            waiting = [replace(replica, queued_at=place) for replica in waiting]
        fate.impossible = next(filter(None, map(self._why_impossible, waiting)), "")
        if fate.impossible:
            return False
        alone = not any(self._alike[_kind(replica)] for replica in waiting)
        self._active_at = fate.job.submitted_s
        for replica in waiting:
            self._asked[replica.key] = replica
            self._wait(replica, fate.job.submitted_s)
            if (windows := self._windows(replica.key)) is not None:
                self._at_next_turn(replica.key, windows, fate.job.submitted_s)
        return alone or len(waiting) > 1

    def _wait(self, replica: PendingReplica, now: float) -> None:
        windows = self._windows(replica.key)
        if windows is not None:
            replica = replace(replica, held=None if windows.open_at(now) else BlockReason.WINDOW)
        self._waiting[replica.key] = replica
        self._alike[_kind(replica)] += 1
        self._queued[replica.project] += permille_of(replica.request)
        self.scheduler.apply(PendingAdded(replica, now))

    def _forget(self, replica: PendingReplica) -> None:
        """Count a replica as not waiting."""
        del self._waiting[replica.key]
        self._alike[_kind(replica)] -= 1
        self._queued[replica.project] -= permille_of(replica.request)

    def _why_impossible(self, replica: PendingReplica) -> str:
        asked = (replica.request, replica.cpus, replica.memory_mib)
        if asked not in self._possible:
            try:
                self.scheduler.check_possible(*asked)
                self._possible[asked] = ""
            except GpupoolError as error:
                self._possible[asked] = error.message
        return self._possible[asked]

    # --- what is decided

    def _decide(self, now: float) -> None:
        more = bool(self._waiting) or now <= self._reserved_until
        while more:
            decisions = self.scheduler.decide(now)
            self._decisions += 1
            for grant in decisions.grants:
                self._start(grant, now)
            for eviction in decisions.evictions:
                self._evict(eviction, now)
            more = decisions.more or (bool(decisions.grants) and now <= self._reserved_until)
            self._wake_at(decisions.wake_at)

    def _start(self, grant: Grant, now: float) -> None:
        key, permille = grant.key, sum(share.permille for share in grant.shares)
        fate = self.fates[_number(key)]
        replica, self._active_at = self._waiting[key], now
        self._forget(replica)
        self._starts += 1
        self._allocated += permille
        self._held[replica.project] += permille
        again = self._asked[key].evictions > 0
        run = self._running[key] = _Run(self._starts, now, permille, self.rules.restart_s if again else 0.0)
        fate.starts.setdefault(key[1], now)
        left = fate.job.duration_s - self._done.get(key, 0.0)
        self._at(now + run.overhead_s + left, _What.FINISHED, key, self._starts)

    def _evict(self, eviction: Eviction, now: float) -> None:
        run = self._running[eviction.key]
        if not run.leaving:
            self._evictions[eviction.kind] += 1
            self._leave(eviction.key, run, now)

    def _leave(self, key: ReplicaKey, run: _Run, now: float) -> None:
        self._running[key] = replace(run, leaving=True)
        self._at(now + self.rules.grace_s, _What.EVICTED, key, run.number)

    def _wake_at(self, time: float | None) -> None:
        useful = self._waiting or self._now <= self._reserved_until
        if time is not None and useful and (self._wake is None or time < self._wake):
            self._wake = time
            self._at(time, _What.WAKE)

    def _record(self) -> Record:
        return Record(
            fates=tuple(self.fates),
            samples=tuple(self._samples),
            capacity_permille=self._capacity,
            busy_permille_s=self._busy,
            window_s=self._last - self._first,
            ended_s=self._now,
            decisions=self._decisions,
            starts=self._starts,
            projects=self._projects,
            evictions=dict(self._evictions),
        )


def _kind(replica: PendingReplica) -> _Kind:
    """Return what two waiting replicas have in common if only their age decides which starts first."""
    turned, held = replica.served_s > 0, replica.held is not None
    asked = (replica.request, replica.cpus, replica.memory_mib)
    return (replica.project, replica.user, replica.priority, replica.preemptible, *asked, turned, held)


def _number(key: ReplicaKey) -> int:
    """Return the place of a replica's job in the trace."""
    return int(key[0])


def _replica(
    job: TraceJob, number: int, index: int, part: GpuRequest, gang: Gang | None, checkpoint_s: float | None
) -> PendingReplica:
    """Return a replica with its part of the job's processors and memory."""
    return PendingReplica(
        workload=WorkloadId(str(number)),
        index=index,
        project=job.project,
        user=job.user,
        request=part,
        queued_at=job.submitted_s,
        preemptible=job.preemptible,
        priority=job.priority,
        cpus=job.cpus * part.count / job.request.count,
        memory_mib=job.memory_mib * part.count // job.request.count,
        gang=gang,
        checkpoint_s=checkpoint_s,
    )


@dataclass(frozen=True, slots=True)
class JobKind:
    """A kind of work and its part of all jobs."""

    request: GpuRequest
    cpu_milli: int
    part: float


def usual_kinds(jobs: Iterable[TraceJob]) -> tuple[JobKind, ...]:
    """Return the most frequent kinds of work that cover 95 % of the jobs."""
    counts = Counter((job.request, round(job.cpus * MILLI)) for job in jobs)
    chosen: list[tuple[GpuRequest, int, int]] = []
    covered = 0
    for (request, cpu_milli), count in counts.most_common(MAX_KINDS):
        if covered >= COVER * counts.total():
            break
        chosen.append((request, cpu_milli, count))
        covered += count
    return tuple(JobKind(request, cpu_milli, count / covered) for request, cpu_milli, count in chosen)


def stranded_permille(cluster: ClusterState, kinds: Sequence[JobKind]) -> float:
    """Return the free GPU thousandths that a job cannot use, on average over the typical kinds of work.

    Where the job does not fit on a node, everything free there counts; otherwise the free parts of GPUs too full for
    it.
    """
    free = np.where(cluster.available & cluster.up[:, None], np.maximum(cluster.gpu_free, 0), 0)
    return sum(kind.part * _stranded_for(cluster, free, kind) for kind in kinds)


def _stranded_for(cluster: ClusterState, free: Ints, kind: JobKind) -> float:
    request = kind.request
    accepted = np.array([bool(model) and request.accepts_model(model) for model in cluster.models])
    need = permille_of(request) // max(1, request.count)
    usable = accepted[cluster.model] & (free >= need)
    fits = (usable.sum(axis=1) >= request.count) & (cluster.cpu_free >= kind.cpu_milli)
    return float(free.sum() - (free * usable)[fits].sum())
