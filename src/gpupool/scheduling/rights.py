"""Who may take GPUs from whom, as one cycle sees it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from gpupool.scheduling.cluster import Bools
from gpupool.scheduling.holders import Floats
from gpupool.scheduling.session import Session
from gpupool.scheduling.victims import VictimPool


class Rights:
    """A project may take back as far as its quota, from those that hold more than theirs.

    ``over`` says of each project how many times its quota it holds.
    """

    def __init__(self, session: Session) -> None:
        self._session, self._ledger = session, session.ledger
        count = len(self._ledger.projects)
        quota = np.maximum(self._ledger.quota[:count], 1000)
        self.over: Floats = self._ledger.used[:count] / quota

    def above(self, project: int, freed: int = 0) -> bool:
        """Whether a project holds more than it is due, promises to it left out, once ``freed`` is gone."""
        held = self._ledger.used[project] - self._session.promised[project] - freed
        return bool(held > self._ledger.quota[project])

    def may_reclaim(self, project: int, extra: int) -> bool:
        """Whether a project may take ``extra`` thousandths from anybody."""
        return not self._ledger.over_quota(project, extra)

    def budget(self, project: int) -> int:
        """The most thousandths that a project may take now."""
        return int(self._ledger.quota[project] - self._ledger.used[project])

    def reclaimable(self) -> Bools:
        """The projects from which anybody may take."""
        return np.array([self.above(project) for project in range(len(self._ledger.projects))], np.bool_)

    def victims(self, project: int, extra: int) -> Bools:  # noqa: ARG002 - asked of everybody alike
        """The projects from which a project may take so that it holds ``extra`` thousandths more."""
        above = self.reclaimable()
        above[project] = False
        return above

    def refuses(self, pool: VictimPool, project: int, extra: int) -> _Refused:
        """Judges lists of victims: which of them may not go when those before are gone."""
        return _Refused(self, pool, project, extra)


class _Refused:
    def __init__(self, rights: Rights, pool: VictimPool, project: int, extra: int) -> None:
        self._rights, self._holders, self._project, self._extra = rights, pool.holders, project, extra

    def __call__(self, units: Sequence[Sequence[int]]) -> list[int]:
        freed: Counter[int] = Counter()
        refused = []
        for at, slots in enumerate(units):
            project = int(self._holders.project[slots[0]])
            if self._rights.above(project, freed[project]):
                freed[project] += int(self._holders.permille[slots].sum())
            else:
                refused.append(at)
        return refused
