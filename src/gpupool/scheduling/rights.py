"""Who may take GPUs from whom, as one cycle sees it: the rules of ``fairshare`` and ``guarantees``, asked of pieces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from gpupool.scheduling.claims import Bools, Ints
from gpupool.scheduling.guarantees import Portions, safe
from gpupool.scheduling.holders import Floats
from gpupool.scheduling.ledger import Account
from gpupool.scheduling.session import Session
from gpupool.scheduling.victims import VictimPool


class Rights:
    """A project may take back as far as its quota or its fair share, from those that hold more than theirs.

    Work that asks for a GPU model by name may also take as far as the project's quota of that model, from those that
    hold GPUs of it without such a quota. Nobody takes what is held within one.
    """

    def __init__(self, session: Session) -> None:
        self._shares, self._ledger, self._demand = session.shares, session.ledger, session.demand
        self.models = session.guarantees()

    @cached_property
    def over(self) -> Floats:
        """How many times its fair share each project holds when somebody first asks."""
        fair = self._shares.fair
        return np.asarray(self._ledger.used[: len(fair)] / np.maximum(fair, 1.0))

    # --- whoever it is taken from

    def may_reclaim(self, account: Account, extra: int) -> bool:
        """Whether somebody may take ``extra`` thousandths from anybody."""
        return self._shares.may_reclaim(account.project, extra) or self.models.may_take(account, extra)

    def promised(self, project: int, extra: int) -> bool:
        """Whether a project would have been promised all that it holds, with ``extra`` thousandths more."""
        return self._shares.promised(project, extra)

    def any_promised(self, projects: Sequence[int]) -> bool:
        """Whether some of the projects may have been promised something."""
        return bool(self._wanted) or bool(self._shares.any_promised()[list(projects)].any())

    def budget(self, project: int) -> int:
        """The most thousandths that a project may take now."""
        return max(self._shares.budget(project), self.models.budget(project))

    def budgets(self) -> dict[int, int]:
        """``budget`` of every project."""
        budgets = dict(enumerate(self._shares.budgets().tolist()))
        return budgets | {project: self.budget(project) for project, _ in self._wanted}

    def takers(self) -> set[int]:
        """The projects that may take anything from anybody."""
        takers = set(np.flatnonzero(self._shares.takers()).tolist())
        return takers | {project for project, _ in self._wanted}

    def sources(self) -> Bools:
        """The projects from which anybody may take."""
        above = self._shares.reclaimable()
        return above | self.models.holders_at_risk(self._demand.holders, self._wanted) if self._wanted else above

    @cached_property
    def _wanted(self) -> list[tuple[int, int]]:
        """Projects that may take GPUs of a model for work that waits, and the models, when somebody first asks."""
        if not self.models:
            return []
        waiting = {(g.account.project, g.account.model) for g in self._demand.groups()}
        return sorted(of_model for of_model in waiting if self.models.wanted(*of_model))

    # --- from whom: by what one is due

    def by_share(self, pool: VictimPool, project: int, extra: int, accepted: Bools) -> Bools:
        """The pieces that a project may take so that it holds ``extra`` thousandths more, the shielded left out.

        By what it is due: from those who hold more than they are due, and not what they are guaranteed. ``accepted``
        says which GPU models would do.
        """
        allowed = self._shares.victims(project, extra)[pool.pieces.project] & ~self._safe(pool, accepted)
        return allowed & pool.open(promised=self.promised(project, extra))

    def may_come(self, pool: VictimPool, project: int, extra: int) -> bool:
        """Whether more than ``by_share`` may be for somebody else, or later: they are left alone, or not by all."""
        every = self._shares.victims(project, extra)
        shielded = every[pool.pieces.project] & ~pool.open(promised=self.promised(project, extra))
        return bool(shielded.any() or (self._shares.reclaimable() & ~every).any())

    def standing(self, account: Account, extra: int) -> tuple[object, ...]:
        """What decides from whom one may take: where it is equal, projects may take from the same ones."""
        of_model = account if self.models.may_take(account, extra) else None
        promised = self.promised(account.project, extra)
        return (
            *self._shares.standing(account.project, extra),
            promised,
            of_model and (of_model.project, of_model.model),
        )

    def refuses(self, pool: VictimPool, project: int, extra: int, accepted: Bools) -> _Refused:
        """Judges lists of victims ``by_share``: which of them may not go when those before are gone."""
        return _Refused(self, pool, project, extra, accepted)

    def may_take(self, project: int, extra: int, victim: int, freed: Counter[int]) -> bool:
        """Whether the next piece of work of ``victim`` may be taken when ``freed`` (by project) is gone already."""
        return self._shares.may_take(project, extra, victim, freed)

    def _safe(self, pool: VictimPool, accepted: Bools) -> Bools:
        if not self.models:
            return np.zeros(len(pool.pieces), np.bool_)
        portions = self._portions(pool)
        return safe(portions, self.models.at_risk_of_all(pool.pieces.project, portions), accepted)

    def _portions(self, pool: VictimPool) -> Portions:
        return self.models.portions(pool.holders, pool.pieces.slot, pool.pieces.gang)

    # --- from whom: by a quota of a model

    def by_model(self, pool: VictimPool, account: Account) -> Bools:
        """The pieces of others on GPUs of the model that somebody asks for by name, which nobody guarantees them."""
        p = pool.pieces
        risk = self.models.at_risk_of_all(p.project, self._portions(pool))
        return np.asarray((risk & self.models.gpus_of(account)).any(axis=1) & (p.project != account.project))

    def refuses_model(self, pool: VictimPool, account: Account) -> _RefusedModel:
        """Judges lists of victims ``by_model``, as ``refuses`` does."""
        return _RefusedModel(self, pool, account)


class _Refused:
    def __init__(self, rights: Rights, pool: VictimPool, project: int, extra: int, accepted: Bools) -> None:
        self._rights, self._holders, self._project, self._extra = rights, pool.holders, project, extra
        self._models, self._accepted = rights.models, accepted

    def __call__(self, units: Sequence[Sequence[int]]) -> list[int]:
        freed, of_models = Counter[int](), dict[int, Ints]()
        refused = []
        for at, slots in enumerate(units):
            project = int(self._holders.project[slots[0]])
            allowed = self._rights.may_take(self._project, self._extra, project, freed)
            if not allowed or (self._models and self._safe(project, slots, of_models)):
                refused.append(at)
                continue
            freed[project] += int(self._holders.permille[slots].sum())
            if self._models:
                self._models.free(project, self._models.portion(self._holders, slots), of_models)
        return refused

    def _safe(self, project: int, slots: Sequence[int], freed: dict[int, Ints]) -> bool:
        portion = self._models.portion(self._holders, slots)
        return bool(safe(portion, self._models.at_risk(project, portion, freed), self._accepted)[0])


class _RefusedModel:
    def __init__(self, rights: Rights, pool: VictimPool, account: Account) -> None:
        self._models, self._holders, self._gpus = rights.models, pool.holders, rights.models.gpus_of(account)

    def __call__(self, units: Sequence[Sequence[int]]) -> list[int]:
        freed: dict[int, Ints] = {}
        refused = []
        for at, slots in enumerate(units):
            project = int(self._holders.project[slots[0]])
            portion = self._models.portion(self._holders, slots)
            if (self._models.at_risk(project, portion, freed) & self._gpus).any():
                self._models.free(project, portion, freed)
            else:
                refused.append(at)
        return refused
