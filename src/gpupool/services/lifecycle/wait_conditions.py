"""Conditions that keep a workload out of the queue: dependencies, rounds of elastic gangs, and time windows."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, tzinfo
from math import inf

from gpupool.domain.ids import WorkloadId
from gpupool.domain.people.access import ProjectRules
from gpupool.domain.work.time_windows import TimeWindows, cached_windows
from gpupool.domain.work.workload import Dependency, OnMemberEnd, ReplicaState, Workload, WorkloadState
from gpupool.services.state.mirror import Mirror

_PAST_TENSE = {
    WorkloadState.SUCCEEDED: "succeeded",
    WorkloadState.FAILED: "failed",
    WorkloadState.STOPPED: "been stopped",
}


@dataclass(frozen=True, slots=True)
class FinishedDependency:
    """The end of a workload that another one waits for."""

    name: str
    state: WorkloadState


class Dependencies:
    """Tracks dependencies; ``finished`` has those that ended, ``unmet`` the workloads that can never start."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self._waiting: dict[WorkloadId, set[WorkloadId]] = {}  # by the workload that they wait for
        self._awaited: set[WorkloadId] = set()
        self.finished: dict[WorkloadId, FinishedDependency] = {}
        self.unmet: set[WorkloadId] = set()

    def learn(self, workload: Workload) -> None:
        """Take in a workload that is new or has changed."""
        self._awaited.update(dependency.workload for dependency in workload.after)
        if workload.state.final and workload.id in self._awaited:
            self.learn_end(workload)

    def learn_end(self, workload: Workload) -> None:
        """Record the end of a workload that another one waits for."""
        self.finished[workload.id] = FinishedDependency(workload.name, workload.state)

    def learn_all(self, workloads: Iterable[Workload]) -> None:
        """Take in all workloads at the start."""
        for workload in workloads:
            self.learn(workload)

    def wait(self, workload: Workload) -> None:
        """Register a workload that is not in the queue, so that the end of its dependencies finds it."""
        for dependency in workload.after:
            self._waiting.setdefault(dependency.workload, set()).add(workload.id)

    def waiting_for(self, workload: Workload) -> Iterable[WorkloadId]:
        """Return the workloads to check now, if this one has ended."""
        return self._waiting.get(workload.id, ()) if workload.state.final else ()

    def forget(self, workload: WorkloadId) -> None:
        """Remove a workload that other workloads waited for."""
        self._waiting.pop(workload, None)

    def forget_waiting(self) -> None:
        """Remove all waiting workloads; they register again."""
        self._waiting = {}

    def met(self, workload: Workload) -> bool:
        """Return True if all dependencies have ended as required."""
        return all(self._results(workload))

    def impossible(self, workload: Workload) -> bool:
        """Return True if a dependency has ended in such a way that the workload can never start."""
        return False in self._results(workload)

    def _results(self, workload: Workload) -> list[bool | None]:
        return [self._met(d) for d in workload.after]

    def _met(self, dependency: Dependency) -> bool | None:
        """Return True if the dependency is met, None if not yet, False if it never can be."""
        if dependency.workload in self._mirror.workloads:
            return None
        found = self.finished.get(dependency.workload)
        return found is None or _ended_as_required(dependency, found)

    def failure(self, workload: Workload) -> str:
        """Return, as part of a sentence, the workloads that had to succeed or fail first and did not."""
        ends = [(d, self.finished[d.workload]) for d in workload.after if d.workload in self.finished]
        bad = [end for dependency, end in ends if not _ended_as_required(dependency, end)]
        return "; ".join(f"it depends on {end.name}, which has {_PAST_TENSE[end.state]}" for end in bad)


def _ended_as_required(dependency: Dependency, end: FinishedDependency) -> bool:
    succeeded = end.state is WorkloadState.SUCCEEDED
    return not succeeded if dependency.failure_only else succeeded or not dependency.success_only


GROW_AFTER_S = 300.0  # a round runs at least this long before a new round with more members begins


class GangRounds:
    """Gangs that wait until their current round has run long enough to grow."""

    def __init__(self) -> None:
        self._growing: list[tuple[float, WorkloadId]] = []  # a heap

    def closed(self, workload: Workload, counts: Mapping[ReplicaState, int], now: float) -> bool:
        """Return True if members of a gang have to wait because other members run or stop."""
        at = opens_at(workload, counts)
        return at is not None and at > now

    def schedule_check(self, workload: Workload, counts: Mapping[ReplicaState, int]) -> None:
        """Make ``take_due`` yield the gang when it may have more members."""
        at = opens_at(workload, counts)
        if at is not None and at < math.inf and (at, workload.id) not in self._growing:
            heapq.heappush(self._growing, (at, workload.id))

    def due(self, now: float) -> bool:
        """Return True if ``take_due`` would return a gang."""
        return bool(self._growing and self._growing[0][0] <= now)

    def take_due(self, now: float) -> Iterable[WorkloadId]:
        """Yield the gangs that may have more members from now on."""
        while self.due(now):
            yield heapq.heappop(self._growing)[1]


