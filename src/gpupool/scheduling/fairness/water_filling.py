"""Water-filling: the fair shares of departments and projects, in thousandths of a GPU and never rounded.

The pool is divided among departments, then each part among projects. First each gets ``min(quota, demand)``; if the sum
exceeds the pool, in proportion to the quotas. The rest is divided by ``max(0, W + k (W - U))``, up to the demand of
each. ``W`` is the part of the weights of those that want more, ``U`` the part of recent use (``decayed_usage``). A
project without a department is on the level of departments. The sum is ``min(capacity, demand)``. After KAI's
proportion plugin.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gpupool.scheduling.state.allocation import EPSILON, Bools, Ints
from gpupool.scheduling.state.ledger import UNBOUNDED, Ledger

Floats = npt.NDArray[np.float64]


def fill(amount: Floats, pot: Ints, need: Floats, weight: Floats) -> Floats:
    """Return each pot's ``amount`` divided by weight, exactly, with none above ``need``.

    ``pot[i]`` is the pot from which ``i`` gets its part. The rest of a full ``i`` goes to the others of its pot.
    """
    given = np.zeros(len(need))
    at = np.flatnonzero((need > 0) & (weight > 0))
    if not len(at):
        return given
    ratio = need[at] / weight[at]
    order = np.lexsort((ratio, pot[at]))
    at, ratio = at[order], ratio[order]
    pots, needs, weights = pot[at], need[at], weight[at]
    total = np.bincount(pots, weights, len(amount))
    begins = np.searchsorted(pots, pots)
    drunk, heavy = _running(needs, begins), _running(weights, begins)
    full = drunk + ratio * np.maximum(total[pots] - heavy, 0.0) <= amount[pots]
    rest = amount - np.bincount(pots, needs * full, len(amount))
    thirsty = np.bincount(pots, weights * ~full, len(amount))
    level = np.maximum(rest, 0.0) / np.where(thirsty > 0, thirsty, 1.0)
    given[at] = np.where(full, needs, np.minimum(needs, weights * level[pots]))
    return given


def _running(values: Floats, begins: Ints) -> Floats:
    sums = np.concatenate([[0.0], values.cumsum()])
    return np.asarray(sums[1:] - sums[begins])


@dataclass(frozen=True, slots=True)
class DivisionLevel:
    """One level of the division: a row for each member, and the ``amount`` that each pot has to divide.

    ``pot[i]`` is the pot of ``i``; ``owed`` is what ``i`` gets before the division by weight; ``recent`` is its recent
    average allocation; ``k`` is the weight of that.
    """

    amount: Floats
    pot: Ints
    demand: Floats
    quota: Floats
    owed: Floats
    weight: Floats
    recent: Floats
    k: float

    def shares(self) -> Floats:
        """Return the fair share of each: quotas first, then the rest by weight and recent use; see the module."""
        owed = self.owed
        short = self._sums(owed) > self.amount
        share = fill(self.amount, self.pot, owed, self.quota) if short.any() else owed.copy()
        for weights in (None, self.weight, np.ones(len(share))):  # then those left out
            left = np.maximum(self.amount - self._sums(share), 0.0)
            wanting = (self.demand - share > EPSILON) & (left[self.pot] > EPSILON)
            if not wanting.any():
                break
            by = self.claims(wanting) if weights is None else weights
            share += fill(left, self.pot, np.where(wanting, self.demand - share, 0.0), by)
        return np.minimum(share, self.demand)

    def dues(self) -> Floats:
        """Return the part of each if all with any demand wanted everything.

        The parts that members hold are compared by this.
        """
        active = self.demand > 0
        spare = np.maximum(self.amount - self._sums(self.quota * active), 0.0)
        by = self.claims(active)
        return np.asarray(np.maximum(self.quota + spare[self.pot] * by / _or_one(self._sums(by))[self.pot], 1.0))

    def claims(self, active: Bools) -> Floats:
        """Return the weights by which the rest of a pot is divided among the active: ``max(0, W + k (W - U))``."""
        weight = self.weight * active
        fraction = weight / _or_one(self._sums(weight))[self.pot]
        lately = self.recent / _or_one(np.maximum(self._sums(self.recent), self.amount))[self.pot]
        return np.where(weight > 0, np.maximum(fraction + self.k * (fraction - lately), 0.0), 0.0)

    def _sums(self, values: Floats) -> Floats:
        return np.asarray(np.bincount(self.pot, values, len(self.amount)), np.float64)


def _or_one(values: Floats) -> Floats:
    return np.where(values > 0, values, 1.0)


class FairnessSnapshot:
    """Amounts that are held and requested at one moment, before any trial."""

    __slots__ = ("capacity", "firm", "ledger", "now", "used", "waiting", "waiting_firm")

    def __init__(self, ledger: Ledger, capacity: int, now: float) -> None:
        count = len(ledger.projects)
        self.ledger, self.capacity, self.now = ledger, capacity, now
        self.used, self.firm = ledger.used[:count].copy(), ledger.firm[:count].copy()
        self.waiting, self.waiting_firm = ledger.waiting[:count].copy(), ledger.waiting_firm[:count].copy()

    def demand(self) -> Floats:
        """Return the held and requested GPUs of each project within its bounds: protected work only up to the quota."""
        ledger, count = self.ledger, len(self.used)
        firm, rest = self.firm + self.waiting_firm, self.used - self.firm + self.waiting - self.waiting_firm
        wanted = np.minimum(firm, ledger.quota[:count]) + rest
        return np.asarray(np.minimum(wanted, ledger.limit[:count]), np.float64)


class ProjectColumns(NamedTuple):
    """A value for each project; see ``Division``."""

    dept: list[int]
    fair: list[float]
    quota: list[float]
    due: list[float]
    has_quota: list[bool]


class DepartmentColumns(NamedTuple):
    """A value for each department; see ``Division``."""

    fair: list[float]
    quota: list[float]
    due: list[float]
    bounded: list[bool]


class Division:
    """The fair shares of a moment, a row per project, and (``dept_*``) per department.

    ``demand``; ``recent``: held lately on average; ``fair``: the fair share; ``quota``: without one, the fair share;
    ``due``: the share if everybody with any demand wanted everything; ``has_quota``; ``bounded``: departments with a
    quota of their own; ``members``: how many projects each department has. ``columns`` and ``dept_columns`` have
    some of these as lists, for access to one row.
    """

    def __init__(self, at: FairnessSnapshot) -> None:
        ledger, count, depts = at.ledger, len(at.used), len(at.ledger.departments)
        self.dept = ledger.dept[:count].copy()
        self.members = np.bincount(self.dept, minlength=depts).tolist()
        self.demand, self.recent = at.demand(), ledger.usage.average(at.used, at.now)
        self.has_quota, self.bounded = ledger.quota[:count] < UNBOUNDED, ledger.dept_quota[:depts] < UNBOUNDED
        guaranteed = np.where(self.has_quota, ledger.quota[:count], 0).astype(np.float64)
        owed = np.minimum(guaranteed, self.demand)
        own, demand = ledger.dept_quota[:depts], np.minimum(self._sums(self.demand), ledger.dept_limit[:depts])
        top = DivisionLevel(
            np.array([float(at.capacity)]),
            np.zeros(depts, np.int64),
            demand,
            np.where(self.bounded, own, self._sums(guaranteed)),
            np.minimum(np.where(self.bounded, own, self._sums(owed)), demand),
            ledger.dept_weight[:depts],
            self._sums(self.recent),
            ledger.usage_weight,
        )
        weight, k = ledger.weight[:count], ledger.usage_weight
        self.dept_fair, self.dept_due = top.shares(), top.dues()
        inside = DivisionLevel(self.dept_fair, self.dept, self.demand, guaranteed, owed, weight, self.recent, k)
        self.fair = inside.shares()
        self.due = replace(inside, amount=self.dept_due).dues()
        self.quota = np.where(self.has_quota, guaranteed, self.fair)
        self.dept_quota = np.where(self.bounded, own, self._sums(self.quota))
        lists = (array.tolist() for array in (self.dept, self.fair, self.quota, self.due, self.has_quota))
        self.columns = ProjectColumns(*lists)
        lists = (array.tolist() for array in (self.dept_fair, self.dept_quota, self.dept_due, self.bounded))
        self.dept_columns = DepartmentColumns(*lists)

    def _sums(self, values: Floats) -> Floats:
        return np.asarray(np.bincount(self.dept, values, len(self.bounded)), np.float64)
