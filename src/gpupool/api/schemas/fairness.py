"""Departments, fair shares and use lately."""

from __future__ import annotations

from pydantic import Field

from gpupool.api.schemas.base import View


class DepartmentView(View):
    """Projects that share a quota above their own. ``quota_permille`` null: the sum of the projects' quotas."""

    name: str
    quota_permille: int | None
    weight: float
    limit_permille: int | None
    note: str
    projects: list[str]


class DepartmentList(View):
    """All departments."""

    departments: list[DepartmentView]


class ModelShareView(View):
    """A project's quota of a GPU model, and what it holds of it, in thousandths."""

    model: str
    quota_permille: int
    held_permille: int


class ProjectShareView(View):
    """How a project stands now; GPUs in thousandths.

    ``fair_permille`` is its fair share, ``recent_permille`` what it held lately on average and ``used_gpu_hours`` the
    same as decayed use. ``position`` counts from 1 among projects whose work waits (0: none does); ``reason`` says why.
    ``of_models`` are its quotas of GPU models.
    """

    project: str
    department: str
    quota_permille: int | None
    limit_permille: int | None
    weight: float
    held_permille: int
    protected_permille: int
    waiting_permille: int
    fair_permille: float
    recent_permille: float
    used_gpu_hours: float
    position: int
    reason: str
    of_models: list[ModelShareView] = Field(default_factory=list)


class DepartmentShareView(View):
    """How a department stands now, as ``ProjectShareView``."""

    department: str
    quota_permille: int | None
    limit_permille: int | None
    weight: float
    held_permille: int
    waiting_permille: int
    fair_permille: float
    recent_permille: float
    used_gpu_hours: float


class UserShareView(View):
    """What a user holds and held lately in a project: who has less is served first within a priority."""

    project: str
    user: str
    held_permille: int
    recent_permille: float
    used_gpu_hours: float


class FairShareView(View):
    """Who is due what, and in which order: projects whose work waits come first, in order of their turns."""

    capacity_permille: int
    half_life_s: float
    usage_weight: float
    projects: list[ProjectShareView]
    departments: list[DepartmentShareView]
    users: list[UserShareView]
