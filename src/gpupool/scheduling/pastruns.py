"""How long work of a kind ran so far, kept up to date end by end: what to expect of more of it, without being told."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil

DECAY = 0.97  # what the weight of a run is multiplied by for each one of its kind that ends after it
FEW = 5  # runs of a kind; with fewer, those of a wider kind are asked
RECENT = 32  # runs of a kind of which each is remembered
LIKELY = 0.9  # the part of them that ended in the time called likely
MOST_KINDS = 10_000  # remembered; the one that was added to longest ago is forgotten

_Kind = tuple[str | int, ...]


@dataclass(slots=True)
class _Runs:
    """The runs of one kind: how many, their decayed mean, and the latest."""

    count: int = 0
    weight: float = 0.0
    total: float = 0.0
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))

    def add(self, seconds: float) -> None:
        self.count += 1
        self.weight = self.weight * DECAY + 1.0
        self.total = self.total * DECAY + seconds
        self.recent.append(seconds)


@dataclass(slots=True)
class PastRuns:
    """Run times in seconds by (project, user, GPU thousandths), the later ones counting more.

    A kind with few runs is judged by those of its user in the project, then by the project's, then by the pool's.
    """

    _kinds: OrderedDict[_Kind, _Runs] = field(default_factory=OrderedDict)

    def add(self, project: str, user: str, permille: int, seconds: float) -> None:
        """A replica of that kind ran for ``seconds`` and ended by itself."""
        for kind in _widening(project, user, permille):
            self._kinds.setdefault(kind, _Runs()).add(max(0.0, seconds))
            self._kinds.move_to_end(kind)
        while len(self._kinds) > MOST_KINDS:
            self._kinds.popitem(last=False)

    def mean_s(self, project: str, user: str, permille: int) -> float | None:
        """The decayed mean; None while the pool has seen too few ends."""
        runs = self._of(project, user, permille)
        return None if runs is None else runs.total / runs.weight

    def likely_s(self, project: str, user: str, permille: int) -> float | None:
        """In how long nine of ten of the latest runs had ended; None while the pool has seen too few ends."""
        runs = self._of(project, user, permille)
        return None if runs is None else sorted(runs.recent)[ceil(LIKELY * len(runs.recent)) - 1]

    @property
    def known(self) -> bool:
        """Whether anything can be expected of anybody."""
        return self._of("", "", 0) is not None

    def _of(self, project: str, user: str, permille: int) -> _Runs | None:
        known = (self._kinds.get(kind) for kind in _widening(project, user, permille))
        return next((runs for runs in known if runs is not None and runs.count >= FEW), None)


def _widening(project: str, user: str, permille: int) -> Iterator[_Kind]:
    yield project, user, permille
    yield project, user
    yield (project,)
    yield ()
