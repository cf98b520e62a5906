"""When a waiting replica may start: the queue played forward over the ends that are known or likely.

How far it is played is bounded by work, not by time: a step costs as much as there are kinds of work that wait. What
lies further ahead is estimated by the pace at which GPUs come free (``turnover``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from heapq import heappop, heappush
from math import inf

from gpupool.scheduling.allocate import allocate
from gpupool.scheduling.queue import Group
from gpupool.scheduling.reserve import reserve_if_starving
from gpupool.scheduling.runtimes import Foreseen, History, RunTimes, basis_words, run_spread
from gpupool.scheduling.session import Session
from gpupool.scheduling.settling import settle_holds
from gpupool.scheduling.turnover import turnover
from gpupool.scheduling.values import ReplicaKey

MAX_STEPS = 200  # steps of the play at most
MAX_STARTS = 500  # starts played at most
MAX_WORK = 4_000  # (kinds of work that wait + a bit) x steps: some tens of milliseconds
FEWEST_STEPS = 8  # less than this tells nothing
STEP_COST = 20
TOGETHER = 0.05  # ends that lie so near to each other, as a part of the time played, may be one step
MOST_AHEAD_S = 90 * 86_400.0

# when, number, when at the earliest and the latest, what that rests on, what to do
_End = tuple[float, int, float, float, RunTimes | None, Callable[[], None]]


@dataclass(frozen=True, slots=True)
class Estimate:
    """``start_in_s`` is seconds from now, or None; ``basis`` says what it rests on, or why there is none.

    ``low_s`` and ``high_s`` bound it as run times usually scatter. ``rough``: by the pace of the pool alone.
    """

    start_in_s: float | None
    basis: str
    low_s: float | None = None
    high_s: float | None = None
    rough: bool = False


def estimate(session: Session, key: ReplicaKey, history: History, foreseen: Foreseen) -> Estimate:
    """When ``key`` starts. The session is left as it was but for its list of grants: close it after.

    Submissions to come and evictions to come are not foreseen.
    """
    mark, now = session.log.checkpoint(), session.now
    known = foreseen.known
    rough = turnover(session, key, history, foreseen) if len(known) else None
    play = _Play(session, history, foreseen, known.tolist())
    found = play.until(key)
    session.log.rollback(mark)
    session.now, reached = now, session.now - now
    if found is not None:
        return found
    if not len(known):
        return Estimate(None, "no running job has a time limit, and there are no past jobs to go by")
    if rough is None or rough[1] > MOST_AHEAD_S:
        return Estimate(None, "the ends that can be foreseen do not free enough", low_s=reached)
    low, mid, high = (max(s, reached) for s in rough)
    basis = f"the pace at which GPUs come free, from {foreseen.words(known.tolist())}"
    return Estimate(mid, basis, low, None if high == inf else high, rough=True)


class _Play:
    """The session from one end to the next. Beside the likely time, the earliest and the latest are kept."""

    def __init__(self, session: Session, history: History, foreseen: Foreseen, known: list[int]) -> None:
        self._session, self._history = session, history
        self._foreseen, self._known, self._at = foreseen, known, 0  # of ``known``, those before ``_at`` have ended
        self._began = self._low = self._high = session.now
        self._limits, self._past = 0, list[RunTimes]()
        self._real = session.settings
        self._bounded = replace(
            session.settings,
            max_reservations=0,
            reserve_after_s=inf,  # the queue must not note who has waited long by a time that has not come
            max_grants=MAX_STARTS,
        )
        self._seen = self._number = self._ends_seen = 0
        self._started: list[_End] = []  # of those who start on the way
        kinds = sum(map(len, session.demand.lanes.values()))
        self._steps = min(MAX_STEPS, MAX_WORK // (STEP_COST + kinds))

    def until(self, key: ReplicaKey) -> Estimate | None:
        session = self._session
        if self._steps < FEWEST_STEPS:
            return None
        session.settings = self._bounded
        try:
            for step in range(self._steps):
                self._start_those_who_can(key)
                if any(replica.key == key for replica, _, _ in session.placed):
                    return self._found()
                if self._next() == inf or len(session.placed) >= MAX_STARTS:
                    break
                self._next_ends(1 << (step * 8 // self._steps))
        finally:
            session.settings = self._real
        return None

    def _found(self) -> Estimate:
        began, mid = self._began, self._session.now - self._began
        basis = basis_words(self._limits, self._past) if self._ends_seen else "it fits now"
        high = max(self._high - began, mid)
        return Estimate(mid, basis, min(self._low - began, mid), None if high == inf else high)

    def _start_those_who_can(self, key: ReplicaKey) -> None:
        session = self._session
        settle_holds(session)
        allocate(session)
        self._reserve(key)
        for replica, claim, account in session.placed[self._seen :]:
            (low, mid, high), past = run_spread(self._history, replica)
            if mid < inf:
                self._number += 1
                release = partial(session.discharge, claim, account)
                end: _End = (session.now + mid, self._number, self._low + low, self._high + high, past, release)
                heappush(self._started, end)
        self._seen = len(session.placed)

    def _reserve(self, key: ReplicaKey) -> None:
        """It gets its reservation when it has waited long enough."""
        session, group = self._session, self._session.demand.group_of(key)
        if group is None or key in session.gone or not group.starvable or self._first_of(group) != key:
            return
        session.settings = self._real
        reserve_if_starving(session, group, session.demand.pending[key])
        session.settings = self._bounded

    def _first_of(self, group: Group) -> ReplicaKey | None:
        return next((r.key for _, _, r in group.entries if r.key not in self._session.gone), None)

    def _next(self) -> float:
        """When the next one ends; infinite when nobody does, as far as can be foreseen."""
        running = float(self._foreseen.ends[self._known[self._at], 1]) if self._at < len(self._known) else inf
        return min(running, self._started[0][0] if self._started else inf)

    def _next_ends(self, most: int) -> None:
        first = self._next()
        horizon = first + TOGETHER * (first - self._began)
        if self._steps < MAX_STEPS // 4:
            horizon = inf  # few steps are left to a pool of this size: each takes in many ends
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
            past, release = self._foreseen.past[at], partial(self._session.lift_running, self._foreseen.keys[at])
        self._session.now = max(self._session.now, when)
        self._low, self._high = max(self._low, low), max(self._high, high)
        release()
        self._ends_seen += 1
        if past is None:
            self._limits += not leaving
        else:
            self._past.append(past)
