"""Departments and fair shares."""

from __future__ import annotations

from gpupool.api.schemas.base import PageView, View
from gpupool.domain.people.shares import DepartmentShare, ProjectShare, UserShare


class DepartmentView(View):
    """Projects that share a quota above their own. ``quota_permille`` null: the sum of the projects' quotas."""

    name: str
    quota_permille: int | None
    weight: float
    limit_permille: int | None
    note: str
    projects: list[str]


class DepartmentList(PageView):
    """All departments."""

    departments: list[DepartmentView]


class FairShareView(View):
    """Fair shares in scheduling order: projects with queued workloads come first."""

    capacity_permille: int
    half_life_s: float
    usage_weight: float
    projects: list[ProjectShare]
    departments: list[DepartmentShare]
    users: list[UserShare]
