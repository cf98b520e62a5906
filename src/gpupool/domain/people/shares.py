"""Shares of projects, departments and users: allocation, fair share and past use. The API answers with these."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelShare:
    """A project's quota of a GPU model, and the held part of it, in thousandths."""

    model: str
    quota_permille: int
    held_permille: int


@dataclass(frozen=True, slots=True)
class ProjectShare:
    """A project now, GPUs in thousandths. ``recent_permille`` is its decayed mean allocation, ``used_gpu_hours`` use.

    ``quota_permille`` is None without a quota of its own. ``position`` is its place among the projects with queued
    work, from 1; 0: nothing is queued. ``reason`` explains it in words. ``of_models`` are its quotas of GPU models.
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
    of_models: tuple[ModelShare, ...] = ()


@dataclass(frozen=True, slots=True)
class DepartmentShare:
    """A department now, as ``ProjectShare``; ``quota_permille`` None: the sum of its projects' quotas."""

    department: str
    quota_permille: int | None
    limit_permille: int | None
    weight: float
    held_permille: int
    waiting_permille: int
    fair_permille: float
    recent_permille: float
    used_gpu_hours: float


@dataclass(frozen=True, slots=True)
class UserShare:
    """A user in a project now. Within a priority, the user with less held and recent use is served first."""

    project: str
    user: str
    held_permille: int
    recent_permille: float
    used_gpu_hours: float


@dataclass(frozen=True, slots=True)
class ShareReport:
    """All shares in scheduling order; ``half_life_s`` and ``usage_weight`` are the settings behind the numbers."""

    capacity_permille: int
    half_life_s: float
    usage_weight: float
    projects: tuple[ProjectShare, ...]
    departments: tuple[DepartmentShare, ...]
    users: tuple[UserShare, ...]
