"""Claims to whole GPUs: which projects may take GPUs that others use in parts, and how many the others keep.

Quotas are counted in whole GPUs here: by footprint, not by the thousandths of the parts. A GPU that is used in parts is
lost for whole-GPU work, so it counts as one GPU, divided among the projects that use it in proportion to their parts. A
project whose footprint exceeds its bound is beyond it, and its parts no longer count for others: a project that shares
a GPU only with such projects has the whole GPU in its footprint. This can put others beyond their bounds, so it is
computed to a fixed point. All amounts are thousandths of a GPU.

Work on whole GPUs within a quota that was set may take GPUs from every project whose footprint exceeds its own quota; a
project without a quota is guaranteed nothing then. Without a quota the same is done by fair shares, and no project is
left with less than its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from gpupool.domain.units import WHOLE_GPU
from gpupool.scheduling.session import SchedulingSession
from gpupool.scheduling.state.allocation import EPSILON, Bools, Ints
from gpupool.scheduling.state.queue import Group
from gpupool.scheduling.state.running import Floats
from gpupool.scheduling.values import HoldKind

NOBODY = -1  # the slot of a claim that nobody holds yet


@dataclass(frozen=True, slots=True, eq=False)
class Bounds:
    """The bounds on the GPUs of projects, as seen by one of them, the ``taker``, which is never beyond its own.

    With ``NOBODY`` as the taker, every project may be beyond its bound.

    ``group`` is the number of each project's department, or its own where it is compared by itself: a project that
    shares its department with nobody, and those of the taker's department. A project of a larger group is beyond its
    bound only if its group is beyond ``of_group`` as well.
    """

    taker: int
    project: Floats
    group: Ints
    of_group: Floats


@dataclass(frozen=True, slots=True, eq=False)
class FootprintUse:
    """Footprints at one moment: ``used`` by project, ``beyond``: which projects may lose GPUs.

    ``own`` is each project's part of every GPU that nobody within its bound uses, by pair of project and GPU; 0 on
    other GPUs. ``own_used`` is its sum by project.
    """

    used: Floats
    beyond: Bools
    own: Floats
    own_used: Floats


class Footprints:
    """Amounts held of every GPU, by entry (a holder on a GPU) and by pair of a project and a GPU.

    ``gpu`` numbers GPUs as ``row * slots + slot``. ``slot`` is that of the holder, or ``NOBODY``.
    """

    def __init__(self, session: SchedulingSession) -> None:
        self._projects = len(session.ledger.projects)
        holders, width = session.demand.holders, session.cluster.slots
        leaving = session.leaving_slots()
        here = holders.row >= 0
        here[leaving] = False
        at = np.flatnonzero(here)
        which, place = np.nonzero(holders.gpu[at])
        at = at[which]
        coming = _coming(session)
        self.slot = np.r_[at, np.full(len(coming), NOBODY)]
        self.gpu = np.r_[holders.row[at] * width + place, coming[:, 1]]
        self.amount = np.r_[holders.gpu[at, place], coming[:, 2]].astype(np.float64)
        self.project = np.r_[holders.project[at], coming[:, 0]]
        self._number_pairs(session.cluster.gpu_free.size)

    def _number_pairs(self, gpus: int) -> None:
        keys, self.pair = np.unique(self.project * gpus + self.gpu, return_inverse=True)
        self.pair_project, pair_gpu = keys // max(gpus, 1), keys % max(gpus, 1)
        self.gpus, self.pair_at = np.unique(pair_gpu, return_inverse=True)  # only GPUs in use
        self.at = self.pair_at[self.pair]
        self.pair_amount: Floats = np.bincount(self.pair, self.amount, len(keys)).astype(np.float64)

    def without(self, slots: Iterable[int]) -> None:
        """Remove the holders in some slots."""
        gone = np.isin(self.slot, list(slots)) & (self.amount > 0)
        np.subtract.at(self.pair_amount, self.pair[gone], self.amount[gone])
        self.amount[gone] = 0.0

    def amounts(self) -> tuple[Floats, Floats]:
        """Return what ``restore`` needs to take ``without`` back."""
        return self.amount.copy(), self.pair_amount.copy()

    def restore(self, amounts: tuple[Floats, Floats]) -> None:
        """Set the amounts as they were."""
        self.amount[:], self.pair_amount[:] = amounts

    def standing(self, bounds: Bounds) -> FootprintUse:
        """Return the footprints of all projects and which of them are beyond their bounds."""
        safe = np.ones(self._projects, np.bool_)
        while True:
            counts = self.pair_amount * safe[self.pair_project]
            base: Floats = np.bincount(self.pair_at, counts, len(self.gpus)).astype(np.float64)
            used = self._used(self.pair_project, self.pair_at, self.pair_amount, counts, base, self._projects)
            beyond = safe & (used > bounds.project + EPSILON)
            if bounds.taker != NOBODY:
                beyond[bounds.taker] = False
            if beyond.any() and len(bounds.of_group):
                beyond &= (
                    self._groups_used(bounds, counts, base)[bounds.group] > bounds.of_group[bounds.group] + EPSILON
                )
            if not beyond.any():
                break
            safe &= ~beyond
        alone = self.pair_amount * (base[self.pair_at] == 0)
        total = np.bincount(self.pair_at, alone, len(self.gpus))
        own: Floats = WHOLE_GPU * alone / np.maximum(total, 1.0)[self.pair_at]
        own_used = np.bincount(self.pair_project, own, self._projects).astype(np.float64)
        return FootprintUse(used, ~safe, own, own_used)

    def _groups_used(self, bounds: Bounds, counts: Floats, base: Floats) -> Floats:
        """Return the footprint of every group, as if it were one project."""
        keys, back = np.unique(bounds.group[self.pair_project] * len(self.gpus) + self.pair_at, return_inverse=True)
        amount = np.bincount(back, self.pair_amount).astype(np.float64)
        counted = np.bincount(back, counts).astype(np.float64)
        group, at = keys // max(len(self.gpus), 1), keys % max(len(self.gpus), 1)
        return self._used(group, at, amount, counted, base, len(bounds.of_group))

    @staticmethod
    def _used(who: Ints, at: Ints, amount: Floats, counted: Floats, base: Floats, count: int) -> Floats:
        total = base[at] - counted + amount
        return np.bincount(who, WHOLE_GPU * amount / np.where(total > 0, total, 1.0), count).astype(np.float64)


def _coming(session: SchedulingSession) -> Ints:
    """Return the grants of this cycle and the holds until GPUs are free: project, GPU, thousandths; [n, 3]."""
    claims = [(account.project, claim) for _, claim, account in session.outcome.placed]
    active_holds = [active for active in session.holds.active.values() if active.hold.kind is not HoldKind.RESERVED]
    claims += [(active.account.project, active.claim) for active in active_holds]
    known = [(project, claim.row, claim.gpu) for project, claim in claims if claim.row >= 0]
    if not known:
        return np.zeros((0, 3), np.int64)
    projects, rows, used = (np.array(column) for column in zip(*known, strict=True))
    which, slots = np.nonzero(used)
    return np.stack([projects[which], rows[which] * session.cluster.slots + slots, used[which, slots]], axis=1)


def parts_exist(session: SchedulingSession) -> bool:
    """Return whether a running replica uses a part of a GPU."""
    holders = session.demand.holders
    holders.catch_up(session.cluster)
    return bool((holders.gpu % WHOLE_GPU > 0).any())


@dataclass(frozen=True, slots=True, eq=False)
class WholeClaim:
    """A claim of a project: by a set quota (``promised``) or by fair share; ``due``: what each project should keep."""

    bounds: Bounds
    due: Floats
    promised: bool

    def allows(self, standing: FootprintUse, need: int) -> bool:
        """Return whether the project stays within its bound with ``need`` thousandths more."""
        taker = self.bounds.taker
        return bool(standing.used[taker] + need <= self.bounds.project[taker] + EPSILON)


@dataclass(frozen=True, slots=True, eq=False)
class Claimed:
    """A claim, with the footprints on every GPU at the moment when it is made."""

    claim: WholeClaim
    footprints: Footprints
    standing: FootprintUse


class WholeClaims:
    """The claims to whole GPUs in one cycle. While no GPU is used in parts there are none: quotas decide alone."""

    def __init__(self, session: SchedulingSession) -> None:
        self._session = session
        self._exist: bool | None = None
        self._known: dict[tuple[int, bool], WholeClaim] = {}
        self._footprints: tuple[tuple[int, ...], Footprints] | None = None
        self._standings: dict[tuple[int, bool], FootprintUse] = {}  # of ``_footprints``

    @property
    def exist(self) -> bool:
        """Return whether work on whole GPUs waits while running work uses parts of GPUs."""
        if self._exist is None:
            waiting = any(shape.whole and not shape.gpuless for shape in self._session.demand.shape_projects)
            self._exist = waiting and parts_exist(self._session)
        return self._exist

    def of(self, group: Group, need: int) -> WholeClaim | None:
        """Return the claim of a group that needs ``need`` thousandths on whole GPUs; None if it has none."""
        if not self.exist or not group.shape.whole or group.shape.gpuless:
            return None
        shares, project = self._session.shares, group.account.project
        if shares.claims_quota(project, need):
            return self._claim(project, promised=True)
        return self._claim(project, promised=False) if shares.claims_share(project, need) else None

    def claimed_by(self, projects: Ints, need: int) -> Bools:
        """Return the projects whose work on whole GPUs has a claim."""
        return self._session.shares.each_claims(projects, need)

    def outgrows(self, group: Group) -> bool:
        """Return whether parts of GPUs could exceed their project's bound by footprint if each opened another GPU.

        Work on whole GPUs would take such GPUs back at once, so these parts take no whole GPUs from other projects.
        """
        if group.shape.whole or group.shape.gpuless:
            return False
        project, more = group.account.project, group.shape.request.count * group.size
        if (outgrown := self._outgrown(group, more)) is not None:
            return bool(outgrown[project])
        return bool(self._exceeds(self._standing(self._claim(project, promised=False)), more)[project])

    def outgrown_by(self, projects: Ints, group: Group) -> Bools:
        """Return which of ``projects`` outgrow their bounds with the same parts; with departments, none is known to."""
        outgrown = self._outgrown(group, group.shape.request.count * group.size)
        return np.zeros(len(projects), np.bool_) if outgrown is None else outgrown[projects]

    def _outgrown(self, group: Group, more: int) -> Bools | None:
        """Return which projects outgrow their bounds with ``more`` GPUs; None with departments: footprints differ.

        A project that is beyond its bound when every project may be, is so when it computes for itself.
        """
        bounds = self._claim(group.account.project, promised=False).bounds
        if len(bounds.of_group):
            return None
        standing = self._standing_of(replace(bounds, taker=NOBODY), promised=False)
        return standing.beyond | self._exceeds(standing, more)

    def _exceeds(self, standing: FootprintUse, gpus: int) -> Bools:
        """Return the projects whose footprint would exceed their bound, in whole GPUs, if they opened more GPUs."""
        d = self._session.shares.division
        bounds = np.ceil(np.maximum(d.quota, d.fair) / WHOLE_GPU) * WHOLE_GPU
        return np.asarray(standing.used + gpus * WHOLE_GPU > bounds + EPSILON)

    def _current(self) -> Footprints:
        session = self._session
        firm = sum(active.hold.kind is not HoldKind.RESERVED for active in session.holds.active.values())
        version = len(session.outcome.leaving), firm, len(session.outcome.placed)
        if self._footprints is None or self._footprints[0] != version:
            self._footprints = version, Footprints(session)
            self._standings.clear()
        return self._footprints[1]

    def _standing(self, claim: WholeClaim) -> FootprintUse:
        """Return the footprints as a claim sees them now; the same for all jobs of a project.

        Without departments all projects have the same bounds, and only those beyond theirs see other footprints.
        """
        bounds = claim.bounds
        if not len(bounds.of_group):
            found = self._standing_of(replace(bounds, taker=NOBODY), promised=claim.promised)
            if not found.beyond[bounds.taker]:
                return found
        return self._standing_of(bounds, promised=claim.promised)

    def _standing_of(self, bounds: Bounds, *, promised: bool) -> FootprintUse:
        footprints, key = self._current(), (bounds.taker, promised)
        if key not in self._standings:
            self._standings[key] = footprints.standing(bounds)
        return self._standings[key]

    def effective(self, claim: WholeClaim, need: int) -> Claimed | None:
        """Return the basis of a claim to ``need`` thousandths; None if it entitles to nothing now."""
        standing = self._standing(claim)
        entitled = claim.allows(standing, need) and bool(standing.beyond.any())
        return Claimed(claim, self._current(), standing) if entitled else None

    def _claim(self, project: int, *, promised: bool) -> WholeClaim:
        known = self._known.get((project, promised))
        if known is None:
            known = self._known[project, promised] = self._made(project, promised=promised)
        return known

    def _made(self, project: int, *, promised: bool) -> WholeClaim:
        d = self._session.shares.division
        due = np.maximum(d.quota, d.fair)
        own = np.where(d.has_quota, d.quota, 0.0) if promised else due
        sums = np.bincount(d.dept, own, len(d.bounded))
        limit = d.dept_quota if promised else np.maximum(d.dept_quota, d.dept_fair)
        of_dept = np.where(d.bounded, limit, sums)
        if max(d.members, default=0) <= 1 and not d.bounded.any():
            return WholeClaim(Bounds(project, own, d.dept, np.zeros(0)), due, promised)
        group, inside = d.dept.copy(), np.flatnonzero(d.dept == d.dept[project])
        group[inside] = len(of_dept) + np.arange(len(inside))
        return WholeClaim(Bounds(project, own, group, np.r_[of_dept, own[inside]]), due, promised)
