"""How long work of a kind ran so far, kept up to date end by end: what to expect of more of it, without being told."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

DECAY = 0.97  # what the weight of a run is multiplied by for each one of its kind that ends after it
FEW = 5  # runs of a kind; with fewer, those of a wider kind are asked
MOST_KINDS = 10_000  # remembered; the one that was added to longest ago is forgotten

_Kind = tuple[str | int, ...]


@dataclass(slots=True)
class _Runs:
    """The runs of one kind: how many, and their decayed mean."""

    count: int = 0
    weight: float = 0.0
    total: float = 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.weight = self.weight * DECAY + 1.0
        self.total = self.total * DECAY + seconds


@dataclass(slots=True)
class PastRuns:
    """Mean run times in seconds by (project, user, GPU thousandths), the later ones counting more.

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
        for kind in _widening(project, user, permille):
            runs = self._kinds.get(kind)
            if runs is not None and runs.count >= FEW:
                return runs.total / runs.weight
        return None


def _widening(project: str, user: str, permille: int) -> Iterator[_Kind]:
    yield project, user, permille
    yield project, user
    yield (project,)
    yield ()
