"""Quotas of GPU models: which GPUs of a model are guaranteed to a project.

The core of a project is its protected work and everything that it holds within its quotas of models. The core must be
within the project's quota, and the cores of a department's projects within the department's. While this is so, GPUs
held within a quota of a model are never taken. A workload that asks for the model by name may then take such GPUs from
every project that holds them without this guarantee, as long as the cores stay within the quotas.

There is no endless cycle: GPUs that were taken by this right are guaranteed, and guaranteed GPUs are never taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gpupool.domain.nodes.gpu import GpuRequest
from gpupool.scheduling.state.allocation import Bools, Claim, Ints
from gpupool.scheduling.state.cluster import ClusterState
from gpupool.scheduling.state.ledger import Account, Ledger
from gpupool.scheduling.state.running import NO_GANG, RunningTable
from gpupool.scheduling.state.undo import UndoLog


class _Quota(NamedTuple):
    """One project's quota of a model: the model's number in the ledger, and the GPU models that the name covers."""

    name: str
    model: int
    permille: int
    gpus: Bools


class Portions(NamedTuple):
    """Thousandths of K GPU models that n pieces of work hold, and the minimum with which they run; [n, K]."""

    amount: Ints
    least: Ints


def safe(pieces: Portions, risk: Bools, accepted: Bools) -> Bools:
    """Return which of n pieces are protected from work that accepts some GPU models; [n].

    ``risk`` marks the models of which a piece is not guaranteed its GPUs. Work that would get only GPUs that are
    guaranteed to others takes nothing.
    """
    return np.asarray(((pieces.amount > 0) & ~risk).any(axis=1) & ~(risk & accepted).any(axis=1))


class Guarantees:
    """Thousandths that P projects hold of the K GPU models of a cluster, during one cycle.

    ``used`` counts everything, ``firm`` protected work. ``promised`` is counted in ``used`` but held by nobody yet.
    ``reserved`` (of protected work: ``reserved_firm``) is the part of that which may never be used, as in
    ``fair_share.Shares``. Without any quota of a model nothing is counted and nothing is guaranteed.
    """

    def __init__(self, ledger: Ledger, cluster: ClusterState) -> None:
        self._ledger, self._cluster = ledger, cluster
        self._quotas: dict[int, list[_Quota]] = {}
        self._names: set[str] = set()
        for project, model, name, permille in ledger.model_quotas():
            accepts = GpuRequest(models=(name,)).accepts_model
            gpus = np.array([False, *map(accepts, cluster.models[1:])])
            self._quotas.setdefault(project, []).append(_Quota(name, model, permille, gpus))
            self._names.add(name)
        shape = len(ledger.projects), len(cluster.models)
        self._amounts = np.zeros((0, shape[1]), np.int64)
        self.used, self.firm = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        self.promised, self.reserved = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        self.reserved_firm = np.zeros(shape, np.int64)

    def __bool__(self) -> bool:
        """Return whether any project has a quota of a model."""
        return bool(self._quotas)

    # --- held GPUs

    def take_over(self, holders: RunningTable, leaving: Iterable[int]) -> None:
        """Count all running replicas, except those in the slots ``leaving``."""
        h = holders
        self._amounts = np.zeros((len(h.row), len(self._cluster.models)), np.int64)
        np.add.at(self._amounts, (np.arange(len(h.row))[:, None], self._cluster.model[h.row]), h.gpu)
        self._amounts[h.row < 0] = 0
        stays = h.row >= 0
        stays[list(leaving)] = False
        np.add.at(self.used, h.project[stays], self._amounts[stays])
        stays &= ~h.evictable
        np.add.at(self.firm, h.project[stays], self._amounts[stays])

    def count(self, log: UndoLog, account: Account, claim: Claim, sign: int) -> None:
        """Count a claim that is charged (``sign`` 1) or taken back (-1)."""
        amount = sign * self._of(claim)
        log.add(self.used, account.project, amount)
        if not account.preemptible:
            log.add(self.firm, account.project, amount)

    def promise(self, account: Account, claim: Claim, sign: int, *, reserved: bool) -> None:
        """Count a charged claim as held by nobody yet, or (``sign`` -1) no longer as such."""
        amount = sign * self._of(claim)
        self.promised[account.project] += amount
        if reserved:
            self.reserved[account.project] += amount
            self.reserved_firm[account.project] += amount * (not account.preemptible)

    def _of(self, claim: Claim) -> Ints:
        amount = np.zeros(self.used.shape[1], np.int64)
        if claim.row >= 0:
            np.add.at(amount, self._cluster.model[claim.row], claim.gpu)
        return amount

    # --- rights to take

    def wanted(self, project: int, model: int) -> bool:
        """Return whether a project may take anything of a model, by its number in the ledger (-1: no model)."""
        quota = self._quota(project, model)
        return quota is not None and self._room(project, quota) > 0

    def may_take(self, account: Account, extra: int) -> bool:
        """Return whether work that asks for its model by name may take ``extra`` thousandths of it."""
        quota = self._quota(account.project, account.model)
        return quota is not None and extra <= self._room(account.project, quota)

    def budget(self, project: int) -> int:
        """Return the most thousandths that a project may take of any one model."""
        return max((self._room(project, quota) for quota in self._quotas.get(project, ())), default=0)

    def of_interest(self, models: Sequence[str]) -> bool:
        """Return whether ``models`` is a single model of which some project has a quota."""
        return len(models) == 1 and models[0].lower() in self._names

    def gpus_of(self, account: Account) -> Bools:
        """Return which GPU models are the one that an account asks for by name and has a quota of."""
        quota = self._quota(account.project, account.model)
        return np.zeros(self.used.shape[1], np.bool_) if quota is None else quota.gpus

    def held_of(self, project: int, gpus: Bools) -> tuple[int, int]:
        """Return what a project holds of some GPU models, and its quota of them."""
        held = (self.used[project] - self.promised[project])[gpus].sum()
        return int(held), sum(q.permille for q in self._quotas.get(project, ()) if (q.gpus & gpus).any())

    def of_project(self, project: int) -> list[tuple[str, int, int]]:
        """Return a project's quotas of models: the name, the quota, and the held part of it."""
        quotas = self._quotas.get(project, ())
        return sorted((quota.name, quota.permille, self.held_of(project, quota.gpus)[0]) for quota in quotas)

    def _quota(self, project: int, model: int) -> _Quota | None:
        return next((quota for quota in self._quotas.get(project, ()) if quota.model == model), None)

    def _room(self, project: int, quota: _Quota) -> int:
        claimed = self.used[project] - self.reserved[project]
        return min(quota.permille - int(claimed[quota.gpus].sum()), self._core_room(project))

    def _core_room(self, project: int) -> int:
        """Return how much the core of a project may grow within its quota and that of its department."""
        ledger, dept = self._ledger, int(self._ledger.dept[project])
        room = int(ledger.quota[project]) - self._core(project)
        if ledger.departments[dept] is None:
            return room
        inside = np.flatnonzero(ledger.dept[: len(self.used)] == dept).tolist()
        return min(room, int(ledger.dept_quota[dept]) - sum(map(self._core, inside)))

    def _core(self, project: int) -> int:
        core = int(self._ledger.firm[project] - self.reserved_firm[project].sum())
        claimed = self.used[project] - self.reserved[project]
        firm = self.firm[project] - self.reserved_firm[project]
        for quota in self._quotas.get(project, ()):
            within = min(int(claimed[quota.gpus].sum()), quota.permille)
            core += max(0, within - int(firm[quota.gpus].sum()))
        return core

    # --- guaranteed GPUs

    def at_risk(self, project: int, pieces: Portions, freed: Mapping[int, Ints]) -> Bools:
        """Return on which GPU models each of some pieces is not guaranteed, ``freed`` being gone already; [n, K].

        A piece is guaranteed as long as the project could take it back at once. So a gang that grew beyond a quota
        loses only its growth.
        """
        risk = np.asarray(pieces.amount > 0)
        if project in self._quotas and self._core_room(project) >= 0:
            held = self.used[project] - self.promised[project] - freed.get(project, 0)
            for _, _, permille, gpus in self._quotas[project]:
                others = held[gpus].sum() - pieces.amount[:, gpus].sum(axis=1)
                within = pieces.least[:, gpus].sum(axis=1) + others <= permille
                risk[within[:, None] & gpus] = False
        return risk

    def at_risk_of_all(self, projects: Ints, pieces: Portions) -> Bools:
        """Return ``at_risk`` of pieces of many projects, with nothing freed."""
        risk = np.asarray(pieces.amount > 0)
        for project in self._quotas:
            mine = np.flatnonzero(projects == project)
            if len(mine):
                risk[mine] = self.at_risk(project, Portions(pieces.amount[mine], pieces.least[mine]), {})
        return risk

    def free(self, project: int, pieces: Portions, freed: dict[int, Ints]) -> None:
        """Add to ``freed`` the GPUs that a project held in some pieces."""
        freed[project] = freed.get(project, 0) + pieces.amount.sum(axis=0)

    def portions(self, holders: RunningTable, slots: Ints, gangs: Ints) -> Portions:
        """Return the freed GPUs with each of ``slots``; where one is negative, with the whole gang in ``gangs``."""
        width = len(holders.gang_size)
        members = holders.gang != NO_GANG
        of_gangs, size = np.zeros((width, self.used.shape[1]), np.int64), np.zeros(width, np.int64)
        np.add.at(of_gangs, holders.gang[members], self._amounts[members])
        np.add.at(size, holders.gang[members], 1)
        least = of_gangs * holders.gang_least[:, None] // np.maximum(size, 1)[:, None]
        single = (slots >= 0)[:, None]
        mine = self._amounts[slots]
        return Portions(np.where(single, mine, of_gangs[gangs]), np.where(single, mine, least[gangs]))

    def portion(self, holders: RunningTable, slots: Sequence[int]) -> Portions:
        """Return the freed GPUs with one replica, or with several that are all members of a gang."""
        amount = self._amounts[list(slots)].sum(axis=0)[None]
        if len(slots) == 1:
            return Portions(amount, amount)
        return Portions(amount, amount * int(holders.gang_least[holders.gang[slots[0]]]) // len(slots))

    def holders_at_risk(self, holders: RunningTable, wanted: Iterable[tuple[int, int]]) -> Bools:
        """Return which projects hold GPUs of models that are ``wanted`` (project, model in the ledger)."""
        gpus = np.zeros(self.used.shape[1], np.bool_)
        for project, model in wanted:
            quota = self._quota(project, model)
            gpus |= False if quota is None else quota.gpus
        found = np.zeros(len(self.used), np.bool_)
        found[holders.project[self._amounts[:, gpus].any(axis=1)]] = True
        return found
