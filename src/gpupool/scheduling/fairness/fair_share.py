"""Scheduling order of projects, and rules of reclaim between them, from fair shares (``division``) and held GPUs.

The order and the rules of reclaim follow KAI's proportion plugin; the entry charge in ``decayed_usage`` is Kueue's
idea.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from gpupool.scheduling.fairness.water_filling import EPSILON, Bools, Division, FairnessSnapshot, Floats, Ints
from gpupool.scheduling.state.ledger import Ledger

Order = tuple[int, float, float]

# Work cannot be divided at will. This part of a job may exceed the fair share if the victim exceeds its own share by
# twice as much, and its quota as well. Otherwise the victim would reclaim its guaranteed GPUs, and so on for ever.
ROUNDING = 0.25


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
        dept, fair, quota, due = self.division.project_rows[project]
        dept_fair, dept_quota, dept_due = self.division.dept_rows[dept]
        used, dept_used = int(self._ledger.used[project]), int(self._ledger.dept_used[dept])
        sated = used + EPSILON > fair or dept_used + EPSILON > dept_fair
        over = used + extra > quota + EPSILON or dept_used + extra > dept_quota + EPSILON
        return 2 * sated + over, (dept_used + extra) / dept_due, (used + extra) / due

    def orders(self, projects: Ints, extra: int) -> Iterator[tuple[int, float, float, int]]:
        """Yield ``order`` of many projects, each followed by its project, in scheduling order."""
        d, dept = self.division, self.division.dept[projects]
        used, dept_used = self._ledger.used[projects], self._ledger.dept_used[dept]
        sated = (used + EPSILON > d.fair[projects]) | (dept_used + EPSILON > d.dept_fair[dept])
        used, dept_used = used + extra, dept_used + extra
        over = (used > d.quota[projects] + EPSILON) | (dept_used > d.dept_quota[dept] + EPSILON)
        columns = 2 * sated + over, dept_used / d.dept_due[dept], used / d.due[projects], projects
        first = np.lexsort(columns[::-1])
        return zip(*(column[first].tolist() for column in columns), strict=True)

    # --- rules of reclaim

    def within_share(self, project: int, extra: int) -> bool:
        """Return whether a project stays within its fair share with ``extra`` thousandths more.

        The part ``ROUNDING`` of ``extra`` may exceed it.
        """
        most = self.division.project_rows[project][1] + ROUNDING * extra
        return bool(self._claimed(project) + extra <= most + EPSILON)

    def within_quota(self, project: int, extra: int) -> bool:
        """Return whether a project stays within its quota; without one, its fair share is its quota."""
        return bool(self._claimed(project) + extra <= self.division.project_rows[project][2] + EPSILON)

    def promised(self, project: int, extra: int) -> bool:
        """Return whether ``extra`` thousandths more are within a quota that was set.

        This is the project's quota, or that of its department if the project has none.
        """
        d = self.division
        if d.has_quota[project]:
            return self.within_quota(project, extra)
        dept = d.project_rows[project][0]
        return bool(d.bounded[dept]) and self._dept_within(dept, extra, d.dept_rows[dept][1])

    def any_promised(self) -> Bools:
        """Return which projects may be ``promised`` something, regardless of what they hold."""
        return np.asarray(np.where(self.division.has_quota, self.quota > 0, self.division.bounded[self.division.dept]))

    def may_reclaim(self, project: int, extra: int) -> bool:
        """Return whether a project may take ``extra`` thousandths from others.

        It may if it stays within its quota or fair share.
        """
        return self.within_quota(project, extra) or self.within_share(project, extra)

    def claims_quota(self, project: int, extra: int) -> bool:
        """Return whether a project stays within its set quota with ``extra`` thousandths more.

        If its department has a quota of its own, it must stay within that as well.
        """
        d = self.division
        dept = d.project_rows[project][0]
        within = bool(d.has_quota[project]) and self.within_quota(project, extra)
        return within and (not d.bounded[dept] or self._dept_within(dept, extra, d.dept_rows[dept][1]))

    def claims_share(self, project: int, extra: int) -> bool:
        """Return whether a project stays within its fair share with ``extra`` thousandths more, without rounding.

        Its department must stay within its own as well.
        """
        dept, fair, _, _ = self.division.project_rows[project]
        within = self._claimed(project) + extra <= fair + EPSILON
        return bool(within) and self._dept_within(dept, extra, self.division.dept_rows[dept][0])

    def budget(self, project: int) -> int:
        """Return the most thousandths that a project may take from others now."""
        _, fair, quota, _ = self.division.project_rows[project]
        used = self._claimed(project)
        return max(int((fair - used) / (1 - ROUNDING) + EPSILON), int(quota + EPSILON) - used, 0)

    def takers(self) -> Bools:
        """Return which projects ``may_reclaim`` at all."""
        most, after = self.fair + ROUNDING, self._all_claimed() + 1
        return np.asarray((after <= most + EPSILON) | (after <= self.quota + EPSILON))

    def budgets(self) -> Ints:
        """Return ``budget`` of every project."""
        used = self._all_claimed()
        by_share = ((self.fair - used) / (1 - ROUNDING) + EPSILON).astype(np.int64)
        by_quota = (self.quota + EPSILON).astype(np.int64) - used
        return np.asarray(np.maximum(np.maximum(by_share, by_quota), 0))

    def above(self, project: int) -> bool:
        """Return whether one project is ``reclaimable``.

        Unlike there, what its department holds includes promises.
        """
        d = self.division
        dept, _, quota, _ = d.project_rows[project]
        held = self._ledger.used[project] - self._promised.of_project(project)
        outranked = d.bounded[dept] and self._ledger.dept_used[dept] > d.dept_rows[dept][1] + EPSILON
        return bool(held > quota + EPSILON or outranked)

    def reclaimable(self) -> Bools:
        """Return which projects hold more than their quota, or are in a department above a quota of its own.

        Nothing is taken from other projects.
        """
        held, dept_held = self._held()
        return np.asarray(
            _above(held, self.quota)
            | (self.division.bounded & _above(dept_held, self.division.dept_quota))[self.division.dept]
        )

    def may_reserve(self, project: int, extra: int, settled: int, dept_settled: int) -> bool:
        """Return whether GPUs may be held for a job of ``extra`` thousandths without being reclaimed at once.

        It may if the job stays within the quota or the fair share, with the same rounding as ``victims``. A job that is
        larger than the share waits until its project holds nothing else, so that each job gets its turn. ``settled`` is
        what the project holds, without what started after the job was queued; ``dept_settled`` is the same for its
        department. The share must be at least ``ROUNDING`` of the job, so that the project does not lose it as soon as
        the share shrinks.
        """
        dept, fair, quota, _ = self.division.project_rows[project]
        dept_fair, dept_quota, _ = self.division.dept_rows[dept]
        used, dept_used = int(self._ledger.used[project]), int(self._ledger.dept_used[dept])
        most, dept_most = max(quota, fair + ROUNDING * extra), max(dept_quota, dept_fair + ROUNDING * extra)
        within, dept_within = used + extra <= most + EPSILON, dept_used + extra <= dept_most + EPSILON
        alone = not settled and fair >= ROUNDING * extra
        dept_alone = not dept_settled and dept_fair >= ROUNDING * extra
        return bool((within or alone) and (dept_within or dept_alone))

    def victims(self, project: int, extra: int) -> Bools:
        """Return from which projects a project may take so that it holds ``extra`` thousandths more.

        Two projects are compared one level below what they have in common: as projects in one department, else by their
        departments. Either the taker stays within its fair share and the victim is above its own, or the taker stays
        within a quota that was set and the victim is above its own. A project within its quota is no victim, unless its
        department is above a quota of its own and the taker stays within its quota. ``takes`` says which pieces of them
        go.
        """
        by_share, by_quota = self._grounds(project, extra)
        return by_share | by_quota

    def takes(self, project: int, extra: int, owner: Ints, piece: Ints) -> Bools:
        """Return which pieces a project may take; ``owner`` and ``piece`` are their projects and thousandths.

        The projects are those of ``victims``. By fair share, a piece larger than the job goes in two cases only: its
        project is above its share by the whole piece, or the taker could hold as much within its own share and the
        piece is not all that the victim holds. Otherwise the victim would be as far below its share as it was above,
        and take the piece back.
        """
        by_share, by_quota = self._grounds(project, extra)
        found = (by_share | by_quota)[owner]
        large = np.flatnonzero(found & ~by_quota[owner] & (piece > extra))
        if not len(large):
            return np.asarray(found)
        dept, held = self.division.dept, self._held()
        mine, theirs = dept[project], dept[owner[large]]
        own = theirs == mine
        fair = np.where(own, self.fair[owner[large]], self.division.dept_fair[theirs])
        has = np.where(own, held[0][owner[large]], held[1][theirs])
        room = np.where(own, self._room(project), self._dept_room(project))
        found[large] = _lies_beyond(has, fair, room, piece[large])
        return np.asarray(found)

    def _room(self, project: int) -> float:
        return float(self.division.project_rows[project][1]) - self._claimed(project)

    def _dept_room(self, project: int) -> float:
        dept = self.division.project_rows[project][0]
        return float(self.division.dept_rows[dept][0]) - self._dept_claimed(dept)

    def _grounds(self, project: int, extra: int) -> tuple[Bools, Bools]:
        """Return from which projects a project may take by fair share, and from which by a quota that was set."""
        held, dept_held = self._held()
        fair, dept = self.fair, self.division.dept
        margin, dept_margin = self._margins(project, extra)
        by_share = _above(held, fair + margin), _above(dept_held, self.division.dept_fair + dept_margin)
        by_quota = _above(held, self.quota), _above(dept_held, self.division.dept_quota)
        in_share, in_quota = self.within_share(project, extra), self.within_quota(project, extra)
        own, (claims, dept_claims) = dept == dept[project], self._claims(project, extra)
        by_share_of_dept = by_share[1] & by_quota[1] if dept_margin else by_share[1]
        by_share_of_dept = by_share_of_dept & self._dept_rounded(project, extra)
        beyond = (by_share[0] | by_quota[0]) & (in_share or in_quota)
        outside = by_share_of_dept[dept] & beyond
        outside_by_quota = (by_quota[1] & dept_claims)[dept] & beyond
        outranked = (self.division.bounded & by_quota[1])[dept] & in_quota
        others = np.arange(len(dept)) != project
        others &= by_quota[0] | outranked
        return (
            np.asarray(np.where(own, by_share[0] & in_share, outside) & others),
            np.asarray(np.where(own, by_quota[0] & claims, outside_by_quota) & others),
        )

    def standing(self, project: int, extra: int, pieces: Sequence[int]) -> tuple[object, ...]:
        """Return everything about a project on which ``takes`` and ``may_take`` depend, as a key.

        The project itself is part of the key only if it could be a victim. Its department is left out only if the
        project could not be a victim and is alone in it. ``pieces`` are the sizes that exist, in order: which large
        ones a project may take depends on the room in its share.
        """
        room, dept_room = self._room(project) + EPSILON, self._dept_room(project) + EPSILON
        d, rounded = self.division, 1 - ROUNDING
        dept, own = d.project_rows[project][0], project if self.above(project) else None
        return (
            self.within_share(project, extra),
            self.within_quota(project, extra),
            self._claims(project, extra),
            self._dept_rounded(project, extra),
            self._margins(project, extra),
            tuple(bisect_right(pieces, most) for most in (room, dept_room, room / rounded, dept_room / rounded)),
            None if own is None and d.members[dept] == 1 else dept,
            own,
        )

    def may_take(self, project: int, extra: int, victim: int, piece: int, freed: Mapping[int, int]) -> bool:
        """Return whether a project may take one more piece of ``victim`` when ``freed`` (by project) is gone already.

        The rules are those of ``takes``.
        """
        dept, fair, quota, _ = self.division.project_rows[victim]
        dept_fair, dept_quota, _ = self.division.dept_rows[dept]
        own_held = self._ledger.used[victim] - self._promised.of_project(victim) - freed.get(victim, 0)
        margin, dept_margin = self._margins(project, extra)
        above_share, above_quota = own_held > fair + margin + EPSILON, own_held > quota + EPSILON
        in_share, in_quota = self.within_share(project, extra), self.within_quota(project, extra)
        away = sum(n for p, n in freed.items() if self.division.project_rows[p][0] == dept)
        held = self._ledger.dept_used[dept] - self._promised.of_department(dept) - away
        outranked = in_quota and self.division.bounded[dept] and held > dept_quota + EPSILON
        if victim == project or not (above_quota or outranked):
            return False
        claims, dept_claims = self._claims(project, extra)
        if dept == self.division.project_rows[project][0]:
            by_share = in_share and above_share
            if by_share and piece > extra:
                by_share = bool(_lies_beyond(own_held, fair, self._room(project), piece))
            return bool(by_share or (claims and above_quota))
        within = self._dept_rounded(project, extra)
        beyond_quota = held > dept_quota + EPSILON
        by_share = within and held > dept_fair + dept_margin + EPSILON and (beyond_quota or not dept_margin)
        if by_share and piece > extra:
            by_share = bool(_lies_beyond(held, dept_fair, self._dept_room(project), piece))
        by_quota = beyond_quota and dept_claims
        return bool((by_share or by_quota) and (above_share or above_quota) and (in_share or in_quota))

    def _claims(self, project: int, extra: int) -> tuple[bool, bool]:
        """Return whether a project may claim by a set quota: inside its department, and from other departments.

        Without a quota a project claims only its share: inside its department it may take more only from projects above
        theirs. The same holds inside a department above a quota of its own: its projects answer for that together.
        """
        d = self.division
        dept, within = d.project_rows[project][0], self.within_quota(project, extra)
        claims, bounded = within and bool(d.has_quota[project]), bool(d.bounded[dept])
        dept_quota = d.dept_rows[dept][1]
        inside = claims and not (bounded and self._dept_claimed(dept) > dept_quota + EPSILON)
        return inside, (claims or (within and bounded)) and self._dept_within(dept, extra, dept_quota)

    def _held(self) -> tuple[Ints, Ints]:
        held = self._ledger.used[: len(self.fair)].copy()
        depts = self._ledger.dept_used[: len(self.division.dept_fair)].copy()
        self._promised.subtract_from(held)
        self._promised.subtract_from_departments(depts)
        return held, depts

    def _margins(self, project: int, extra: int) -> tuple[float, float]:
        """Return by how much a victim, and its department, must exceed their fair shares.

        Each is 0 unless the taker, or its department, would exceed its own fair share.
        """
        dept, fair, _, _ = self.division.project_rows[project]
        dept_fair = self.division.dept_rows[dept][0]
        beyond = self._claimed(project) + extra > fair + EPSILON
        dept_beyond = self._dept_claimed(dept) + extra > dept_fair + EPSILON
        margin = 2 * ROUNDING * extra
        return margin * bool(beyond), margin * bool(dept_beyond)

    def _dept_within(self, dept: int, extra: int, bound: float) -> bool:
        return bool(self._dept_claimed(dept) + extra <= bound + EPSILON)

    def _dept_rounded(self, project: int, extra: int) -> bool:
        """Return whether the department of a project stays within its fair share, of which a part may be exceeded."""
        dept = self.division.project_rows[project][0]
        return self._dept_within(dept, extra, self.division.dept_rows[dept][0] + ROUNDING * extra)

    def _claimed(self, project: int) -> int:
        return int(self._ledger.used[project]) - self._reserved.of_project(project)

    def _all_claimed(self) -> Ints:
        claimed = self._ledger.used[: len(self.fair)].copy()
        self._reserved.subtract_from(claimed)
        return claimed

    def _dept_claimed(self, dept: int) -> int:
        return int(self._ledger.dept_used[dept]) - self._reserved.of_department(dept)


def _lies_beyond(held: Ints | int, fair: Floats | float, room: Floats | float, piece: Ints | int) -> Bools:
    """Return whether pieces larger than the job may go.

    ``held`` and ``fair`` belong to their owner; ``room`` is how much more the taker may hold of its own share.
    """
    over, room, piece = np.asarray(held - fair), np.asarray(room) + EPSILON, np.asarray(piece)
    margin = np.where(piece > room, 2 * ROUNDING * piece, 0.0)
    swap = (piece * (1 - ROUNDING) <= room) & (over > margin + EPSILON) & (held > piece)
    return np.asarray((over + EPSILON >= piece) | swap)


def _above(held: Ints, bounds: Floats) -> Bools:
    return np.asarray(held > bounds + EPSILON)
