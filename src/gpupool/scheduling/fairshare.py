"""Fair shares: how much of the pool each department and project is due, and who may take from whom.

Water-filling from departments down to projects, in thousandths of a GPU and never rounded. First everybody's
``min(quota, demand)``; where the quotas of those who demand exceed what there is, in proportion to them. What is left
goes by weight: with ``W`` the part of the weights of those who want more and ``U`` the part of the use lately
(``usage``), by ``max(0, W + k (W - U))``, nobody beyond its demand. A project without a department stands beside
departments. The sum is ``min(capacity, demand)``.

The order and the rules of taking follow KAI's proportion plugin; the entry charge in ``usage`` is Kueue's idea.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from gpupool.scheduling.ledger import UNBOUNDED, Ledger

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Order = tuple[int, float, float]

EPSILON = 1e-3  # thousandths: less than any request, more than what adding up floats gets wrong
_NOBODY: Mapping[int, int] = MappingProxyType({})


def fill(amount: Floats, pot: Ints, need: Floats, weight: Floats) -> Floats:
    """Each pot's ``amount`` by weight to those who drink from it, nobody above ``need``: the fair levels, exactly.

    ``pot[i]`` is the pot of ``i``; ``owed`` what ``i`` gets before anything goes by weight; ``recent`` what was held
    lately on average; ``k`` how much that weighs.
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
class Level:
    """Those who share at one level, one row each, and what there is to share: ``amount`` of each pot.

    ``pot[i]`` is the pot of ``i``; ``owed`` what ``i`` gets before anything goes by weight; ``recent`` what was held
    lately on average; ``k`` how much that weighs.
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
        """The fair share of each: quotas first, then what is left by weight and recent use; see the module."""
        owed = self.owed
        short = self._sums(owed) > self.amount
        share = fill(self.amount, self.pot, owed, self.quota) if short.any() else owed.copy()
        for weights in (None, self.weight, np.ones(len(share))):  # the later ones for whom the earlier ones leave out
            left = np.maximum(self.amount - self._sums(share), 0.0)
            wanting = (self.demand - share > EPSILON) & (left[self.pot] > EPSILON)
            if not wanting.any():
                break
            by = self.claims(wanting) if weights is None else weights
            share += fill(left, self.pot, np.where(wanting, self.demand - share, 0.0), by)
        return np.minimum(share, self.demand)

    def dues(self) -> Floats:
        """What each would be due if all who want anything wanted everything: by this the parts they hold compare."""
        active = self.demand > 0
        spare = np.maximum(self.amount - self._sums(self.quota * active), 0.0)
        by = self.claims(active)
        return np.asarray(np.maximum(self.quota + spare[self.pot] * by / _or_one(self._sums(by))[self.pot], 1.0))

    def claims(self, active: Bools) -> Floats:
        """The weights by which a pot's rest is divided among the active: ``max(0, W + k (W - U))``."""
        weight = self.weight * active
        fraction = weight / _or_one(self._sums(weight))[self.pot]
        lately = self.recent / _or_one(np.maximum(self._sums(self.recent), self.amount))[self.pot]
        return np.where(weight > 0, np.maximum(fraction + self.k * (fraction - lately), 0.0), 0.0)

    def _sums(self, values: Floats) -> Floats:
        return np.asarray(np.bincount(self.pot, values, len(self.amount)), np.float64)


def _or_one(values: Floats) -> Floats:
    return np.where(values > 0, values, 1.0)


