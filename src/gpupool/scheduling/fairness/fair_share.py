"""Scheduling order of projects, and reclaim between them, from fair shares (``division``) and held GPUs.

The order follows KAI's proportion plugin; the entry charge in ``decayed_usage`` is Kueue's idea. Which project may take
from which is decided by ``reclaim_rule``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from gpupool.scheduling.fairness import reclaim_rule as rule
from gpupool.scheduling.fairness.reclaim_rule import ROUNDING, Amount, Fact, Holding, ShareBounds, Taker, above, within
from gpupool.scheduling.fairness.water_filling import Division, FairnessSnapshot, Floats
from gpupool.scheduling.state.allocation import EPSILON, Bools, Ints
from gpupool.scheduling.state.ledger import Ledger

Order = tuple[int, float, float]


class HeldAmounts:
    """Thousandths by project, with their sums by department, so that no query adds them up again."""

    __slots__ = ("_by_dept", "_by_project", "_ledger")

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._by_project, self._by_dept = Counter[int](), Counter[int]()

    def add(self, project: int, permille: int) -> None:
        """Add to the amount of a project; a negative amount removes it."""
        self._by_project[project] += permille
        self._by_dept[int(self._ledger.dept[project])] += permille

    def of_project(self, project: int) -> int:
        """Return the amount of a project."""
        return self._by_project.get(project, 0)

    def of_department(self, dept: int) -> int:
        """Return the sum over the projects of a department."""
        return self._by_dept.get(dept, 0)

    def subtract_from(self, projects: Ints) -> None:
        """Subtract the amounts from an array by project."""
        for project, permille in self._by_project.items():
            projects[project] -= permille

    def subtract_from_departments(self, depts: Ints) -> None:
        """Subtract the sums from an array by department."""
        for dept, permille in self._by_dept.items():
            depts[dept] -= permille


class Shares:
    """The fair shares of one cycle, and the rules that compare them with held GPUs.

    The fair shares are computed from the ledger at construction. They stay fixed while the cycle tries changes, and are
    compared with the ledger at the time of a call. ``promised`` is counted in the ledger but not held yet, so it cannot
    be taken from a project. ``reserved`` is the part of it that may never be used: it prevents no project
    from taking.
    """

    def __init__(
        self,
        ledger: Ledger,
        capacity: int,
        now: float,
        promised: HeldAmounts | None = None,
        reserved: HeldAmounts | None = None,
    ) -> None:
        self._ledger = ledger
        self._promised, self._reserved = promised or HeldAmounts(ledger), reserved or HeldAmounts(ledger)
        self._snapshot = FairnessSnapshot(ledger, capacity, now)

    @cached_property
    def division(self) -> Division:
        """Return the fair shares, computed on first use."""
        return Division(self._snapshot)

    @property
    def fair(self) -> Floats:
        """Return the fair share of each project, in thousandths of a GPU."""
        return self.division.fair

    @property
    def quota(self) -> Floats:
        """Return the quota of each project; without one, its fair share."""
        return self.division.quota

    # --- scheduling order

    def order(self, project: int, extra: int) -> Order:
        """Return the sort key of a project that requests ``extra`` thousandths more; the least is served first.

        A project below its fair share comes before one at it. Then a project within its quota comes before one over it.
        Then the department, and then the project, that would hold the smaller part of its share comes first. The first
        two rules look at the department as well.
        """
        columns, depts = self.division.columns, self.division.dept_columns
        dept, bounds = columns.dept[project], self._bounds_of(project)
        used, dept_used = int(self._ledger.used[project]), int(self._ledger.dept_used[dept])
        return _order(used, dept_used, extra, bounds, columns.due[project], depts.due[dept])

    def orders(
        self, projects: Ints, extra: Ints, queued_at: Floats
    ) -> tuple[Ints, tuple[Ints, Floats, Floats, Floats]]:
        """Return many projects in scheduling order, and the columns of their ``order`` with the queue times.

        ``extra[i]`` is what ``projects[i]`` requests. Of projects with equal order, that with the earlier queue time
        comes first.
        """
        d, dept = self.division, self.division.dept[projects]
        used, dept_used = self._ledger.used[projects], self._ledger.dept_used[dept]
        keys = _order(used, dept_used, extra, self._bounds(projects), d.due[projects], d.dept_due[dept])
        first = np.lexsort((projects, queued_at, *keys[::-1]))
        ranks, dept_parts, parts = (column[first] for column in keys)
        return projects[first], (ranks, dept_parts, parts, queued_at[first])

    # --- rights of a project that do not depend on the victim

    def within_quota(self, project: int, extra: int) -> bool:
        """Return whether a project stays within its quota; without one, its fair share is its quota."""
        return bool(within(self._claimed(project), self.division.columns.quota[project], extra))

    def promised(self, project: int, extra: int) -> bool:
        """Return whether ``extra`` thousandths more are within a quota that was set.

        This is the project's quota, or that of its department if the project has none.
        """
        return bool(self._taker(project, extra).promised)

    def any_promised(self) -> Bools:
        """Return which projects may be ``promised`` something, regardless of what they hold."""
        return np.asarray(np.where(self.division.has_quota, self.quota > 0, self.division.bounded[self.division.dept]))

    def may_reclaim(self, project: int, extra: int) -> bool:
        """Return whether a project may take ``extra`` thousandths from others.

        It may if it stays within its quota or fair share.
        """
        return bool(_may_reclaim(self._claimed(project), self._bounds_of(project), extra))

    def claims_quota(self, project: int, extra: int) -> bool:
        """Return whether a project stays within its set quota with ``extra`` thousandths more.

        If its department has a quota of its own, it must stay within that as well.
        """
        return bool(_claims_quota(*self._claimed_by(project), self._bounds_of(project), extra))

    def claims_share(self, project: int, extra: int) -> bool:
        """Return whether a project stays within its fair share with ``extra`` thousandths more, without rounding.

        Its department must stay within its own as well.
        """
        return bool(_claims_share(*self._claimed_by(project), self._bounds_of(project), extra))

    def each_claims(self, projects: Ints, extra: int) -> Bools:
        """Return for which of some projects ``claims_quota`` or ``claims_share`` is true."""
        claimed, bounds = self._claimed_by_each(projects), self._bounds(projects)
        return np.asarray(_claims_quota(*claimed, bounds, extra) | _claims_share(*claimed, bounds, extra))

    def budget(self, project: int) -> int:
        """Return the most thousandths that a project may take from others now."""
        return int(rule.budget(self._claimed(project), self._bounds_of(project)))

    def takers(self) -> Bools:
        """Return which projects ``may_reclaim`` at all."""
        projects = np.arange(len(self.fair))
        return np.asarray(_may_reclaim(self._all_claimed(), self._bounds(projects), 1))

    def budgets(self) -> Ints:
        """Return ``budget`` of every project."""
        found = rule.budget(self._all_claimed(), self._bounds(np.arange(len(self.fair))))
        return np.asarray(found, np.int64)

    def may_reserve(self, project: int, extra: int, settled: int, dept_settled: int) -> bool:
        """Return whether GPUs may be held for a job of ``extra`` thousandths without being reclaimed at once.

        It may if the job stays within the quota or the fair share, with the same rounding as ``victims``. A job that is
        larger than the share waits until its project holds nothing else, so that each job gets its turn. ``settled`` is
        what the project holds, without what started after the job was queued; ``dept_settled`` is the same for its
        department. The share must be at least ``ROUNDING`` of the job, so that the project does not lose it as soon as
        the share shrinks.
        """
        bounds, dept = self._bounds_of(project), self.division.columns.dept[project]
        used, dept_used = int(self._ledger.used[project]), int(self._ledger.dept_used[dept])
        inside = within(used, bounds.quota, extra) or rule.within_share(used, bounds.fair, extra)
        dept_inside = within(dept_used, bounds.dept_quota, extra) or rule.within_share(
            dept_used, bounds.dept_fair, extra
        )
        alone = not settled and bounds.fair >= ROUNDING * extra
        dept_alone = not dept_settled and bounds.dept_fair >= ROUNDING * extra
        return bool((inside or alone) and (dept_inside or dept_alone))

    # --- victims

    def reclaimable(self) -> Bools:
        """Return which projects hold more than their quota, or are in a department above a quota of its own.

        Nothing is taken from other projects.
        """
        held, dept_held = self._held()
        d = self.division
        return np.asarray(above(held, d.quota) | (d.bounded & above(dept_held, d.dept_quota))[d.dept])

    def victims(self, project: int, extra: int) -> Bools:
        """Return from which projects a project may take so that it holds ``extra`` thousandths more.

        See ``reclaim_rule``; ``takes`` says which pieces of them go.
        """
        by_share, by_quota = rule.grounds(self._taker(project, extra), self._holders())
        return np.asarray(by_share | by_quota)

    def takes(self, project: int, extra: int, owner: Ints, piece: Ints) -> Bools:
        """Return which pieces a project may take; ``owner`` and ``piece`` are their projects and thousandths."""
        who, holders = self._taker(project, extra), self._holders()
        by_share, by_quota = rule.grounds(who, holders)
        found = (by_share | by_quota)[owner]
        large = np.flatnonzero(found & ~by_quota[owner] & (piece > extra))
        if len(large):
            found[large] = rule.may_take_large(who, _rows(holders, owner[large]), piece[large])
        return np.asarray(found)

    def may_take(self, project: int, extra: int, victim: int, piece: int, freed: Mapping[int, int]) -> bool:
        """Return whether a project may take one more piece of ``victim`` when ``freed`` (by project) is gone already.

        The rules are those of ``takes``.
        """
        dept_of = self.division.columns.dept
        dept = dept_of[victim]
        held = int(self._ledger.used[victim]) - self._promised.of_project(victim) - freed.get(victim, 0)
        away = sum(amount for owner, amount in freed.items() if dept_of[owner] == dept)
        dept_held = int(self._ledger.dept_used[dept]) - self._promised.of_department(dept) - away
        who, holder = self._taker(project, extra), Holding(victim, dept, held, dept_held, self._bounds_of(victim))
        by_share, by_quota = rule.grounds(who, holder)
        return bool(by_quota or (by_share and (piece <= extra or rule.may_take_large(who, holder, piece))))

    def standing(self, project: int, extra: int, pieces: Sequence[int]) -> tuple[object, ...]:
        """Return everything about a project on which ``takes`` and ``may_take`` depend, as a key.

        The project itself is part of the key only if it could be a victim. Its department is left out only if the
        project could not be a victim and is alone in it. ``pieces`` are the sizes that exist, in order.
        """
        d, own = self.division, project if self._may_lose(project) else None
        dept = d.columns.dept[project]
        known = rule.standing(self._taker(project, extra), pieces)
        return (*known, None if own is None and d.members[dept] == 1 else dept, own)

    def may_take_no_more(self, others: Ints, project: int, extra: int, pieces: Sequence[int]) -> Bools:
        """Return which of ``others`` may take nothing that ``project`` may not take, for ``extra`` thousandths more.

        False for others whose rights cannot be compared: those of other departments, unless both are alone in theirs.
        ``pieces`` are the sizes that exist, in order.
        """
        if self._may_lose(project):
            return np.asarray(others == project)
        found = rule.may_take_no_more(self._takers(others, extra), self._taker(project, extra), pieces)
        return np.asarray(found & self._are_related_like(others, project))

    def stands_like(self, others: Ints, project: int, extra: int, pieces: Sequence[int]) -> Bools:
        """Return which of ``others`` have the ``standing`` of ``project``."""
        if self._may_lose(project):
            return np.asarray(others == project)
        found = rule.stands_like(self._takers(others, extra), self._taker(project, extra), pieces)
        return np.asarray(found & self._are_related_like(others, project) & ~self._may_each_lose()[others])

    def _are_related_like(self, others: Ints, project: int) -> Bools:
        """Return which of ``others`` are in the department of ``project``, or alone in theirs as it is in its own."""
        d, dept = self.division, self.division.dept[others]
        mine = d.columns.dept[project]
        alone = np.asarray(d.members)[dept] == 1 if d.members[mine] == 1 else np.zeros(len(others), np.bool_)
        return np.asarray((dept == mine) | alone)

    # --- rows of the rule

    def _taker(self, project: int, extra: int) -> Taker:
        dept = self.division.columns.dept[project]
        return rule.taker(project, dept, extra, *self._claimed_by(project), self._bounds_of(project))

    def _takers(self, projects: Ints, extra: int) -> Taker:
        dept = self.division.dept[projects]
        return rule.taker(projects, dept, extra, *self._claimed_by_each(projects), self._bounds(projects))

    def _holders(self) -> Holding:
        """Return all projects."""
        held, dept_held = self._held()
        projects, dept = np.arange(len(held)), self.division.dept
        return Holding(projects, dept, held, dept_held[dept], self._bounds(projects))

    def _bounds_of(self, project: int) -> ShareBounds:
        of, of_dept = self.division.columns, self.division.dept_columns
        dept = of.dept[project]
        return ShareBounds(
            of.fair[project],
            of.quota[project],
            of.has_quota[project],
            of_dept.fair[dept],
            of_dept.quota[dept],
            of_dept.bounded[dept],
        )

    def _bounds(self, projects: Ints) -> ShareBounds:
        d, dept = self.division, self.division.dept[projects]
        of_depts = d.dept_fair[dept], d.dept_quota[dept], d.bounded[dept]
        return ShareBounds(d.fair[projects], d.quota[projects], d.has_quota[projects], *of_depts)

    def _may_lose(self, project: int) -> bool:
        """Return whether one project is ``reclaimable``.

        Unlike there, what its department holds includes promises.
        """
        bounds, dept = self._bounds_of(project), self.division.columns.dept[project]
        held = int(self._ledger.used[project]) - self._promised.of_project(project)
        outranked = bounds.bounded and above(int(self._ledger.dept_used[dept]), bounds.dept_quota)
        return bool(above(held, bounds.quota) or outranked)

    def _may_each_lose(self) -> Bools:
        """Return ``_may_lose`` of all projects."""
        d, (held, _) = self.division, self._held()
        outranked = d.bounded & above(self._ledger.dept_used[: len(d.bounded)], d.dept_quota)
        return np.asarray(above(held, d.quota) | outranked[d.dept])

    def _held(self) -> tuple[Ints, Ints]:
        held = self._ledger.used[: len(self.fair)].copy()
        depts = self._ledger.dept_used[: len(self.division.dept_fair)].copy()
        self._promised.subtract_from(held)
        self._promised.subtract_from_departments(depts)
        return held, depts

    def _claimed(self, project: int) -> int:
        return int(self._ledger.used[project]) - self._reserved.of_project(project)

    def _claimed_by(self, project: int) -> tuple[int, int]:
        """Return what a project and its department claim."""
        dept = self.division.columns.dept[project]
        return self._claimed(project), int(self._ledger.dept_used[dept]) - self._reserved.of_department(dept)

    def _claimed_by_each(self, projects: Ints) -> tuple[Ints, Ints]:
        """Return what each of some projects and its department claim."""
        return self._all_claimed()[projects], self._all_dept_claimed()[self.division.dept[projects]]

    def _all_claimed(self) -> Ints:
        claimed = self._ledger.used[: len(self.fair)].copy()
        self._reserved.subtract_from(claimed)
        return claimed

    def _all_dept_claimed(self) -> Ints:
        claimed = self._ledger.dept_used[: len(self.division.dept_fair)].copy()
        self._reserved.subtract_from_departments(claimed)
        return claimed


def _order(
    used: Amount, dept_used: Amount, extra: Amount, bounds: ShareBounds, due: Amount, dept_due: Amount
) -> tuple[Amount, Amount, Amount]:
    sated = (used + EPSILON > bounds.fair) | (dept_used + EPSILON > bounds.dept_fair)
    over = above(used + extra, bounds.quota) | above(dept_used + extra, bounds.dept_quota)
    return 2 * sated + over, (dept_used + extra) / dept_due, (used + extra) / due


def _claims_quota(claimed: Amount, dept_claimed: Amount, bounds: ShareBounds, extra: int) -> Fact:
    dept_within = within(dept_claimed, bounds.dept_quota, extra) | (np.logical_not(bounds.bounded))
    return bounds.has_quota & within(claimed, bounds.quota, extra) & dept_within


def _claims_share(claimed: Amount, dept_claimed: Amount, bounds: ShareBounds, extra: int) -> Fact:
    return within(claimed, bounds.fair, extra) & within(dept_claimed, bounds.dept_fair, extra)


def _may_reclaim(claimed: Amount, bounds: ShareBounds, extra: int) -> Fact:
    return within(claimed, bounds.quota, extra) | rule.within_share(claimed, bounds.fair, extra)


def _rows(holders: Holding, at: Ints) -> Holding:
    bounds = ShareBounds(*(column[at] for column in holders.bounds))
    return Holding(holders.project[at], holders.dept[at], holders.held[at], holders.dept_held[at], bounds)
