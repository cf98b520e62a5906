"""The order of a project's waiting work within a priority: by fairness among users, or the shortest expected first.

Each replica has a place in its queue: the time at which it counts as submitted. The place is fixed when the replica
joins the queue. Only work that is submitted within a bounded time after it can overtake it, so no replica waits for
ever. Past run times by kind of work, updated with each end, are the expectation for similar work.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from math import ceil

from gpupool.domain.units import WHOLE_GPU

MAX_LATE_S = 7 * 86400.0  # the most by which a long expected run moves a place back
TURN_LATE_S = 86400.0  # the least by which a turn moves a place back; until then the replica evicts nobody
DECAY = 0.97  # factor on the weight of a run for each later run of its kind
MIN_RUNS = 5  # runs of a kind; with fewer, a wider kind is used
MAX_RECENT = 32  # runs of a kind that are stored individually
LIKELY_QUANTILE = 0.9  # the part of them that ended within the likely time
MAX_KINDS = 10_000  # the kind that was used longest ago is dropped

_Kind = tuple[str | int, ...]


@dataclass(slots=True)
class _Runs:
    """The runs of one kind: the number, the decayed mean, and the latest."""

    count: int = 0
    weight: float = 0.0
    total: float = 0.0
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_RECENT))

    def add(self, seconds: float) -> None:
        self.count += 1
        self.weight = self.weight * DECAY + 1.0
        self.total = self.total * DECAY + seconds
        self.recent.append(seconds)


@dataclass(slots=True)
class PastRuns:
    """Run times in seconds by (project, user, GPU thousandths); later runs count more.

    With few runs of a kind, those of its user in the project are used, then the project's, then the pool's.
    """

    _kinds: OrderedDict[_Kind, _Runs] = field(default_factory=OrderedDict)

    def add(self, project: str, user: str, permille: int, seconds: float) -> None:
        """Add a replica of a kind that ran for ``seconds`` and ended by itself."""
        for kind in _widening(project, user, permille):
            self._kinds.setdefault(kind, _Runs()).add(max(0.0, seconds))
            self._kinds.move_to_end(kind)
        while len(self._kinds) > MAX_KINDS:
            self._kinds.popitem(last=False)

    def mean_s(self, project: str, user: str, permille: int) -> float | None:
        """Return the decayed mean; None with too few runs."""
        runs = self._of(project, user, permille)
        return None if runs is None else runs.total / runs.weight

    def likely_s(self, project: str, user: str, permille: int) -> float | None:
        """Return the time in which nine of ten of the latest runs ended; None with too few runs."""
        runs = self._of(project, user, permille)
        return None if runs is None else sorted(runs.recent)[ceil(LIKELY_QUANTILE * len(runs.recent)) - 1]

    @property
    def known(self) -> bool:
        """Return True if the pool has enough runs for any expectation."""
        return self._of("", "", 0) is not None

    def _of(self, project: str, user: str, permille: int) -> _Runs | None:
        known = (self._kinds.get(kind) for kind in _widening(project, user, permille))
        return next((runs for runs in known if runs is not None and runs.count >= MIN_RUNS), None)


def _widening(project: str, user: str, permille: int) -> Iterator[_Kind]:
    yield project, user, permille
    yield project, user
    yield (project,)
    yield ()


class Order(StrEnum):
    """The rule that orders replicas of one priority in a project."""

    FAIR = "fair"  # the user who holds less first, then the replica that queued first
    SHORTEST = "shortest"  # the least expected GPU time first; users do not matter


@dataclass(slots=True)
class Ordering:
    """The order in force, with past run times.

    ``turn_s``: a replica that has run for this long has had a turn, and waits behind those that have not; None: no
    turns.
    """

    order: Order = Order.FAIR
    turn_s: float | None = None
    past: PastRuns = field(default_factory=PastRuns)

    @property
    def by_user(self) -> bool:
        """Return whether the user who holds less comes first."""
        return self.order is Order.FAIR

    def late_s(self, project: str, user: str, permille: int, served_s: float) -> float:
        """Return by how many seconds later than its submission a replica counts as submitted.

        With SHORTEST, this is the expected GPU time in seconds of one GPU, from past runs, at most ``MAX_LATE_S``;
        ``permille`` is what it asks for, with its gang. A replica that has had a turn adds the time for which it ran,
        at least a day.
        """
        late = 0.0
        if self.order is Order.SHORTEST:
            expected = self.past.mean_s(project, user, permille)
            late = 0.0 if expected is None else min(MAX_LATE_S, expected * permille / WHOLE_GPU)
        return late + (max(TURN_LATE_S, served_s) if self.had_turn(served_s) else 0.0)

    def had_turn(self, served_s: float) -> bool:
        """Return whether a replica that ran for ``served_s``, over all its starts, has had a turn."""
        return self.turn_s is not None and served_s >= self.turn_s
