"""Whose turn it is, and who may take from whom: by the fair shares (``division``) and what is held.

The order and the rules of taking follow KAI's proportion plugin; the entry charge in ``usage`` is Kueue's idea.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from types import MappingProxyType

import numpy as np

from gpupool.scheduling.division import EPSILON, Bools, Division, Floats, Ints, Snapshot
from gpupool.scheduling.ledger import Ledger

Order = tuple[int, float, float]

# Work comes in pieces: so much of one may lie beyond a share, if the victim is twice as far beyond its own, and beyond
# its quota as well: else that takes back what it is guaranteed, and so on for ever.
ROUNDING = 0.25
_NOBODY: Mapping[int, int] = MappingProxyType({})


class Shares:
    """The fair shares of one cycle, and the questions that are answered by them.

    Made from the ledger as it stands; the shares stay as they are while the cycle tries things out, and are compared
    with what the ledger says is held at that moment. ``promised`` (project -> thousandths) is counted
    in the ledger but held by nobody yet: nobody is asked to give it back. ``reserved`` is the part of it that may never
    come: it keeps nobody from taking.
    """

    def __init__(
        self,
        ledger: Ledger,
        capacity: int,
        now: float,
        promised: Mapping[int, int] = _NOBODY,
        reserved: Mapping[int, int] = _NOBODY,
    ) -> None:
        self._ledger, self._promised, self._reserved = ledger, promised, reserved
        self._snapshot = Snapshot(ledger, capacity, now)

    @cached_property
    def division(self) -> Division:
        """The shares themselves, worked out when somebody asks."""
        return Division(self._snapshot)

    @property
    def fair(self) -> Floats:
        """The fair share of each project, in thousandths of a GPU."""
        return self.division.fair

    @property
    def quota(self) -> Floats:
        """The quota of each project; without one, its fair share."""
        return self.division.quota

    # --- whose turn it is

    def order(self, project: int, extra: int) -> Order:
        """Less is served first, by its department's and its own state with ``extra`` thousandths more.

        Below the fair share before at it; then within quota before over it; then whose department, and then who,
        would hold the smaller part of its due.
        """
        dept, fair, quota, due = self.division.project_rows[project]
        dept_fair, dept_quota, dept_due = self.division.dept_rows[dept]
        used, dept_used = int(self._ledger.used[project]), int(self._ledger.dept_used[dept])
        sated = used + EPSILON > fair or dept_used + EPSILON > dept_fair
        over = used + extra > quota + EPSILON or dept_used + extra > dept_quota + EPSILON
        return 2 * sated + over, (dept_used + extra) / dept_due, (used + extra) / due

    def orders(self, projects: Ints, extra: int) -> Iterator[tuple[int, float, float, int]]:
        """``order`` of many projects, each followed by its project, who is first before the others."""
        d, dept = self.division, self.division.dept[projects]
        used, dept_used = self._ledger.used[projects], self._ledger.dept_used[dept]
        sated = (used + EPSILON > d.fair[projects]) | (dept_used + EPSILON > d.dept_fair[dept])
        used, dept_used = used + extra, dept_used + extra
        over = (used > d.quota[projects] + EPSILON) | (dept_used > d.dept_quota[dept] + EPSILON)
        columns = 2 * sated + over, dept_used / d.dept_due[dept], used / d.due[projects], projects
        first = np.lexsort(columns[::-1])
        return zip(*(column[first].tolist() for column in columns), strict=True)

    # --- who may take from whom

    def within_share(self, project: int, extra: int) -> bool:
        """Whether a project would stay within its fair share with ``extra`` thousandths more, but for ROUNDING."""
        most = self.division.project_rows[project][1] + ROUNDING * extra
        return bool(self._claimed(project) + extra <= most + EPSILON)

    def within_quota(self, project: int, extra: int) -> bool:
        """Whether a project would stay within its quota; without one, its fair share is its quota."""
        return bool(self._claimed(project) + extra <= self.division.project_rows[project][2] + EPSILON)

    def promised(self, project: int, extra: int) -> bool:
        """Whether ``extra`` thousandths more are within a quota that was set, the project's or its department's."""
        d = self.division
        if d.has_quota[project]:
            return self.within_quota(project, extra)
        return bool(d.bounded[d.dept[project]]) and self._dept_within(project, extra, d.dept_quota)

    def any_promised(self) -> Bools:
        """Which projects may be ``promised`` something, whatever they hold."""
        return np.asarray(np.where(self.division.has_quota, self.quota > 0, self.division.bounded[self.division.dept]))

    def may_reclaim(self, project: int, extra: int) -> bool:
        """Whether a project may take ``extra`` thousandths from anybody: it stays within its quota or fair share."""
        return self.within_quota(project, extra) or self.within_share(project, extra)

    def budget(self, project: int) -> int:
        """The most thousandths that a project may take from others now."""
        _, fair, quota, _ = self.division.project_rows[project]
        used = self._claimed(project)
        return max(int((fair - used) / (1 - ROUNDING) + EPSILON), int(quota + EPSILON) - used, 0)

    def takers(self) -> Bools:
        """Which projects ``may_reclaim`` at all."""
        most, after = self.fair + ROUNDING, self._all_claimed() + 1
        return np.asarray((after <= most + EPSILON) | (after <= self.quota + EPSILON))

    def budgets(self) -> Ints:
        """``budget`` of every project."""
        used = self._all_claimed()
        by_share = ((self.fair - used) / (1 - ROUNDING) + EPSILON).astype(np.int64)
        by_quota = (self.quota + EPSILON).astype(np.int64) - used
        return np.asarray(np.maximum(np.maximum(by_share, by_quota), 0))

    def above(self, project: int) -> bool:
        """``reclaimable`` of one project, promises to its department left in."""
        d = self.division
        dept, _, quota, _ = d.project_rows[project]
        held = self._ledger.used[project] - self._promised.get(project, 0)
        outranked = d.bounded[dept] and self._ledger.dept_used[dept] > d.dept_rows[dept][1] + EPSILON
        return bool(held > quota + EPSILON or outranked)

    def reclaimable(self) -> Bools:
        """Which projects hold more than their quota (or are in a department that does): nobody takes from others."""
        held, dept_held = self._held()
        return np.asarray(
            _above(held, self.quota)
            | (self.division.bounded & _above(dept_held, self.division.dept_quota))[self.division.dept]
        )

    def victims(self, project: int, extra: int) -> Bools:
        """From which projects a project may take so that it holds ``extra`` thousandths more.

        The two are compared one level below what they have in common: in one department the projects, else the
        departments. Whoever takes stays within its fair share and the victim is above its own; or whoever takes stays
        within a quota that was set and the victim is above its own. Never from a project within its quota, but for one
        whose department is beyond a quota of its own, and then not for a project beyond its quota.
        """
        held, dept_held = self._held()
        fair, dept = self.fair, self.division.dept
        margin, dept_margin = self._margins(project, extra)
        by_share = _above(held, fair + margin), _above(dept_held, self.division.dept_fair + dept_margin)
        by_quota = _above(held, self.quota), _above(dept_held, self.division.dept_quota)
        in_share, in_quota = self.within_share(project, extra), self.within_quota(project, extra)
        own, (claims, dept_claims) = dept == dept[project], self._claims(project, extra)
        inside = (by_share[0] & in_share) | (by_quota[0] & claims)
        by_share_of_dept = by_share[1] & by_quota[1] if dept_margin else by_share[1]
        outside = (by_share_of_dept & self._dept_within(project, extra, self.division.dept_fair, ROUNDING))[dept]
        outside |= (by_quota[1] & dept_claims)[dept]
        outside &= (by_share[0] | by_quota[0]) & (in_share or in_quota)
        outranked = (self.division.bounded & by_quota[1])[dept] & in_quota
        allowed = np.where(own, inside, outside) & (by_quota[0] | outranked)
        allowed[project] = False
        return np.asarray(allowed)

    def standing(self, project: int, extra: int) -> tuple[object, ...]:
        """All of a project that ``victims`` and ``may_take`` look at; who it is only where that matters.

        It is left out where it would not be a victim itself and is alone in its department.
        """
        d = self.division
        dept, own = d.project_rows[project][0], project if self.above(project) else None
        return (
            self.within_share(project, extra),
            self.within_quota(project, extra),
            self._claims(project, extra),
            self._dept_within(project, extra, d.dept_fair, ROUNDING),
            self._margins(project, extra),
            None if own is None and d.members[dept] == 1 else dept,
            own,
        )

    def may_take(self, project: int, extra: int, victim: int, freed: Mapping[int, int]) -> bool:
        """``victims`` for one more piece of work of ``victim`` when ``freed`` (by project) is gone already."""
        dept, fair, quota, _ = self.division.project_rows[victim]
        dept_fair, dept_quota, _ = self.division.dept_rows[dept]
        held = self._ledger.used[victim] - self._promised.get(victim, 0) - freed.get(victim, 0)
        margin, dept_margin = self._margins(project, extra)
        above_share, above_quota = held > fair + margin + EPSILON, held > quota + EPSILON
        in_share, in_quota = self.within_share(project, extra), self.within_quota(project, extra)
        away = sum(n for p, n in [*self._promised.items(), *freed.items()] if self.division.project_rows[p][0] == dept)
        held = self._ledger.dept_used[dept] - away
        outranked = in_quota and self.division.bounded[dept] and held > dept_quota + EPSILON
        if victim == project or not (above_quota or outranked):
            return False
        claims, dept_claims = self._claims(project, extra)
        if dept == self.division.project_rows[project][0]:
            return bool((in_share and above_share) or (claims and above_quota))
        within = self._dept_within(project, extra, self.division.dept_fair, ROUNDING)
        beyond_quota = held > dept_quota + EPSILON
        by_share = within and held > dept_fair + dept_margin + EPSILON and (beyond_quota or not dept_margin)
        by_quota = beyond_quota and dept_claims
        return bool((by_share or by_quota) and (above_share or above_quota) and (in_share or in_quota))

    def _claims(self, project: int, extra: int) -> tuple[bool, bool]:
        """Whether a project would stay within a quota that was set; and whether its department would with it.

        Without a quota a project claims its share alone: it may take more only from those who hold more than theirs.
        So does one whose department is beyond a quota of its own, inside it: its projects answer for that together.
        """
        d = self.division
        dept, within = d.project_rows[project][0], self.within_quota(project, extra)
        claims, bounded = within and bool(d.has_quota[project]), bool(d.bounded[dept])
        inside = claims and not (bounded and self._dept_claimed(dept) > d.dept_quota[dept] + EPSILON)
        return inside, (claims or (within and bounded)) and self._dept_within(project, extra, d.dept_quota)

    def _held(self) -> tuple[Ints, Ints]:
        held = self._ledger.used[: len(self.fair)].copy()
        depts = self._ledger.dept_used[: len(self.division.dept_fair)].copy()
        for project, permille in self._promised.items():
            if permille:
                held[project] -= permille
                depts[self.division.project_rows[project][0]] -= permille
        return held, depts

    def _margins(self, project: int, extra: int) -> tuple[float, float]:
        """By how much a victim, and its department, must be beyond their fair shares for who makes use of ROUNDING."""
        dept, fair, _, _ = self.division.project_rows[project]
        dept_fair = self.division.dept_rows[dept][0]
        beyond = self._claimed(project) + extra > fair + EPSILON
        dept_beyond = self._dept_claimed(dept) + extra > dept_fair + EPSILON
        margin = 2 * ROUNDING * extra
        return margin * bool(beyond), margin * bool(dept_beyond)

    def _dept_within(self, project: int, extra: int, bounds: Floats, rounding: float = 0.0) -> bool:
        dept = self.division.dept[project]
        return bool(self._dept_claimed(dept) + extra <= bounds[dept] + rounding * extra + EPSILON)

    def _claimed(self, project: int) -> int:
        return int(self._ledger.used[project]) - self._reserved.get(project, 0)

    def _all_claimed(self) -> Ints:
        claimed = self._ledger.used[: len(self.fair)].copy()
        for project, permille in self._reserved.items():
            claimed[project] -= permille
        return claimed

    def _dept_claimed(self, dept: int) -> int:
        away = sum(n for p, n in self._reserved.items() if n and self.division.project_rows[p][0] == dept)
        return int(self._ledger.dept_used[dept]) - away


def _above(held: Ints, bounds: Floats) -> Bools:
    return np.asarray(held > bounds + EPSILON)
