"""The timeline of a workload: when its replicas waited, started, ran and ended.

The bars come from events, which are exact. If not all events of a replica were read, as in a
workload of thousands of replicas, its row gives the last attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from gpupool.domain.events import Event, Reason
from gpupool.domain.work.lifecycle import GRACE_SUFFIX, POOL, RETRY_SUFFIX
from gpupool.domain.work.workload import Replica, ReplicaState, Workload

MAX_LANES = 50
MAX_BARS = 200  # of one lane; the latest are shown
TICKS = 5
_WARNED = {Reason.IDLE_WARNING, Reason.TIME_WARNING, Reason.NODE_WARNING}
_ASKED = {Reason.EXTENDED, Reason.SUSPENDED_BY_USER, Reason.RESUMED_BY_USER, Reason.RESTARTED_BY_USER}
_MARKS = frozenset({*_WARNED, *_ASKED})
_NO_PHASE_CHANGE = frozenset({*_WARNED, Reason.QUEUED_AGAIN, Reason.EXTENDED, Reason.SUBMITTED})


class ReplicaPhase(StrEnum):
    """Phase of a replica that a bar shows."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class Bar:
    """One phase of one replica; times are seconds since the epoch, ``until`` is now for the current phase.

    ``x`` and ``width`` are thousandths of the whole width.
    """

    phase: ReplicaPhase
    since: float
    until: float
    about: str = ""
    x: float = 0.0
    width: float = 0.0

    @property
    def seconds(self) -> float:
        """Return the duration."""
        return self.until - self.since


@dataclass(frozen=True, slots=True)
class Mark:
    """An event at one time."""

    at: float
    reason: str
    about: str
    x: float = 0.0


@dataclass(frozen=True, slots=True)
class TimelineLane:
    """Bars and state of a replica."""

    index: int
    state: ReplicaState
    attempts: int
    bars: tuple[Bar, ...]
    marks: tuple[Mark, ...] = ()

    def total_s(self, phase: str) -> float:
        """Return the seconds in a phase, over all attempts."""
        return sum(bar.seconds for bar in self.bars if bar.phase == phase)


@dataclass(frozen=True, slots=True)
class Timeline:
    """All lanes between two times. ``left_out`` replicas are not shown; ``ticks`` are seconds after ``since``."""

    since: float
    until: float
    lanes: tuple[TimelineLane, ...]
    left_out: int = 0
    ticks: tuple[float, ...] = ()


@dataclass(slots=True)
class _LaneBuilder:
    """Builder of a replica's bars from its events."""

    phase: ReplicaPhase | None
    since: float
    about: str = ""
    bars: list[Bar] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)

    def to(self, phase: ReplicaPhase | None, at: float, about: str = "") -> None:
        if self.phase is not None and at >= self.since:
            self.bars.append(Bar(self.phase, self.since, at, self.about))
        self.phase, self.since, self.about = phase, at, about

    def take(self, event: Event) -> None:
        """Add an event of the replica or of its workload."""
        if event.reason in _MARKS:
            self.marks.append(Mark(event.at, event.reason.value, event.message))
        if event.actor != POOL or event.index is None or event.reason in _NO_PHASE_CHANGE:
            return  # requests of users show in the following events of the pool
        if event.reason is Reason.GRANTED:
            self.to(ReplicaPhase.STARTING, event.at, event.message)
        elif event.reason is Reason.STARTED:
            self.to(ReplicaPhase.RUNNING, max(event.at, self.since), event.message)
        elif event.message.endswith(RETRY_SUFFIX):
            self.to(ReplicaPhase.WAITING, event.at, event.message)
        elif event.message.endswith(GRACE_SUFFIX):
            self.to(ReplicaPhase.STOPPING, event.at, event.message)
        else:
            self.to(None, event.at)
            if self.bars:
                self.bars[-1] = Bar(self.bars[-1].phase, self.bars[-1].since, self.bars[-1].until, event.message)


def timeline(workload: Workload, replicas: Sequence[Replica], events: Iterable[Event], now: float) -> Timeline:
    """Return the timeline of the first ``MAX_LANES`` replicas; ``events`` are the workload's, oldest first."""
    common, own = _by_index(events)
    shown = replicas[:MAX_LANES]
    lanes = [_lane(workload, r, [*common, *own.get(r.index, ())], now) for r in shown]
    since = min([workload.created_at, *(lane.bars[0].since for lane in lanes if lane.bars)])
    until = max(workload.finished_at or now, since + 1.0)
    scale = 1000.0 / (until - since)
    return Timeline(
        since,
        until,
        tuple(_scaled(lane, since, until, scale) for lane in lanes),
        len(replicas) - len(shown),
        tuple((until - since) * tick / (TICKS - 1) for tick in range(TICKS)),
    )


def _by_index(events: Iterable[Event]) -> tuple[list[Event], Mapping[int, list[Event]]]:
    common: list[Event] = []
    own: dict[int, list[Event]] = {}
    for event in events:
        if event.index is None:
            common.append(event)
        else:
            own.setdefault(event.index, []).append(event)
    return common, own


def _lane(workload: Workload, replica: Replica, events: list[Event], now: float) -> TimelineLane:
    known = sorted(events, key=lambda event: event.id)
    starts = sum(event.reason is Reason.GRANTED for event in known)
    if starts < replica.attempt:
        bars, marks = _from_row(replica, now), []
    else:
        course = _LaneBuilder(ReplicaPhase.WAITING, workload.created_at)
        for event in known:
            course.take(event)
        if course.phase is not None and not replica.state.final:
            course.to(None, max(now, course.since))
        bars, marks = course.bars, course.marks
    return TimelineLane(replica.index, replica.state, replica.attempt, tuple(bars[-MAX_BARS:]), tuple(marks))


def _from_row(replica: Replica, now: float) -> list[Bar]:
    """Return the bars from the replica row alone: its last attempt, or its wait."""
    if replica.state is ReplicaState.PENDING:
        return [Bar(ReplicaPhase.WAITING, replica.queued_at, now)]
    if replica.started_at is None:
        return [Bar(ReplicaPhase.WAITING, replica.queued_at, replica.finished_at or now)]
    phase = ReplicaPhase.STOPPING if replica.state is ReplicaState.STOPPING else ReplicaPhase.RUNNING
    waited = Bar(ReplicaPhase.WAITING, min(replica.queued_at, replica.started_at), replica.started_at)
    return [waited, Bar(phase, replica.started_at, max(replica.finished_at or now, replica.started_at))]


def _scaled(lane: TimelineLane, since: float, until: float, scale: float) -> TimelineLane:
    bars = [
        Bar(b.phase, b.since, b.until, b.about, _x(b.since, since, scale), max(1.0, (b.until - b.since) * scale))
        for b in lane.bars
    ]
    marks = [Mark(m.at, m.reason, m.about, _x(min(m.at, until), since, scale)) for m in lane.marks]
    return TimelineLane(lane.index, lane.state, lane.attempts, tuple(bars), tuple(marks))


def _x(at: float, since: float, scale: float) -> float:
    return round((at - since) * scale, 2)
