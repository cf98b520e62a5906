"""Estimate of the start of a waiting replica: the queue is simulated over the known or likely ends of running work.

The simulation is bounded by work, not by time: the cost of a step is the number of kinds of waiting work. Later starts
are estimated from the rate at which GPUs are released (``coarse_estimate``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from math import inf
from typing import Protocol

from gpupool.scheduling.explain.coarse_estimate import coarse_estimate
from gpupool.scheduling.holds.runtime_model import Basis, Foreseen, History, basis_words, run_spread
from gpupool.scheduling.session import SchedulingSession
from gpupool.scheduling.state.queue import Group
from gpupool.scheduling.values import PendingReplica, ReplicaKey

MAX_STEPS = 200  # steps of the simulation
MAX_STARTS = 500  # simulated starts
MAX_WORK = 4_000  # (kinds of waiting work + STEP_COST) x steps: some tens of milliseconds
MIN_STEPS = 8  # fewer steps are not worth a simulation
STEP_COST = 20
TOGETHER = 0.05  # ends this close to each other, as a part of the simulated time, may be one step
MAX_AHEAD_S = 90 * 86_400.0

# time, number, earliest time, latest time, basis of the time, action
_End = tuple[float, int, float, float, Basis | None, Callable[[], None]]


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimated start: ``start_in_s`` is seconds from now, or None.

    ``basis`` explains it, or says why there is none. ``low_s`` and ``high_s`` are its range for the usual scatter of
    run times. ``rough``: from the pace of the pool only.
    """

    start_in_s: float | None
    basis: str
    low_s: float | None = None
    high_s: float | None = None
    rough: bool = False


class WaitingQueue(Protocol):
    """The waiting replicas of a session, at any time that the session is set to."""

    def start_waiting(self) -> None:
        """Start what fits."""

    def reserve(self, group: Group, replica: PendingReplica) -> None:
        """Reserve GPUs for a replica if it has waited long enough."""


MakeQueue = Callable[[SchedulingSession, int], WaitingQueue]  # an int: the most starts in it


def estimate(
    session: SchedulingSession, key: ReplicaKey, history: History, foreseen: Foreseen, make_queue: MakeQueue
) -> Estimate:
    """Return when ``key`` starts. The session is left unchanged except for its list of grants: close it afterwards.

    Future submissions and future evictions are not considered.
    """
    mark, now = session.log.checkpoint(), session.now
    known = foreseen.known
    rough = coarse_estimate(session, key, history, foreseen) if len(known) else None
    play = _Play(session, make_queue(session, MAX_STARTS), history, foreseen, known.tolist())
    found = play.until(key)
    session.log.rollback(mark)
    reached = session.now - now
    session.set_time(now)
    if found is not None:
        return found
    if not len(known):
        return Estimate(None, _no_basis(foreseen))
    if rough is None or rough[1] > MAX_AHEAD_S:
        return Estimate(None, _no_basis(foreseen), low_s=reached)
    low, mid, high = (max(s, reached) for s in rough)
    basis = f"the rate at which GPUs become free, based on {foreseen.words(known.tolist())}"
    return Estimate(mid, basis, low, None if high == inf else high, rough=True)


def _no_basis(foreseen: Foreseen) -> str:
    """Return the reason why there is no estimate."""
    if foreseen.outlasted:
        jobs, have = ("job", "has") if foreseen.outlasted == 1 else ("jobs", "have")
        many = f"{foreseen.outlasted} {jobs} ahead of it {have}"
        return f"{many} no time limit and {have} run longer than all past jobs"
    if not len(foreseen.known):
        return "no running job has a time limit, and there are no past jobs to compare with"
    return "the jobs with a predictable end do not free enough GPUs"


class _Play:
    """A simulation of the session from one end to the next, with the likely, the earliest and the latest time."""

    def __init__(
        self, session: SchedulingSession, queue: WaitingQueue, history: History, foreseen: Foreseen, known: list[int]
    ) -> None:
        self._session, self._history = session, history
        self._foreseen, self._known, self._at = foreseen, known, 0  # of ``known``, those before ``_at`` have ended
        self._began = self._low = self._high = session.now
        self._limits, self._past = 0, list[Basis]()
        self._queue = queue
        self._seen = self._number = self._ends_seen = 0
        self._started: list[_End] = []  # of replicas that start in the simulation
        kinds = sum(map(len, session.demand.project_queues.values()))
        self._steps = min(MAX_STEPS, MAX_WORK // (STEP_COST + kinds))

    def until(self, key: ReplicaKey) -> Estimate | None:
        session = self._session
        if self._steps < MIN_STEPS:
            return None
        for step in range(self._steps):
            self._start_those_who_can(key)
            if any(replica.key == key for replica, _, _ in session.outcome.placed):
                return self._found()
            if self._next() == inf or len(session.outcome.placed) >= MAX_STARTS:
                break
            self._next_ends(1 << (step * 8 // self._steps))
        return None

    def _found(self) -> Estimate:
        began, mid = self._began, self._session.now - self._began
        basis = basis_words(self._limits, self._past) if self._ends_seen else "it fits now"
        high = max(self._high - began, mid)
        return Estimate(mid, basis, min(self._low - began, mid), None if high == inf else high)

    def _start_those_who_can(self, key: ReplicaKey) -> None:
        session = self._session
        self._queue.start_waiting()
        self._reserve(key)
        for replica, claim, account in session.outcome.placed[self._seen :]:
            (low, mid, high), past = run_spread(self._history, replica)
            if mid < inf:
                self._number += 1
                release = partial(session.discharge, claim, account)
                end: _End = (session.now + mid, self._number, self._low + low, self._high + high, past, release)
                heappush(self._started, end)
        self._seen = len(session.outcome.placed)

    def _reserve(self, key: ReplicaKey) -> None:
        session, group = self._session, self._session.demand.group_of(key)
        if group is None or key in session.outcome.settled or not group.starvable or self._first_of(group) != key:
            return
        self._queue.reserve(group, session.demand.pending[key])

    def _first_of(self, group: Group) -> ReplicaKey | None:
        return next((r.key for _, _, r in group.entries if r.key not in self._session.outcome.settled), None)

    def _next(self) -> float:
        """Return the time of the next end; infinite if none is known."""
        running = float(self._foreseen.ends[self._known[self._at], 1]) if self._at < len(self._known) else inf
        return min(running, self._started[0][0] if self._started else inf)

    def _next_ends(self, most: int) -> None:
        first = self._next()
        horizon = first + TOGETHER * (first - self._began)
        if self._steps < MAX_STEPS // 4:
            horizon = inf  # a pool of this size allows few steps, so each covers many ends
        done = 0
        while (following := self._next()) <= first or (done < most and following <= horizon):
            if following == inf:
                return
            self._next_end()
            done += 1

    def _next_end(self) -> None:
        when = self._next()
        if self._started and self._started[0][0] == when:
            _, _, low, high, past, release = heappop(self._started)
            leaving = False
        else:
            at = self._known[self._at]
            self._at += 1
            low, _, high = self._foreseen.ends[at].tolist()
            leaving = at in self._foreseen.leaving
            past, release = self._foreseen.past[at], partial(self._session.discharge_running, self._foreseen.keys[at])
        self._session.set_time(max(self._session.now, when))
        self._low, self._high = max(self._low, low), max(self._high, high)
        release()
        self._ends_seen += 1
        if past is None:
            self._limits += not leaving
        else:
            self._past.append(past)
