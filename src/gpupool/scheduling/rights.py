"""Who may take GPUs from whom, as one cycle sees it: the rules of ``fairshare``, asked about victims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from gpupool.scheduling.claims import Bools, Ints
from gpupool.scheduling.holders import Floats
from gpupool.scheduling.session import Session
from gpupool.scheduling.victims import VictimPool


class Rights:
    """A project may take back as far as its quota or its fair share, from those that hold more than theirs."""

    def __init__(self, session: Session) -> None:
        self._shares, self._ledger = session.shares, session.ledger

    @cached_property
    def over(self) -> Floats:
        """How many times its fair share each project holds when somebody first asks."""
        fair = self._shares.fair
        return np.asarray(self._ledger.used[: len(fair)] / np.maximum(fair, 1.0))

    def above(self, project: int) -> bool:
        """Whether a project holds more than it is due, promises to it left out."""
        return self._shares.above(project)

    def may_reclaim(self, project: int, extra: int) -> bool:
        """Whether a project may take ``extra`` thousandths from anybody."""
        return self._shares.may_reclaim(project, extra)

    def promised(self, project: int, extra: int) -> bool:
        """Whether a project would have been promised all that it holds, with ``extra`` thousandths more."""
        return self._shares.promised(project, extra)

    def any_promised(self) -> Bools:
        """Which projects may have been promised something."""
        return self._shares.any_promised()

    def budget(self, project: int) -> int:
        """The most thousandths that a project may take now."""
        return self._shares.budget(project)

    def takers(self) -> Bools:
        """The projects that may take anything from anybody."""
        return self._shares.takers()

    def budgets(self) -> Ints:
        """The most thousandths that each project may take now."""
        return self._shares.budgets()

    def reclaimable(self) -> Bools:
        """The projects from which anybody may take."""
        return self._shares.reclaimable()

    def victims(self, project: int, extra: int) -> Bools:
        """The projects from which a project may take so that it holds ``extra`` thousandths more."""
        return self._shares.victims(project, extra)

    def standing(self, project: int, extra: int) -> tuple[object, ...]:
        """What decides about ``victims``: where it is equal, projects may take from the same ones."""
        return self._shares.standing(project, extra)

    def refuses(self, pool: VictimPool, project: int, extra: int) -> _Refused:
        """Judges lists of victims: which of them may not go when those before are gone."""
        return _Refused(self, pool, project, extra)

    def may_take(self, project: int, extra: int, victim: int, freed: Counter[int]) -> bool:
        """Whether the next piece of work of ``victim`` may be taken when ``freed`` (by project) is gone already."""
        return self._shares.may_take(project, extra, victim, freed)


class _Refused:
    def __init__(self, rights: Rights, pool: VictimPool, project: int, extra: int) -> None:
        self._rights, self._holders, self._project, self._extra = rights, pool.holders, project, extra

    def __call__(self, units: Sequence[Sequence[int]]) -> list[int]:
        freed: Counter[int] = Counter()
        refused = []
        for at, slots in enumerate(units):
            project = int(self._holders.project[slots[0]])
            if self._rights.may_take(self._project, self._extra, project, freed):
                freed[project] += int(self._holders.permille[slots].sum())
            else:
                refused.append(at)
        return refused
