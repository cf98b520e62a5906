"""GPU hours of the month: a project or user that has used its own starts no more work until the next month.

Work that runs continues.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime, timedelta, tzinfo

from gpupool.domain.people.access import ProjectRules
from gpupool.domain.work.workload import Workload
from gpupool.services.state.identity_cache import IdentityCache


class GpuHourBudgets:
    """GPU hours of this month, used by the projects with a budget and by their users."""

    def __init__(self, identities: IdentityCache, zone: tzinfo) -> None:
        self.zone = zone
        self._identities = identities
        self._used: defaultdict[str, float] = defaultdict(float)
        self._used_by: Mapping[tuple[str, str], float] = {}

    def limited(self) -> list[str]:
        """Return the projects with a budget."""
        return [name for name, project in self._identities.projects.items() if _limited(project.rules)]

    def month(self, now: float) -> tuple[float, float]:
        """Return the beginning and the end of the month in the pool's time zone."""
        first = datetime.fromtimestamp(now, self.zone).date().replace(day=1)
        after = (first + timedelta(days=32)).replace(day=1)
        begin, end = (datetime(day.year, day.month, 1, tzinfo=self.zone) for day in (first, after))
        return begin.timestamp(), end.timestamp()

    def read(self, used: Mapping[tuple[str, str], float]) -> set[str]:
        """Take in the GPU hours of each project and user; return the projects in which work may start or no longer."""
        before = self._exhausted()
        self._used_by, self._used = dict(used), defaultdict(float)
        for (project, _), hours in used.items():
            self._used[project] += hours
        return {project for project, _ in before ^ self._exhausted()}

    def _exhausted(self) -> set[tuple[str, str]]:
        """Return the (project, user) pairs without GPU hours; the user is empty if the project itself has none."""
        limited = self.limited()
        return {(p, "") for p in limited if self._over(p)} | {pair for pair in self._used_by if self._over(*pair)}

    def _over(self, project: str, user: str = "") -> bool:
        rules = self._rules(project)
        limit = rules.user_gpu_hours if user else rules.gpu_hours
        used = self._used_by.get((project, user), 0.0) if user else self._used[project]
        return limit is not None and used >= limit

    def used_by(self, project: str) -> float | None:
        """Return the GPU hours that a project has used this month; None without a budget."""
        return self._used[project] if _limited(self._rules(project)) else None

    def used_up(self, workload: Workload) -> bool:
        """Return True if a workload requests GPUs and its project or user has no GPU hours left."""
        over = self._over(workload.project) or self._over(workload.project, workload.user)
        return over and bool(workload.gpus.count)

    def sentence(self, workload: Workload, now: float) -> str:
        """Return why a workload may not start: ``project red has used 501 of 500 GPU hours this month; ...``."""
        rules, project = self._rules(workload.project), workload.project
        over = self._over(project)
        who = f"project {project}" if over else f"{workload.user} in project {project}"
        limit = rules.gpu_hours if over else rules.user_gpu_hours
        used = self._used[project] if over else self._used_by.get((project, workload.user), 0.0)
        renewed = datetime.fromtimestamp(self.month(now)[1], self.zone)
        return (
            f"{who} has used {used:.4g} of {limit:g} GPU hours this month; "
            f"work may start again on {renewed:%Y-%m-%d %H:%M} ({self.zone})"
        )

    def _rules(self, project: str) -> ProjectRules:
        found = self._identities.projects.get(project)
        return ProjectRules() if found is None else found.rules


def _limited(rules: ProjectRules) -> bool:
    return rules.gpu_hours is not None or rules.user_gpu_hours is not None
