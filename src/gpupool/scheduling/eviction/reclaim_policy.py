"""The rules of reclaim in one cycle: which project may take GPUs from which."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from gpupool.scheduling.eviction.victims import VictimPool
from gpupool.scheduling.fairness.model_quotas import Portions, safe
from gpupool.scheduling.session import SchedulingSession
from gpupool.scheduling.state.allocation import Bools, Ints
from gpupool.scheduling.state.ledger import Account
from gpupool.scheduling.state.running import Floats


class ReclaimPolicy:
    """A project may reclaim up to its quota or its fair share, from projects that hold more than theirs.

    Work that requests a GPU model by name may also reclaim up to the project's quota of that model, from projects that
    hold GPUs of it without such a quota. GPUs within a model quota are never reclaimed.
    """

    def __init__(self, session: SchedulingSession) -> None:
        self._shares, self._ledger, self._demand = session.shares, session.ledger, session.demand
        self.models = session.guarantees()

    @cached_property
    def over(self) -> Floats:
        """Return the ratio of held GPUs to fair share for each project, as of the first call."""
        fair = self._shares.fair
        return np.asarray(self._ledger.used[: len(fair)] / np.maximum(fair, 1.0))

    # --- independent of the victim

    def may_reclaim(self, account: Account, extra: int) -> bool:
        """Return True if the account may take ``extra`` thousandths from any project."""
        return self._shares.may_reclaim(account.project, extra) or self.models.may_take(account, extra)

    def promised(self, project: int, extra: int) -> bool:
        """Return True if everything that a project holds, with ``extra`` more, is within a configured quota."""
        return self._shares.promised(project, extra)

    def any_promised(self, projects: Sequence[int]) -> bool:
        """Return True if some of the projects may have a configured quota left."""
        return bool(self._wanted) or bool(self._shares.any_promised()[list(projects)].any())

    def budget(self, project: int) -> int:
        """Return the most thousandths that a project may take now."""
        return max(self._shares.budget(project), self.models.budget(project))

    def budgets(self) -> Ints:
        """Return ``budget`` of every project."""
        budgets = self._shares.budgets()
        for project, _ in self._wanted:
            budgets[project] = self.budget(project)
        return budgets

    def takers(self) -> set[int]:
        """Return the projects that may take GPUs from others."""
        takers = set(np.flatnonzero(self._shares.takers()).tolist())
        return takers | {project for project, _ in self._wanted}

    def sources(self) -> Bools:
        """Return the projects that others may take from."""
        above = self._shares.reclaimable()
        return above | self.models.holders_at_risk(self._demand.holders, self._wanted) if self._wanted else above

    @cached_property
    def _wanted(self) -> list[tuple[int, int]]:
        """Return (project, model) pairs for which waiting work may use a model quota, as of the first call."""
        if not self.models:
            return []
        waiting = {(g.account.project, g.account.model) for g in self._demand.groups()}
        return sorted(of_model for of_model in waiting if self.models.wanted(*of_model))

    # --- victims by quota and fair share

    def by_share(self, pool: VictimPool, project: int, extra: int, accepted: Bools) -> Bools:
        """Return the pieces that a project may take by fair share to hold ``extra`` thousandths more.

        Shielded pieces and guaranteed GPUs are left out. ``accepted`` are the suitable GPU models.
        """
        allowed = self._shares.takes(project, extra, pool.pieces.project, pool.pieces.weight)
        return allowed & ~self._safe(pool, accepted) & pool.open(promised=self.promised(project, extra))

    def open_to_whole(self, pool: VictimPool, accepted: Bools, *, promised: bool) -> Bools:
        """Return the pieces that whole-GPU work may take; see ``whole_claims``."""
        return np.asarray(pool.alive & ~self._safe(pool, accepted) & pool.open(promised=promised))

    def may_take_no_more(self, others: Ints, project: int, extra: int, pieces: Sequence[int]) -> Bools:
        """Return which projects may take nothing ``by_share`` that ``project`` may not take."""
        return self._shares.may_take_no_more(others, project, extra, pieces)

    def stands_like(self, others: Ints, project: int, extra: int, pieces: Sequence[int]) -> Bools:
        """Return which projects have the ``standing`` of ``project``, apart from quotas of GPU models."""
        return self._shares.stands_like(others, project, extra, pieces)

    def standing(self, account: Account, extra: int, pieces: Sequence[int]) -> tuple[object, ...]:
        """Return a key of everything that decides ``by_share``: equal keys have equal victims."""
        of_model = account if self.models.may_take(account, extra) else None
        promised = self.promised(account.project, extra)
        return (
            *self._shares.standing(account.project, extra, pieces),
            promised,
            of_model and (of_model.project, of_model.model),
        )

    def refuses(self, pool: VictimPool, project: int, extra: int, accepted: Bools) -> _Refused:
        """Return a function that finds the victims ``by_share`` that may not go once the previous ones are gone."""
        return _Refused(self, pool, project, extra, accepted)

    def may_take(self, project: int, extra: int, victim: int, piece: int, freed: Counter[int]) -> bool:
        """Return True if the next piece of ``victim`` may be taken when ``freed`` (by project) is gone already."""
        return self._shares.may_take(project, extra, victim, piece, freed)

    def _safe(self, pool: VictimPool, accepted: Bools) -> Bools:
        if not self.models:
            return np.zeros(len(pool.pieces), np.bool_)
        portions = self._portions(pool)
        return safe(portions, self.models.at_risk_of_all(pool.pieces.project, portions), accepted)

    def _portions(self, pool: VictimPool) -> Portions:
        return self.models.portions(pool.holders, pool.pieces.slot, pool.pieces.gang)

    # --- victims by a quota of a model

    def by_model(self, pool: VictimPool, account: Account) -> Bools:
        """Return the pieces of others on GPUs of the requested model that no quota guarantees."""
        p = pool.pieces
        risk = self.models.at_risk_of_all(p.project, self._portions(pool))
        return np.asarray((risk & self.models.gpus_of(account)).any(axis=1) & (p.project != account.project))

    def takes_safe(self, pool: VictimPool, slots: Sequence[int], accepted: Bools) -> bool:
        """Return True if the eviction of some replicas together would take GPUs within a model quota."""
        if not self.models:
            return False
        freed = dict[int, Ints]()
        for slot in slots:
            project, portion = int(pool.holders.project[slot]), self.models.portion(pool.holders, [slot])
            if safe(portion, self.models.at_risk(project, portion, freed), accepted)[0]:
                return True
            self.models.free(project, portion, freed)
        return False

    def refuses_model(self, pool: VictimPool, account: Account) -> _RefusedModel:
        """Return the function of ``refuses`` for victims ``by_model``."""
        return _RefusedModel(self, pool, account)


class _Refused:
    def __init__(self, rights: ReclaimPolicy, pool: VictimPool, project: int, extra: int, accepted: Bools) -> None:
        self._rights, self._holders, self._project, self._extra = rights, pool.holders, project, extra
        self._models, self._accepted = rights.models, accepted

    def __call__(self, units: Sequence[Sequence[int]]) -> list[int]:
        freed, of_models = Counter[int](), dict[int, Ints]()
        refused = []
        for at, slots in enumerate(units):
            project = int(self._holders.project[slots[0]])
            piece = int(self._holders.permille[slots].sum())
            allowed = self._rights.may_take(self._project, self._extra, project, piece, freed)
            if not allowed or (self._models and self._safe(project, slots, of_models)):
                refused.append(at)
                continue
            freed[project] += piece
            if self._models:
                self._models.free(project, self._models.portion(self._holders, slots), of_models)
        return refused

    def _safe(self, project: int, slots: Sequence[int], freed: dict[int, Ints]) -> bool:
        portion = self._models.portion(self._holders, slots)
        return bool(safe(portion, self._models.at_risk(project, portion, freed), self._accepted)[0])


class _RefusedModel:
    def __init__(self, rights: ReclaimPolicy, pool: VictimPool, account: Account) -> None:
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
