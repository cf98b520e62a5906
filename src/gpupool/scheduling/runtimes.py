"""How long runs take: by their time limits, and by what runs of the same kind took before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
import numpy.typing as npt

from gpupool.scheduling.session import Session
from gpupool.scheduling.values import PendingReplica, ReplicaKey

GRACE_S = 10.0  # how long whoever has been told to end may take
SURE_SAMPLES = 8  # so many past runs say more than a time limit does
LIKELIHOODS = ("low", "mid", "high")
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RunTimes:
    """How long finished replicas ran, in seconds: the median, and the quartiles when they are known."""

    samples: int
    median_s: float
    p25_s: float | None = None
    p75_s: float | None = None

    @property
    def spread(self) -> tuple[float, float, float]:
        """Lower quartile, median, upper quartile; the median where a quartile is not known."""
        low, high = self.p25_s, self.p75_s
        return self.median_s if low is None else low, self.median_s, self.median_s if high is None else high


# By (project, user); (project, "") is of all its users, ("", "") of the whole pool: for those who have none of theirs.
History = Mapping[tuple[str, str], RunTimes]
Spread = tuple[float, float, float]
UNKNOWN: Spread = (inf, inf, inf)


def past_of(history: History, project: str, user: str) -> RunTimes | None:
    """The run times that say most about the next run of a user in a project."""
    return history.get((project, user)) or history.get((project, "")) or history.get(("", ""))


def run_spread(history: History, replica: PendingReplica) -> tuple[Spread, RunTimes | None]:
    """How long a waiting replica will run once it has started, and what that rests on: None is its time limit."""
    past, limit = past_of(history, replica.project, replica.user), replica.max_time_s
    if past is None or (limit is not None and past.samples < SURE_SAMPLES):
        return (UNKNOWN if limit is None else (limit, limit, limit)), None
    low, mid, high = past.spread
    if limit is None:
        return (low, mid, high), past
    return (min(low, limit), min(mid, limit), min(high, limit)), past if mid < limit else None


class Foreseen:
    """When each of those who run will have ended, as far as that can be foreseen: ``ends[i]`` is about ``keys[i]``.

    The three columns of ``ends`` are the earliest, the likely and the latest moment, infinite where nothing is known.
    A run ends when it has run for as long as such runs did before, and at its time limit at the latest. Of one that has
    run longer than they did the past says little: it ends at its time limit, or without one when it has run for as
    long again. Neither do a few past runs say more than a time limit does. ``past[i]`` is what that rests on; None is a
    time limit, or being told to end. ``placed`` numbers those on nodes that are known: ``row`` and ``gpu``
    (thousandths) say where.
    """

    def __init__(self, session: Session, history: History) -> None:
        demand, now = session.demand, session.now
        self.keys: list[ReplicaKey] = list(demand.running)
        runs = list(demand.running.values())
        started = np.array([r.started_at for r in runs], np.float64)[:, None]
        limits = np.array([inf if r.expected_end is None else r.expected_end for r in runs], np.float64)[:, None]
        accounts = [demand.accounts[key] for key in self.keys]
        names = {a.pair: (a.project, a.user) for a in accounts}
        ledger = demand.ledger
        known = {
            pair: past_of(history, ledger.projects[project].name, ledger.users[user].name)
            for pair, (project, user) in names.items()
        }
        spreads = {pair: UNKNOWN if past is None else past.spread for pair, past in known.items()}
        took = np.array([spreads[a.pair] for a in accounts], np.float64).reshape(-1, 3)
        samples = np.array([past.samples if (past := known[a.pair]) else 0 for a in accounts], np.int64)[:, None]
        age = np.maximum(now - started, 0.0)
        likely = np.where(age < took, started + took, now + age)
        vague = (limits < inf) & ((samples < SURE_SAMPLES) | (age >= took[:, 2:]))
        self.ends: Floats = np.where(vague, np.maximum(limits, now), np.minimum(likely, np.maximum(limits, now)))
        by_limit = self.ends[:, 1] >= limits[:, 0]
        self.past = [None if at else known[a.pair] for at, a in zip(by_limit.tolist(), accounts, strict=True)]
        self.leaving = {at for at, key in enumerate(self.keys) if key in session.leaving}
        for at in self.leaving:
            self.ends[at], self.past[at] = (now, now, now + GRACE_S), None

        c = session.cluster
        claims = [c.claims.get(key) for key in self.keys]
        held = [(i, claim) for i, claim in enumerate(claims) if claim is not None and claim.row >= 0]
        self._grid = c.gpu_free.shape
        self.placed = np.array([i for i, _ in held], np.int64)
        self.row = np.array([claim.row for _, claim in held], np.int64)
        self.gpu = np.array([claim.gpu for _, claim in held], np.int64).reshape(-1, c.slots)

    @property
    def known(self) -> Ints:
        """Those whose end can be foreseen, the first to end first."""
        order = np.argsort(self.ends[:, 1], kind="stable")
        return np.asarray(order[self.ends[order, 1] < inf])

    def busy_until(self, now: float, which: int = 1) -> Floats:
        """The moment at which the last one on each GPU has ended, [N, G]: ``now`` where nobody is."""
        until = np.full(self._grid, now)
        held = np.where(self.gpu > 0, self.ends[self.placed, which][:, None], now)
        np.maximum.at(until, self.row, held)
        return until

    def words(self, which: Iterable[int]) -> str:
        """What the ends of some of them rest on."""
        found = [self.past[i] for i in which if i not in self.leaving]
        return basis_words(sum(past is None for past in found), [past for past in found if past is not None])


def basis_words(limits: int, past: Sequence[RunTimes]) -> str:
    """``2 time limits of jobs before it and the median of 14 past jobs``."""
    parts = []
    if not limits and not past:
        return "jobs that have been told to end"
    if limits:
        parts.append(f"{_many(limits, 'time limit')} of jobs before it")
    if past:
        samples = sum({id(p): p.samples for p in past}.values())
        parts.append(f"the median of {_many(samples, 'past job')}")
    return " and ".join(parts)


def _many(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")
