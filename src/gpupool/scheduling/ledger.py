"""What projects and users hold, and how much more they may: quotas, limits and their order of deprivation."""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from gpupool.domain.access import Project, User
from gpupool.scheduling.undo import UndoLog, grown

UNBOUNDED = 1 << 60  # thousandths


class Bound(StrEnum):
    """Which rule leaves the least room."""

    PROJECT_QUOTA = "quota of the project"
    PROJECT_LIMIT = "limit of the project"
    USER_IN_PROJECT = "limit per user of the project"
    USER = "limit of the user"


class Account:
    """Where one kind of holder's use is counted: numbers of its project, user and of the user in the project."""

    __slots__ = ("pair", "preemptible", "project", "user")

    def __init__(self, project: int, user: int, pair: int, *, preemptible: bool) -> None:
        self.project, self.user, self.pair, self.preemptible = project, user, pair, preemptible


class Ledger:
    """Use in GPU thousandths per project, user, and user in a project; every change goes through an undo log.

    ``used`` counts all work of a project, ``firm`` its protected work. A project or user nobody has described has
    no bounds.
    """

    def __init__(self) -> None:
        self.projects: list[Project] = []
        self.users: list[User] = []
        self.used, self.firm = np.zeros(8, np.int64), np.zeros(8, np.int64)
        self.user_used, self.pair_used = np.zeros(8, np.int64), np.zeros(8, np.int64)
        self.quota, self.limit = np.zeros(8, np.int64), np.zeros(8, np.int64)
        self._project_ids: dict[str, int] = {}
        self._user_ids: dict[str, int] = {}
        self._pair_ids: dict[tuple[int, int], int] = {}

    def set_project(self, project: Project) -> int:
        """Take over a project's bounds; returns its number."""
        number = self._project_ids.setdefault(project.name, len(self.projects))
        if number == len(self.projects):
            self.projects.append(project)
            if number >= len(self.used):
                for name in ("used", "firm", "quota", "limit"):
                    setattr(self, name, grown(getattr(self, name), (2 * number,)))
        self.projects[number] = project
        self.quota[number] = _bound(project.quota_permille)
        self.limit[number] = _bound(project.limit_permille)
        if not project.over_quota:
            self.limit[number] = min(self.limit[number], self.quota[number])
        return number

    def set_user(self, user: User) -> int:
        """Take over a user's bound; returns its number."""
        number = self._user_ids.setdefault(user.name, len(self.users))
        if number == len(self.users):
            self.users.append(user)
            if number >= len(self.user_used):
                self.user_used = grown(self.user_used, (2 * number,))
        self.users[number] = user
        return number

    def account(self, project: str, user: str, *, preemptible: bool) -> Account:
        """Where to count work of a user in a project."""
        p = self._project_ids.get(project)
        p = self.set_project(Project(project)) if p is None else p
        u = self._user_ids.get(user)
        u = self.set_user(User(user)) if u is None else u
        pair = self._pair_ids.setdefault((p, u), len(self._pair_ids))
        if pair >= len(self.pair_used):
            self.pair_used = grown(self.pair_used, (2 * pair,))
        return Account(p, u, pair, preemptible=preemptible)

    def add(self, log: UndoLog, account: Account, permille: int) -> None:
        """Count more (or, negative, less) use."""
        log.add(self.used, account.project, permille)
        if not account.preemptible:
            log.add(self.firm, account.project, permille)
        log.add(self.user_used, account.user, permille)
        log.add(self.pair_used, account.pair, permille)

    def rooms(self, account: Account) -> tuple[tuple[Bound, int, int], ...]:
        """Every bound that applies: (which, its value, thousandths left under it)."""
        p, project = account.project, self.projects[account.project]
        rooms: list[tuple[Bound, int, int]] = []
        if project.quota_permille is not None and account.preemptible and not project.over_quota:
            rooms.append((Bound.PROJECT_QUOTA, project.quota_permille, project.quota_permille - int(self.used[p])))
        if project.quota_permille is not None and not account.preemptible:
            held = int(self.firm[p]) if project.over_quota else int(self.used[p])
            rooms.append((Bound.PROJECT_QUOTA, project.quota_permille, project.quota_permille - held))
        if project.limit_permille is not None:
            rooms.append((Bound.PROJECT_LIMIT, project.limit_permille, project.limit_permille - int(self.used[p])))
        per_user, own = project.user_limit_permille, self.users[account.user].gpu_limit_permille
        if per_user is not None:
            rooms.append((Bound.USER_IN_PROJECT, per_user, per_user - int(self.pair_used[account.pair])))
        if own is not None:
            rooms.append((Bound.USER, own, own - int(self.user_used[account.user])))
        return tuple(rooms)

    def room(self, account: Account) -> int:
        """Thousandths that may be added now under all bounds."""
        return min((left for _, _, left in self.rooms(account)), default=UNBOUNDED)

    def over_quota(self, project: int, extra: int = 0) -> bool:
        """Whether a project would hold more than its quota with ``extra`` thousandths more."""
        return bool(self.used[project] + extra > self.quota[project])

    def deprivation(self, project: int, extra: int, even_share: float) -> tuple[bool, float]:
        """Less is served first: within quota before over it, then the smaller part of its quota.

        A project without a quota is measured against ``even_share``, one without any (quota 0) against a GPU.
        """
        quota = int(self.quota[project])
        base = even_share if quota >= UNBOUNDED else quota
        return self.over_quota(project, extra), float(self.used[project]) / max(base, 1000.0)

    def even_share(self, capacity: int) -> float:
        """The pool divided evenly among projects without a quota."""
        unbounded = int(np.count_nonzero(self.quota[: len(self.projects)] >= UNBOUNDED))
        return capacity / max(unbounded, 1)


def _bound(permille: int | None) -> int:
    return UNBOUNDED if permille is None else permille
