"""When a waiting replica may start: the queue played forward over the ends that are known or likely."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from heapq import heapify, heappop, heappush
from math import inf

from gpupool.scheduling.allocate import allocate, settle_holds
from gpupool.scheduling.session import Session
from gpupool.scheduling.values import ReplicaKey

MAX_ENDS = 200  # ends played at most
MAX_STARTS = 500  # starts played at most


@dataclass(frozen=True, slots=True)
class RunTimes:
    """How long finished replicas of one user in one project ran; ``median_s`` in seconds."""

    samples: int
    median_s: float


History = Mapping[tuple[str, str], RunTimes]  # by (project, user)
_End = tuple[float, int, Callable[[], None], RunTimes | None]  # when, number, what to do, what it rests on


@dataclass(frozen=True, slots=True)
class Estimate:
    """``start_in_s`` is seconds from now, or None; ``basis`` says what it rests on, or why there is none."""

    start_in_s: float | None
    basis: str


def estimate(session: Session, key: ReplicaKey, history: History) -> Estimate:
    """Play the session forward until ``key`` starts. The session is left somewhere in the future: close it after.

    A run ends at its time limit, or else when it has run for the median of its user's past runs in the project (half
    that from now if it has run longer). Submissions to come, evictions and reservations to come are not foreseen.
    """
    return _Play(session, history).until(key)


class _Play:
    def __init__(self, session: Session, history: History) -> None:
        self._session, self._history = session, history
        self._began = session.now
        self._limits, self._medians = 0, 0
        self._samples: set[RunTimes] = set()
        session.settings = replace(
            session.settings,
            max_reservations=0,
            reserve_after_s=inf,  # the queue must not note who has waited long by a time that has not come
            max_grants=MAX_STARTS,
        )
        self._ends: list[_End] = []
        self._number = self._seen = 0
        for running in session.demand.running:
            self._foresee_running(running)
        heapify(self._ends)

    def until(self, key: ReplicaKey) -> Estimate:
        nothing = not self._ends
        for _ in range(MAX_ENDS):
            self._start_those_who_can()
            if any(replica.key == key for replica, _, _ in self._session.placed):
                return Estimate(self._session.now - self._began, self._basis())
            if nothing:
                return Estimate(None, "no running job has a time limit, and there are no past jobs to go by")
            if not self._ends:
                return Estimate(None, "the ends that can be foreseen do not free enough")
            if len(self._session.placed) >= MAX_STARTS:
                break
            self._next_end()
        return Estimate(None, f"too far ahead: not within the next {MAX_ENDS} ends and {MAX_STARTS} starts")

    def _start_those_who_can(self) -> None:
        session = self._session
        settle_holds(session)
        allocate(session)
        for replica, claim, account in session.placed[self._seen :]:
            past = self._history.get((replica.project, replica.user))
            if replica.max_time_s is not None:
                self._push(session.now + replica.max_time_s, partial(session.discharge, claim, account), None)
            elif past is not None:
                self._push(session.now + past.median_s, partial(session.discharge, claim, account), past)
        self._seen = len(session.placed)

    def _next_end(self) -> None:
        when, _, release, basis = heappop(self._ends)
        self._session.now = max(self._session.now, when)
        release()
        if basis is None:
            self._limits += 1
        else:
            self._medians += 1
            self._samples.add(basis)

    def _foresee_running(self, key: ReplicaKey) -> None:
        session, running = self._session, self._session.demand.running[key]
        past = self._history.get((running.lease.project, running.lease.user))
        basis = None
        if key in session.leaving:
            when = session.now
        elif running.expected_end is not None:
            when = running.expected_end
        elif past is not None:
            when, basis = max(running.started_at + past.median_s, session.now + past.median_s / 2), past
        else:
            return
        self._push(max(when, session.now), partial(session.lift_running, key), basis)

    def _push(self, when: float, release: Callable[[], None], basis: RunTimes | None) -> None:
        self._number += 1
        heappush(self._ends, (when, self._number, release, basis))

    def _basis(self) -> str:
        parts = []
        if self._limits:
            parts.append(f"{_many(self._limits, 'time limit')} of jobs before it")
        if self._medians:
            parts.append(f"the median of {_many(sum(past.samples for past in self._samples), 'past job')}")
        return " and ".join(parts) if parts else "it fits now"


def _many(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")