def opens_at(workload: Workload, counts: Mapping[ReplicaState, int]) -> float | None:
    """Return when more members of a gang may be offered to the scheduler.

    None means at once, infinite when the current round has ended. Where a new member restarts all, a round first runs
    for ``GROW_AFTER_S``, and members that stop are waited for.
    """
    if workload.framework is None or workload.on_member_end is not OnMemberEnd.RESTART or workload.wiring is None:
        return None
    if counts.get(ReplicaState.STOPPING):
        return math.inf
    if not (counts.get(ReplicaState.STARTING) or counts.get(ReplicaState.RUNNING)):
        return None
    return workload.wiring.formed_at + GROW_AFTER_S


def begins_at(workload: Workload) -> float:
    """Return the earliest start that its submission asked for."""
    return workload.created_at + (workload.limits.begin_s or 0.0)


_HORIZON_S = 15 * 86400.0  # windows that are not open together within two weeks never are


class WindowOpenings:
    """The windows of workloads in the pool's time zone, and when to check each workload again.

    Windows of a project apply to its preemptible workloads, windows of a workload to itself. A workload with both
    starts when both are open.
    """

    def __init__(self, zone: tzinfo) -> None:
        self._zone = zone
        self._turns: list[tuple[float, WorkloadId]] = []
        self._turn_of: dict[WorkloadId, float] = {}

    def windows(self, workload: Workload, rules: ProjectRules) -> list[TimeWindows]:
        """Return the windows that apply to a workload."""
        texts = [workload.windows, rules.windows if workload.preemptible else ()]
        return [cached_windows(text, self._zone) for text in texts if text]

    def opens_at(self, workload: Workload, rules: ProjectRules, now: float) -> float:
        """Return ``now`` if it may start now, else the time when it may; infinite: never."""
        start = max(now, begins_at(workload))
        bound, t = self.windows(workload, rules), start
        while t < start + _HORIZON_S:
            later = max((windows.next_open(t) for windows in bound), default=t)
            if later == t:
                return t
            t = later
        return inf

    def closes_at(self, workload: Workload, rules: ProjectRules, now: float) -> float | None:
        """Return when its windows close (infinite: never), or None if they are closed now."""
        ends = [windows.closes_at(now) for windows in self.windows(workload, rules)]
        return min((end for end in ends if end is not None), default=inf) if None not in ends else None

    def sentence(self, workload: Workload, rules: ProjectRules, now: float) -> str:
        """Return, for example, ``may start nights; next Monday 20:00 (Europe/Berlin)``."""
        texts = " and ".join(", ".join(w.text for w in windows.windows) for windows in self.windows(workload, rules))
        if begins_at(workload) > now:
            begin = f"{datetime.fromtimestamp(begins_at(workload), self._zone):%Y-%m-%d %H:%M:%S}"
            texts = f"from {begin}" + (f" and {texts}" if texts else "")
        opens = self.opens_at(workload, rules, now)
        when = (
            f"next {datetime.fromtimestamp(opens, self._zone):%A %H:%M}"
            if opens < inf
            else "these are never open together"
        )
        return f"may start {texts}; {when} ({self._zone})"

    def schedule_check(self, workload: Workload, rules: ProjectRules, now: float) -> None:
        """Make ``take_due`` return the workload when its windows next open or close."""
        if not workload.windows and not rules.windows and begins_at(workload) <= now:
            return
        opens = self.opens_at(workload, rules, now)
        closes = self.closes_at(workload, rules, now) or inf
        self._check_at(workload.id, opens if opens > now else closes)

    def _check_at(self, workload: WorkloadId, at: float) -> None:
        if at < inf and self._turn_of.get(workload) != at:
            self._turn_of[workload] = at
            heapq.heappush(self._turns, (at, workload))

    def due(self, now: float) -> bool:
        """Return True if the window of a workload has opened or closed."""
        return bool(self._turns) and self._turns[0][0] <= now

    def take_due(self, now: float) -> list[WorkloadId]:
        """Return the workloads whose windows have opened or closed, to check them again."""
        found = []
        while self.due(now):
            at, workload = heapq.heappop(self._turns)
            if self._turn_of.get(workload) == at:
                del self._turn_of[workload]
                found.append(workload)
        return found


class WindowRules:
    """The windows of any workload with the rules of its project."""

    def __init__(
        self, openings: WindowOpenings, rules_of: Callable[[str], ProjectRules], now: Callable[[], float]
    ) -> None:
        self._openings, self._rules_of, self._now = openings, rules_of, now

    def opens_at(self, workload: Workload) -> float:
        """Return when its time windows allow a start: now, later, or never (infinite)."""
        return self._openings.opens_at(workload, self._rules_of(workload.project), self._now())

    def note(self, workload: Workload) -> str:
        """Describe its time windows and when they allow the next start."""
        return self._openings.sentence(workload, self._rules_of(workload.project), self._now())

    def may_close_on(self, workload: Workload) -> bool:
        """Return True if it is preemptible and has time windows."""
        return workload.preemptible and bool(workload.windows or self._rules_of(workload.project).windows)

    def closed_on(self, workload: Workload, started_at: float, now: float) -> bool:
        """Return True if it was started within its time windows and they have closed."""
        rules = self._rules_of(workload.project)
        opened, now_open = (self._openings.closes_at(workload, rules, t) is not None for t in (started_at, now))
        return opened and not now_open