class Shares:
    """The fair shares of one cycle, and the questions that are answered by them.

    Made from the ledger as it stands; ``fair`` and ``dept_fair`` stay as they are while the cycle tries things out,
    and are compared with what the ledger says is held at that moment. ``promised`` (project -> thousandths) is counted
    in the ledger but held by nobody yet: nobody is asked to give it back.
    """

    def __init__(self, ledger: Ledger, capacity: int, now: float, promised: Mapping[int, int] = _NOBODY) -> None:
        self._ledger, self._promised = ledger, promised
        count, depts = len(ledger.projects), len(ledger.departments)
        self.dept = ledger.dept[:count].copy()
        bounded = ledger.quota[:count] < UNBOUNDED
        guaranteed = np.where(bounded, ledger.quota[:count], 0).astype(np.float64)
        self.demand = _demand(ledger, count)
        self.recent = ledger.usage.average(ledger.used[:count], now)

        def sums(values: Floats) -> Floats:
            return np.asarray(np.bincount(self.dept, values, depts), np.float64)

        own, owed = ledger.dept_quota[:depts], np.minimum(guaranteed, self.demand)
        demand = np.minimum(sums(self.demand), ledger.dept_limit[:depts])
        top = Level(
            np.array([float(capacity)]),
            np.zeros(depts, np.int64),
            demand,
            np.where(own < UNBOUNDED, own, sums(guaranteed)),
            np.minimum(np.where(own < UNBOUNDED, own, sums(owed)), demand),
            ledger.dept_weight[:depts],
            sums(self.recent),
            ledger.usage_weight,
        )
        weight, k = ledger.weight[:count], ledger.usage_weight
        self.dept_fair, self.dept_due = top.shares(), top.dues()
        inside = Level(self.dept_fair, self.dept, self.demand, guaranteed, owed, weight, self.recent, k)
        self.fair = inside.shares()
        self.due = replace(inside, amount=self.dept_due).dues()
        self.quota = np.where(bounded, guaranteed, self.fair)
        self.dept_quota = np.where(own < UNBOUNDED, own, sums(self.quota))
        self._bounded = own < UNBOUNDED  # departments with a quota of their own
        columns = (self.dept, self.fair, self.quota, self.due)
        self._of_project = list(zip(*(column.tolist() for column in columns), strict=True))
        dept_columns = (self.dept_fair, self.dept_quota, self.dept_due)
        self._of_dept = list(zip(*(column.tolist() for column in dept_columns), strict=True))

    # --- whose turn it is

    def order(self, project: int, extra: int) -> Order:
        """Less is served first, by its department's and its own state with ``extra`` thousandths more.

        Below the fair share before at it; then within quota before over it; then whose department, and then who,
        would hold the smaller part of its due.
        """
        dept, fair, quota, due = self._of_project[project]
        dept_fair, dept_quota, dept_due = self._of_dept[dept]
        used, dept_used = int(self._ledger.used[project]), int(self._ledger.dept_used[dept])
        sated = used + EPSILON > fair or dept_used + EPSILON > dept_fair
        over = used + extra > quota + EPSILON or dept_used + extra > dept_quota + EPSILON
        return 2 * sated + over, (dept_used + extra) / dept_due, (used + extra) / due

    # --- who may take from whom

    def within_share(self, project: int, extra: int) -> bool:
        """Whether a project would stay within its fair share with ``extra`` thousandths more."""
        return bool(self._ledger.used[project] + extra <= self._of_project[project][1] + EPSILON)

    def within_quota(self, project: int, extra: int) -> bool:
        """Whether a project would stay within its quota; without one, its fair share is its quota."""
        return bool(self._ledger.used[project] + extra <= self._of_project[project][2] + EPSILON)

    def may_reclaim(self, project: int, extra: int) -> bool:
        """Whether a project may take ``extra`` thousandths from anybody: it stays within its quota or fair share."""
        return self.within_quota(project, extra) or self.within_share(project, extra)

    def budget(self, project: int) -> int:
        """The most thousandths that a project may take from others now."""
        _, fair, quota, _ = self._of_project[project]
        return max(int(max(fair, quota) + EPSILON) - int(self._ledger.used[project]), 0)

    def reclaimable(self) -> Bools:
        """Which projects hold more than their quota (or are in a department that does): nobody takes from others."""
        held, dept_held = self._held()
        return np.asarray(_above(held, self.quota) | (self._bounded & _above(dept_held, self.dept_quota))[self.dept])

    def victims(self, project: int, extra: int) -> Bools:
        """From which projects a project may take so that it holds ``extra`` thousandths more.

        The two are compared one level below what they have in common: in one department the projects, else the
        departments. Whoever takes stays within its fair share and the victim is above its own; or whoever takes stays
        within its quota and the victim is above its own. Never from a project within its quota, but for one whose
        department is beyond a quota of its own, and then not for a project beyond its quota.
        """
        held, dept_held = self._held()
        fair, dept = self.fair, self.dept
        by_share = _above(held, fair), _above(dept_held, self.dept_fair)
        by_quota = _above(held, self.quota), _above(dept_held, self.dept_quota)
        in_share, in_quota = self.within_share(project, extra), self.within_quota(project, extra)
        own = dept == dept[project]
        inside = (by_share[0] & in_share) | (by_quota[0] & in_quota)
        outside = (by_share[1] & self._dept_within(project, extra, self.dept_fair))[dept]
        outside |= (by_quota[1] & self._dept_within(project, extra, self.dept_quota))[dept]
        outside &= (by_share[0] | by_quota[0]) & (in_share or in_quota)
        outranked = (self._bounded & by_quota[1])[dept] & in_quota
        allowed = np.where(own, inside, outside) & (by_quota[0] | outranked)
        allowed[project] = False
        return np.asarray(allowed)

    def may_take(self, project: int, extra: int, victim: int, freed: Mapping[int, int]) -> bool:
        """``victims`` for one more piece of work of ``victim`` when ``freed`` (by project) is gone already."""
        dept, fair, quota, _ = self._of_project[victim]
        dept_fair, dept_quota, _ = self._of_dept[dept]
        held = self._ledger.used[victim] - self._promised.get(victim, 0) - freed.get(victim, 0)
        above_share, above_quota = held > fair + EPSILON, held > quota + EPSILON
        in_share, in_quota = self.within_share(project, extra), self.within_quota(project, extra)
        away = sum(n for p, n in [*self._promised.items(), *freed.items()] if self._of_project[p][0] == dept)
        held = self._ledger.dept_used[dept] - away
        outranked = in_quota and self._bounded[dept] and held > dept_quota + EPSILON
        if victim == project or not (above_quota or outranked):
            return False
        if dept == self._of_project[project][0]:
            return bool((in_share and above_share) or (in_quota and above_quota))
        by_share = held > dept_fair + EPSILON and self._dept_within(project, extra, self.dept_fair)
        by_quota = held > dept_quota + EPSILON and self._dept_within(project, extra, self.dept_quota)
        return bool((by_share or by_quota) and (above_share or above_quota) and (in_share or in_quota))

    def _held(self) -> tuple[Ints, Ints]:
        held = self._ledger.used[: len(self.fair)].copy()
        depts = self._ledger.dept_used[: len(self.dept_fair)].copy()
        for project, permille in self._promised.items():
            held[project] -= permille
            depts[self.dept[project]] -= permille
        return held, depts

    def _dept_within(self, project: int, extra: int, bounds: Floats) -> bool:
        dept = self.dept[project]
        return bool(self._ledger.dept_used[dept] + extra <= bounds[dept] + EPSILON)


def _above(held: Ints, bounds: Floats) -> Bools:
    return np.asarray(held > bounds + EPSILON)


def _demand(ledger: Ledger, count: int) -> Floats:
    """What each project holds and waits for, as far as its bounds allow: protected work no more than the quota."""
    firm = ledger.firm[:count] + ledger.waiting_firm[:count]
    rest = ledger.used[:count] - ledger.firm[:count] + ledger.waiting[:count] - ledger.waiting_firm[:count]
    wanted = np.minimum(firm, ledger.quota[:count]) + rest
    return np.asarray(np.minimum(wanted, ledger.limit[:count]), np.float64)
