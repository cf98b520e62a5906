"""Run time model: expected ends from time limits and from past runs of the same kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf
from statistics import median

import numpy as np
import numpy.typing as npt

from gpupool.scheduling.outcome import CycleOutcome
from gpupool.scheduling.state.cluster import ClusterState
from gpupool.scheduling.state.queue import Demand
from gpupool.scheduling.values import PendingReplica, ReplicaKey

GRACE_S = 10.0  # default time that a replica needs to end
MIN_TRUSTED_SAMPLES = 8  # from this many past runs on, they say more than a time limit
QUARTILES = (0.25, 0.5, 0.75)
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RunTimes:
    """Run times of finished replicas in seconds: the median, the quartiles if known, and all values, sorted."""

    samples: int
    median_s: float
    p25_s: float | None = None
    p75_s: float | None = None
    seconds: tuple[float, ...] = ()

    @classmethod
    def of(cls, seconds: Sequence[float]) -> RunTimes:
        """Return the summary of at least one run."""
        ordered = sorted(seconds)
        p25, p75 = (ordered[ceil(part * len(ordered)) - 1] for part in (0.25, 0.75))
        return cls(len(ordered), median(ordered), p25, p75, tuple(ordered))

    @property
    def spread(self) -> tuple[float, float, float]:
        """Return lower quartile, median, upper quartile; the median where a quartile is unknown."""
        low, high = self.p25_s, self.p75_s
        return self.median_s if low is None else low, self.median_s, self.median_s if high is None else high


@dataclass(frozen=True, slots=True)
class Basis:
    """The past runs behind an estimate; ``longer`` of them ran longer than this run so far."""

    runs: RunTimes
    longer: int | None = None  # None: it has run for less than all of them


# By (project, user); (project, "") is of all its users, ("", "") of the whole pool: the fallbacks.
History = Mapping[tuple[str, str], RunTimes]
Spread = tuple[float, float, float]
UNKNOWN: Spread = (inf, inf, inf)


def run_times_of(history: History, project: str, user: str) -> RunTimes | None:
    """Return the run times that are most specific to a user in a project."""
    return history.get((project, user)) or history.get((project, "")) or history.get(("", ""))


def _widening(history: History, project: str, user: str) -> list[RunTimes]:
    """Return the run times of a user in a project, of the project and of the pool, as far as they exist."""
    found = (history.get(kind) for kind in ((project, user), (project, ""), ("", "")))
    return [runs for runs in found if runs is not None]


def run_spread(history: History, replica: PendingReplica) -> tuple[Spread, Basis | None]:
    """Return how long a queued replica will run, and the basis; None is its time limit."""
    past, limit = run_times_of(history, replica.project, replica.user), replica.max_time_s
    if past is None or (limit is not None and past.samples < MIN_TRUSTED_SAMPLES):
        return (UNKNOWN if limit is None else (limit, limit, limit)), None
    low, mid, high = past.spread
    if limit is None:
        return (low, mid, high), Basis(past)
    return (min(low, limit), min(mid, limit), min(high, limit)), Basis(past) if mid < limit else None


class Foreseen:
    """The expected end of each running replica: ``ends[i]`` belongs to ``keys[i]``.

    The three columns of ``ends`` are the early, likely and late time; infinite if unknown. A run is expected to end
    after the run time of similar past runs, and at its time limit at the latest. For a run in progress, only longer
    past runs count: of its user in the project, else of the project, else of the pool. Without any, its end is its time
    limit, or unknown. A few past runs say less than a time limit. ``past[i]`` is the basis; None is a time limit, or a
    requested end. ``placed`` are indexes of replicas on known nodes: ``row`` and ``gpu`` (thousandths) say where.
    ``outlasted`` counts the runs that have outlasted all past ones and have no known end.
    """

    def __init__(self, demand: Demand, c: ClusterState, outcome: CycleOutcome, now: float, history: History) -> None:
        self.keys: list[ReplicaKey] = list(demand.running)
        runs = list(demand.running.values())
        started = np.array([r.started_at for r in runs], np.float64)[:, None]
        limits = np.array([inf if r.expected_end is None else r.expected_end for r in runs], np.float64)[:, None]
        accounts = [demand.accounts[key] for key in self.keys]
        names = {a.pair: (a.project, a.user) for a in accounts}
        ledger = demand.ledger
        known = {
            pair: _widening(history, ledger.projects[project].name, ledger.users[user].name)
            for pair, (project, user) in names.items()
        }
        age = np.maximum(now - started, 0.0)
        took, bases = _run_times(known, [a.pair for a in accounts], age[:, 0])
        usual = np.array([past[0].spread[2] if (past := known[a.pair]) else inf for a in accounts])[:, None]
        samples = np.array([past[0].samples if (past := known[a.pair]) else 0 for a in accounts], np.int64)[:, None]
        vague = (limits < inf) & ((samples < MIN_TRUSTED_SAMPLES) | (age >= usual))
        latest = np.maximum(limits, now)
        self.ends: Floats = np.where(vague, latest, np.minimum(np.maximum(started + took, now), latest))
        by_limit = self.ends[:, 1] >= limits[:, 0]
        self.past = [None if at else basis for at, basis in zip(by_limit.tolist(), bases, strict=True)]
        self.outlasted = int(np.count_nonzero((samples[:, 0] > 0) & np.isinf(self.ends[:, 1])))
        self.leaving = {at for at, key in enumerate(self.keys) if key in outcome.leaving}
        for at in self.leaving:
            self.ends[at], self.past[at] = (now, now, now + GRACE_S), None

        claims = [c.claims.get(key) for key in self.keys]
        held = [(i, claim) for i, claim in enumerate(claims) if claim is not None and claim.row >= 0]
        self._grid = c.gpu_free.shape
        self.placed = np.array([i for i, _ in held], np.int64)
        self.row = np.array([claim.row for _, claim in held], np.int64)
        self.gpu = np.array([claim.gpu for _, claim in held], np.int64).reshape(-1, c.slots)

    @property
    def known(self) -> Ints:
        """Return the runs with a known end, the first to end first."""
        order = np.argsort(self.ends[:, 1], kind="stable")
        return np.asarray(order[self.ends[order, 1] < inf])

    def busy_until(self, now: float, which: int = 1) -> Floats:
        """Return when the last replica on each GPU has ended, [N, G]: ``now`` for unused GPUs."""
        until = np.full(self._grid, now)
        held = np.where(self.gpu > 0, self.ends[self.placed, which][:, None], now)
        np.maximum.at(until, self.row, held)
        return until

    def words(self, which: Iterable[int]) -> str:
        """Return the basis of the ends of some runs, in words."""
        found = [self.past[i] for i in which if i not in self.leaving]
        return basis_words(sum(past is None for past in found), [past for past in found if past is not None])


def _run_times(
    known: Mapping[int, Sequence[RunTimes]], pairs: Sequence[int], ages: Floats
) -> tuple[Floats, list[Basis | None]]:
    """Return the total run time of each ([N, 3]: early, likely, late; infinite: unknown), and its basis.

    ``known`` has the run times for each pair of a project and a user, the most specific first.
    """
    took: Floats = np.full((len(pairs), 3), inf)
    bases: list[Basis | None] = [None] * len(pairs)
    of_pair = np.array(pairs, np.int64)
    for pair, histories in known.items():
        left = np.flatnonzero(of_pair == pair)
        for runs in histories:
            values = np.array(runs.seconds or sorted(set(runs.spread)))
            shorter = np.searchsorted(values, ages[left], side="right")
            longer = len(values) - shorter
            for at, before, after in zip(left.tolist(), shorter.tolist(), longer.tolist(), strict=True):
                if not before:
                    took[at], bases[at] = runs.spread, Basis(runs)
                elif after:
                    took[at] = [values[before + ceil(part * after) - 1] for part in QUARTILES]
                    bases[at] = Basis(runs, after)
            left = left[longer == 0]
    return took, bases


def basis_words(limits: int, past: Sequence[Basis]) -> str:
    """Return the basis in words: ``2 time limits of jobs ahead of it and the median of 14 past jobs``."""
    parts = []
    if not limits and not past:
        return "jobs that are stopping"
    if limits:
        parts.append(f"{_many(limits, 'time limit')} of jobs ahead of it")
    if usual := {id(basis.runs): basis.runs.samples for basis in past if basis.longer is None}:
        parts.append(f"the median of {_many(sum(usual.values()), 'past job')}")
    if longer := {(id(basis.runs), basis.longer): basis.longer for basis in past if basis.longer is not None}:
        most = max(longer.values())
        parts.append(f"{_many(most, 'past job')} that ran longer than a job ahead of it")
    return " and ".join(parts)


def _many(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")
