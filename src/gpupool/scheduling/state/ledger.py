"""Current and past use of departments, projects and users, with their quotas and limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from gpupool.domain.people.access import Department, Project, User
from gpupool.scheduling.state.allocation import Bools, Ints
from gpupool.scheduling.state.decayed_usage import Decay, Usage
from gpupool.scheduling.state.undo import UndoLog, grown

UNBOUNDED = 1 << 60  # thousandths
RECENT_STEP = 100  # thousandths: a smaller difference in recent use does not decide between users
RECENT_EVERY_S = 60.0  # how often recent use is updated to order users


class Bound(StrEnum):
    """The rule that leaves the least capacity."""

    PROJECT_QUOTA = "quota of the project"
    MODEL_QUOTA = "quota by model of the project"
    PROJECT_LIMIT = "limit of the project"
    DEPARTMENT_QUOTA = "quota of the department"
    DEPARTMENT_LIMIT = "limit of the department"
    USER_IN_PROJECT = "limit per user of the project"
    USER = "limit of the user"


class Account:
    """The numbers of a project, a user, and the user in the project, where use is counted.

    ``model`` is the number of the one GPU model that is requested by name; -1: none.
    """

    __slots__ = ("model", "pair", "preemptible", "project", "user")

    def __init__(self, project: int, user: int, pair: int, model: int, *, preemptible: bool) -> None:
        self.project, self.user, self.pair, self.model = project, user, pair, model
        self.preemptible = preemptible


_PROJECT_COLUMNS = ("used", "firm", "waiting", "waiting_firm", "quota", "limit", "weight", "dept")
_DEPT_COLUMNS = ("dept_used", "dept_firm", "dept_quota", "dept_limit", "dept_weight")


class Ledger:
    """Use in GPU thousandths per department, project, user, and user in a project.

    Current use changes through an undo log. ``used`` counts all work of a project, ``firm`` its protected work,
    ``waiting`` the requests of its queued work. A project or user without a description has no limits. ``dept`` is the
    number of a project's department; a project without one is a department of its own (``departments``: None).
    ``dept_quota`` is UNBOUNDED when it is the sum of the projects' quotas.
    """

    def __init__(self) -> None:
        self.projects: list[Project] = []
        self.users: list[User] = []
        self.departments: list[Department | None] = []
        self.used, self.firm = np.zeros(8, np.int64), np.zeros(8, np.int64)
        self.waiting, self.waiting_firm = np.zeros(8, np.int64), np.zeros(8, np.int64)
        self.user_used, self.pair_used = np.zeros(8, np.int64), np.zeros(8, np.int64)
        self.quota, self.limit = np.zeros(8, np.int64), np.zeros(8, np.int64)
        self.weight, self.dept = np.zeros(8), np.zeros(8, np.int64)
        self.dept_used, self.dept_firm = np.zeros(8, np.int64), np.zeros(8, np.int64)
        self.dept_quota, self.dept_limit = np.zeros(8, np.int64), np.zeros(8, np.int64)
        self.dept_weight = np.zeros(8)
        self._project_ids: dict[str, int] = {}
        self._user_ids: dict[str, int] = {}
        self._pair_ids: dict[tuple[int, int], int] = {}
        self.pair_project, self.pair_waiting = np.zeros(8, np.int64), np.zeros(8, np.int64)
        self.pair_weight = np.ones(8)
        self._pair_quotas: dict[int, int] = {}
        self._model_ids: dict[tuple[int, str], int] = {}
        self.model_firm = np.zeros(8, np.int64)
        self._model_quotas: dict[int, int] = {}
        self._dept_ids: dict[tuple[str, str], int] = {}
        self._described: dict[str, Department] = {}
        self.tune(Decay(), 1.0)
        self.recent = np.zeros(8, np.int64)  # of (project, user) pairs: see ``refresh_recent``
        self._recent_at: float | None = None
        self._reordered: set[int] = set()  # projects with new weights since the last ``refresh_recent``
        self.now = 0.0  # as of the last ``refresh_recent``

    def tune(self, decay: Decay, usage_weight: float) -> None:
        """Set the decay of usage and its weight in fair shares; call before anything is counted."""
        self.usage, self.pair_usage, self.usage_weight = Usage(decay), Usage(decay), usage_weight

    # --- projects, users and departments

    def set_project(self, project: Project) -> int:
        """Set a project's quotas and limits; return its number."""
        number = self._project_ids.setdefault(project.name, len(self.projects))
        if number == len(self.projects):
            self.projects.append(project)
            if number >= len(self.used):
                self._grow(_PROJECT_COLUMNS, 2 * number)
            self.dept[number] = -1
        self.projects[number] = project
        self._reordered.add(number)
        self.quota[number] = _bound(project.quota_permille)
        self.limit[number] = _bound(project.limit_permille)
        self.weight[number] = project.weight
        self._set_model_quotas(number, project)
        for (owner, user), pair in self._pair_ids.items():
            if owner == number:
                self._set_rules(pair, project, self.users[user])
        if not project.over_quota:
            self.limit[number] = min(self.limit[number], self.quota[number])
        self._join(number, self._dept_number(project))
        return number

    def _set_model_quotas(self, number: int, project: Project) -> None:
        for (owner, _), model in self._model_ids.items():
            if owner == number:
                self._model_quotas.pop(model, None)
        for name, permille in project.model_quotas:
            self._model_quotas[self._model_number(number, name)] = permille

    def _model_number(self, project: int, name: str) -> int:
        number = self._model_ids.setdefault((project, name.lower()), len(self._model_ids))
        if number >= len(self.model_firm):
            self._grow(("model_firm",), 2 * number)
        return number

    def model_quotas(self) -> Iterator[tuple[int, int, str, int]]:
        """Return the model quotas: project, number and lower-case name of the model, thousandths."""
        if self._model_quotas:
            for (project, name), model in self._model_ids.items():
                if model in self._model_quotas:
                    yield project, model, name, self._model_quotas[model]

    def set_user(self, user: User) -> int:
        """Set a user's limit; return the user's number."""
        number = self._user_ids.setdefault(user.name, len(self.users))
        if number == len(self.users):
            self.users.append(user)
            if number >= len(self.user_used):
                self._grow(("user_used",), 2 * number)
        self.users[number] = user
        return number

    def set_department(self, department: Department) -> None:
        """Set a department's quota and limit."""
        self._described[department.name] = department
        if ("department", department.name) in self._dept_ids:
            self._describe(self._dept_ids["department", department.name], department)

    def _dept_number(self, project: Project) -> int:
        key = ("department", project.department) if project.department else ("project", project.name)
        number = self._dept_ids.setdefault(key, len(self.departments))
        if number == len(self.departments):
            self.departments.append(None)
            if number >= len(self.dept_used):
                self._grow(_DEPT_COLUMNS, 2 * number)
        if project.department:
            self._describe(number, self._described.get(project.department, Department(project.department)))
        else:
            self.dept_quota[number] = self.dept_limit[number] = UNBOUNDED
            self.dept_weight[number] = project.weight
        return number

    def _describe(self, number: int, department: Department) -> None:
        self.departments[number] = department
        self.dept_quota[number] = _bound(department.quota_permille)
        self.dept_limit[number] = _bound(department.limit_permille)
        self.dept_weight[number] = department.weight

    def _join(self, project: int, dept: int) -> None:
        before = int(self.dept[project])
        if before == dept:
            return
        for total, own in ((self.dept_used, self.used), (self.dept_firm, self.firm)):
            total[dept] += own[project]
            if before >= 0:
                total[before] -= own[project]
        self.dept[project] = dept

    def _grow(self, columns: tuple[str, ...], size: int) -> None:
        for name in columns:
            setattr(self, name, grown(getattr(self, name), (size,)))

    def account(self, project: str, user: str, *, preemptible: bool, models: Sequence[str] = ()) -> Account:
        """Return the account for work of a user in a project that requests these GPU models (none: any)."""
        p = self._project_ids.get(project)
        p = self.set_project(Project(project)) if p is None else p
        u = self._user_ids.get(user)
        u = self.set_user(User(user)) if u is None else u
        pair = self._pair_ids.get((p, u))
        pair = self._new_pair(p, u) if pair is None else pair
        model = self._model_number(p, models[0]) if len(models) == 1 else -1
        return Account(p, u, pair, model, preemptible=preemptible)

    def _new_pair(self, project: int, user: int) -> int:
        pair = self._pair_ids[project, user] = len(self._pair_ids)
        if pair >= len(self.pair_used):
            self._grow(("pair_used", "pair_project", "pair_waiting", "pair_weight", "recent"), 2 * pair)
        self.pair_project[pair] = project
        self._set_rules(pair, self.projects[project], self.users[user])
        return pair

    def _set_rules(self, pair: int, project: Project, user: User) -> None:
        self.pair_weight[pair] = dict(project.rules.user_weights).get(user.name, 1.0)
        quota = dict(project.rules.user_quotas).get(user.name, 0)
        if quota:
            self._pair_quotas[pair] = quota
        else:
            self._pair_quotas.pop(pair, None)

    # --- current use

    def add(self, log: UndoLog, account: Account, permille: int) -> None:
        """Add use; a negative amount removes it."""
        dept = int(self.dept[account.project])
        log.add(self.used, account.project, permille)
        log.add(self.dept_used, dept, permille)
        if not account.preemptible:
            log.add(self.firm, account.project, permille)
            log.add(self.dept_firm, dept, permille)
            if account.model >= 0:
                log.add(self.model_firm, account.model, permille)
        log.add(self.user_used, account.user, permille)
        log.add(self.pair_used, account.pair, permille)

    def add_each(self, log: UndoLog, projects: Ints, users: Ints, pairs: Ints, permille: Ints) -> None:
        """Add use of preemptible work, by the numbers in ``Account``; negative amounts remove it."""
        log.add_each(self.used, projects, permille)
        log.add_each(self.dept_used, self.dept[projects], permille)
        log.add_each(self.user_used, users, permille)
        log.add_each(self.pair_used, pairs, permille)

    def wait(self, account: Account, permille: int) -> None:
        """Add requested but unallocated capacity; a negative amount removes it."""
        self.waiting[account.project] += permille
        self.pair_waiting[account.pair] += permille
        if not account.preemptible:
            self.waiting_firm[account.project] += permille

    # --- recent use

    def started(self, account: Account, permille: int, at: float) -> None:
        """Start use that is counted as current; a negative amount reverts it."""
        self.usage.started(account.project, permille, at)
        self.pair_usage.started(account.pair, permille, at)
        self._look_at(account)

    def ended(self, account: Account, permille: int, at: float) -> None:
        """End use that was started."""
        self.usage.ended(account.project, permille, at)
        self.pair_usage.ended(account.pair, permille, at)
        self._look_at(account)

    def remember(self, account: Account, permille_s: float, at: float) -> None:
        """Add decayed usage, as of ``at``, of leases that have ended."""
        self.usage.remember(account.project, permille_s, at)
        self.pair_usage.remember(account.pair, permille_s, at)

    def _look_at(self, account: Account) -> None:
        held = int(self.pair_used[account.pair])
        average = self.pair_usage.average_of(account.pair, held, self.now)
        self.recent[account.pair] = int(average) // RECENT_STEP * RECENT_STEP

    def refresh_recent(self, now: float) -> set[int]:
        """Update the recent use of users if it is time to; return the projects whose users may have another order.

        Recent use changes all the time, but the order of users is cached. So it is updated in steps of time and of
        size.
        """
        self.now = now
        changed, self._reordered = self._reordered, set()
        if self._recent_at is not None and abs(now - self._recent_at) < RECENT_EVERY_S:
            return changed
        self._recent_at = now
        count = len(self._pair_ids)
        average = self.pair_usage.average(self.pair_used[:count], now)
        recent = average.astype(np.int64) // RECENT_STEP * RECENT_STEP
        changed.update(self.pair_project[:count][recent != self.recent[:count]].tolist())
        self.recent[:count] = recent
        return changed

    def burden(self, account: Account) -> int:
        """Return a user's current and recent use in a project by its weight; the user with less is served first.

        Use within the quota of the user does not count.
        """
        pair = account.pair
        quota = self._pair_quotas.get(pair) if self._pair_quotas else None
        if quota is None:
            return int((self.pair_used[pair] + self.recent[pair]) / self.pair_weight[pair])
        beyond = self.pair_used[pair] - quota
        return 0 if beyond < 0 else int((beyond + max(0, self.recent[pair] - quota)) / self.pair_weight[pair])

    def pairs(self, now: float) -> list[tuple[str, str, int, float]]:
        """Return (project, user, thousandths held, recent average) for each user in each project."""
        average = self.pair_usage.average(self.pair_used[: len(self._pair_ids)], now)
        return [
            (self.projects[p].name, self.users[u].name, int(self.pair_used[at]), float(average[at]))
            for (p, u), at in self._pair_ids.items()
        ]

    def user_rows(self) -> tuple[Ints, Ints, Ints, npt.NDArray[np.float64], Ints]:
        """Return project, thousandths held, thousandths waited for, weight and quota, by ``Account.pair``."""
        n = len(self._pair_ids)
        quota = np.zeros(n, np.int64)
        quota[list(self._pair_quotas)] = list(self._pair_quotas.values())
        waiting, weight = self.pair_waiting[:n], self.pair_weight[:n]
        return self.pair_project[:n], self.pair_used[:n], waiting, weight, quota

    # --- room under limits and quotas

    def rooms(self, account: Account) -> tuple[tuple[Bound, int, int], ...]:
        """Return every limit that applies: (which, its value, thousandths left under it)."""
        p, project = account.project, self.projects[account.project]
        rooms: list[tuple[Bound, int, int]] = []
        if project.quota_permille is not None and account.preemptible and not project.over_quota:
            rooms.append((Bound.PROJECT_QUOTA, project.quota_permille, project.quota_permille - int(self.used[p])))
        if project.quota_permille is not None and not account.preemptible:
            held = int(self.firm[p]) if project.over_quota else int(self.used[p])
            rooms.append((Bound.PROJECT_QUOTA, project.quota_permille, project.quota_permille - held))
        of_model = None if account.preemptible else self._model_quotas.get(account.model)
        if of_model is not None:
            rooms.append((Bound.MODEL_QUOTA, of_model, of_model - int(self.model_firm[account.model])))
        if project.limit_permille is not None:
            rooms.append((Bound.PROJECT_LIMIT, project.limit_permille, project.limit_permille - int(self.used[p])))
        rooms += self._department_rooms(account)
        per_user, own = project.user_limit_permille, self.users[account.user].gpu_limit_permille
        if per_user is not None:
            rooms.append((Bound.USER_IN_PROJECT, per_user, per_user - int(self.pair_used[account.pair])))
        if own is not None:
            rooms.append((Bound.USER, own, own - int(self.user_used[account.user])))
        return tuple(rooms)

    def _department_rooms(self, account: Account) -> list[tuple[Bound, int, int]]:
        number = int(self.dept[account.project])
        department = self.departments[number]
        rooms: list[tuple[Bound, int, int]] = []
        if department is None:
            return rooms
        quota, limit = department.quota_permille, department.limit_permille
        if quota is not None and not account.preemptible:
            rooms.append((Bound.DEPARTMENT_QUOTA, quota, quota - int(self.dept_firm[number])))
        if limit is not None:
            rooms.append((Bound.DEPARTMENT_LIMIT, limit, limit - int(self.dept_used[number])))
        return rooms

    def room(self, account: Account) -> int:
        """Return the thousandths that can be added now under all limits."""
        return min((left for _, _, left in self.rooms(account)), default=UNBOUNDED)

    def admits(self, account: Account, permille: int) -> bool:
        """Return True if ``permille`` thousandths can be added now; zero is always allowed."""
        return not permille or permille <= self.room(account)

    def limited(self) -> set[int]:
        """Return the projects that have a limit, of their own or of their department."""
        count = len(self.projects)
        limits = np.minimum(self.limit[:count], self.dept_limit[self.dept[:count]])
        return set(np.flatnonzero(limits < UNBOUNDED).tolist())

    def each_within_limits(self, projects: Ints | int, extra: Ints | int) -> Bools:
        """Return ``within_limits`` of many projects."""
        dept = self.dept[projects]
        own = self.used[projects] + extra <= self.limit[projects]
        return np.asarray((own & (self.dept_used[dept] + extra <= self.dept_limit[dept])) | (extra == 0))

    def within_limits(self, project: int, extra: int) -> bool:
        """Return True if a project and its department stay within their limits with ``extra`` thousandths more."""
        return bool(self.each_within_limits(project, extra))


def _bound(permille: int | None) -> int:
    return UNBOUNDED if permille is None else permille
