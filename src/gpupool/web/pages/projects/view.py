"""Values of the project pages: fair share, allocation, over-quota, waiting, and their forms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from gpupool.api.schemas.bodies import DepartmentBody, ProjectBody, ProjectChange
from gpupool.domain.nodes.gpu import SpreadRule
from gpupool.domain.nodes.sharing import ComputePolicy, Sharing
from gpupool.domain.people.access import Department, Project
from gpupool.domain.people.shares import (
    DepartmentShare,
    ProjectShare,
    ShareReport,
    UserShare,
)
from gpupool.domain.units import format_permille, parse_gpus
from gpupool.services.pool import PoolServices
from gpupool.web.deps import Form
from gpupool.web.kit import form_input

WIDTH = 1000.0  # of a drawing


@dataclass(frozen=True, slots=True)
class ShareBar:
    """A drawing of a share, in thousandths of its width. ``quota`` None: no quota.

    ``inside`` is allocated within the quota, ``borrowed`` over it; ``waiting`` is requested in addition.
    """

    inside: float
    borrowed: float
    waiting: float
    quota: float | None
    fair: float
    label: str


@dataclass(frozen=True, slots=True)
class ShareLine:
    """The share of a project or department, with its drawing; GPUs in thousandths."""

    name: str
    share: ProjectShare | DepartmentShare
    bar: ShareBar
    members: tuple[str, ...] = ()
    projects: tuple[str, ...] = ()
    note: str = ""

    @property
    def department(self) -> str:
        """Return the department of a project; empty without one."""
        return self.share.department if isinstance(self.share, ProjectShare) else ""

    @property
    def fair(self) -> int:
        """Return the fair share."""
        return round(self.share.fair_permille)

    @property
    def borrowed(self) -> int:
        """Return the allocation over quota."""
        return _borrowed(self.share)

    @property
    def reason(self) -> str:
        """Return the reason for the position of a project."""
        return self.share.reason if isinstance(self.share, ProjectShare) else ""

    @property
    def turn(self) -> int | None:
        """Position among projects with queued workloads."""
        return self.share.position or None if isinstance(self.share, ProjectShare) else None

    @property
    def who(self) -> str:
        """Return the members, or "everybody"."""
        return ", ".join(self.members) or "everybody"


@dataclass(frozen=True, slots=True)
class ProjectShares:
    """The page of projects. Sums are over all projects."""

    capacity: int
    held: int
    borrowed: int
    waiting: int
    half_life_s: float
    projects: tuple[ShareLine, ...]
    departments: tuple[ShareLine, ...]


@dataclass(frozen=True, slots=True)
class ProjectPage:
    """One project with the users who have current or past use in it."""

    project: Project
    line: ShareLine
    users: tuple[UserShare, ...]


async def shares(services: PoolServices) -> ProjectShares:
    """Return the shares of all projects and departments, in scheduling order."""
    standings = await services.departments.standings()
    projects = {project.name: project for project in await services.access.projects()}
    departments = await services.departments.departments()
    scale = _scale(standings)
    lines = tuple(_project_line(row, projects.get(row.project), scale) for row in standings.projects)
    return ProjectShares(
        capacity=standings.capacity_permille,
        held=sum(line.share.held_permille for line in lines),
        borrowed=sum(line.borrowed for line in lines),
        waiting=sum(line.share.waiting_permille for line in lines),
        half_life_s=standings.half_life_s,
        projects=lines,
        departments=tuple(_department_line(one, standings, projects.values(), scale) for one in departments),
    )


async def project_page(services: PoolServices, project: Project) -> ProjectPage:
    """Return a project; the drawing is scaled to its own numbers."""
    standings = await services.departments.standings()
    row = next(row for row in standings.projects if row.project == project.name)
    scale = max(row.held_permille, row.quota_permille or 0, row.fair_permille, row.limit_permille or 0, 1000) * 1.1
    users = tuple(user for user in standings.users if user.project == project.name)
    return ProjectPage(project, _project_line(row, project, scale), users)


def _scale(standings: ShareReport) -> float:
    """Return the GPUs of the full width: the largest allocation, quota or fair share."""
    rows: Sequence[ProjectShare | DepartmentShare] = (*standings.projects, *standings.departments)
    most = (max(row.held_permille, row.quota_permille or 0, row.fair_permille) for row in rows)
    return 1.1 * max(1000.0, *most, 0.0)


def _project_line(row: ProjectShare, project: Project | None, scale: float) -> ShareLine:
    members, note = ((), "") if project is None else (project.members, project.note)
    return ShareLine(row.project, row, _bar(row, row.project, scale), members=members, note=note)


def _department_line(one: Department, standings: ShareReport, projects: Iterable[Project], scale: float) -> ShareLine:
    idle = DepartmentShare(one.name, one.quota_permille, one.limit_permille, one.weight, 0, 0, 0.0, 0.0, 0.0)
    row = next((row for row in standings.departments if row.department == one.name), idle)
    inside = tuple(sorted(p.name for p in projects if p.department == one.name))
    return ShareLine(one.name, row, _bar(row, one.name, scale), projects=inside, note=one.note)


def _borrowed(row: ProjectShare | DepartmentShare) -> int:
    return 0 if row.quota_permille is None else max(0, row.held_permille - row.quota_permille)


def _bar(row: ProjectShare | DepartmentShare, name: str, scale: float) -> ShareBar:
    def x(permille: float) -> float:
        return round(min(permille / scale, 1.0) * WIDTH, 1)

    quota, borrowed = row.quota_permille, _borrowed(row)
    held = x(row.held_permille)
    inside = x(row.held_permille - borrowed)
    said = [
        f"{name} holds {format_permille(row.held_permille)} GPU",
        f"{format_permille(borrowed)} of it over quota" if borrowed else "",
        f"{format_permille(row.waiting_permille)} waiting" if row.waiting_permille else "",
        "no quota" if quota is None else f"quota {format_permille(quota)}",
        f"fair share {format_permille(round(row.fair_permille))}",
    ]
    return ShareBar(
        inside=inside,
        borrowed=round(held - inside, 1),
        waiting=round(x(row.held_permille + row.waiting_permille) - held, 1),
        quota=None if quota is None else x(quota),
        fair=x(row.fair_permille),
        label=", ".join(part for part in said if part),
    )


# Forms


def project_form_values(project: Project) -> form_input.FormValues:
    """Return the form values of a project."""
    rules = project.rules
    return form_input.FormValues(
        {
            "name": project.name,
            "note": project.note,
            "department": project.department,
            "quota": form_input.gpus_text(project.quota_permille),
            "over_quota": project.over_quota,
            "limit": form_input.gpus_text(project.limit_permille),
            "user_limit": form_input.gpus_text(project.user_limit_permille),
            "weight": f"{project.weight:g}",
            "model_quotas": "\n".join(f"{model}={form_input.gpus_text(n)}" for model, n in project.model_quotas),
            "members": "\n".join(project.members),
            "max_time": form_input.seconds_text(project.max_time_s),
            "idle_timeout": form_input.seconds_text(project.idle_timeout_s),
            "max_time_limit": form_input.seconds_text(rules.max_time_limit_s),
            "max_queued": "" if rules.max_queued is None else str(rules.max_queued),
            "max_priority": "" if rules.max_priority is None else str(rules.max_priority),
            "gpu_hours": "" if rules.gpu_hours is None else f"{rules.gpu_hours:g}",
            "user_gpu_hours": "" if rules.user_gpu_hours is None else f"{rules.user_gpu_hours:g}",
            "max_gpus": form_input.gpus_text(rules.max_gpus_permille),
            "min_runtime": form_input.seconds_text(rules.min_runtime_s),
            "windows": "\n".join(rules.windows),
            "node_pools": ", ".join(rules.node_pools),
            "spread": rules.spread or "",
            "compute_default": project.compute_default or "",
            "compute_allowed": tuple(map(str, project.compute_allowed)),
            "sharing_default": project.sharing_default or "",
            "sharing_allowed": tuple(map(str, project.sharing_allowed)),
        }
    )


def project_changes(form: Form, project: Project) -> dict[str, Any]:
    """Return the fields of a project that a form changes; raise ``FieldError``."""
    wanted: dict[str, Any] = {
        "note": form_input.note(form),
        "department": form.text("department"),
        "quota_permille": form_input.gpus(form, "quota"),
        "over_quota": form.is_checked("over_quota"),
        "limit_permille": form_input.gpus(form, "limit"),
        "user_limit_permille": form_input.gpus(form, "user_limit"),
        "weight": form_input.number(form, "weight"),
        "model_quotas": _model_quotas(form),
        "members": form_input.names(form, "members"),
        "max_time_s": form_input.seconds(form, "max_time"),
        "idle_timeout_s": form_input.seconds(form, "idle_timeout"),
        "compute_default": form_input.choice(form, "compute_default", ComputePolicy),
        "compute_allowed": form_input.choices(form, "compute_allowed", ComputePolicy),
        "sharing_default": form_input.choice(form, "sharing_default", Sharing),
        "sharing_allowed": form_input.choices(form, "sharing_allowed", Sharing),
    }
    rules = {
        "max_time_limit_s": form_input.seconds(form, "max_time_limit"),
        "max_queued": form_input.count(form, "max_queued"),
        "max_priority": form_input.count(form, "max_priority", signed=True),
        "gpu_hours": form_input.number(form, "gpu_hours") if form.text("gpu_hours") else None,
        "user_gpu_hours": form_input.number(form, "user_gpu_hours") if form.text("user_gpu_hours") else None,
        "max_gpus_permille": form_input.gpus(form, "max_gpus"),
        "min_runtime_s": form_input.seconds(form, "min_runtime", zero=True),
        "windows": form_input.lines(form, "windows"),
        "node_pools": form_input.names(form, "node_pools"),
        "spread": form_input.choice(form, "spread", SpreadRule),
    }
    form_input.validate(ProjectChange, {**wanted, "model_quotas": dict(wanted["model_quotas"]), "rules": rules})
    changed_rules = _changed(rules, project.rules)
    return _changed(wanted, project) | ({"rules": changed_rules} if changed_rules else {})


def new_project(form: Form) -> Project:
    """Return the project of the short form; raise ``GpupoolError``."""
    fields: dict[str, Any] = {
        "name": form.text("name"),
        "department": form.text("department"),
        "quota_permille": form_input.gpus(form, "quota"),
        "weight": form_input.number(form, "weight"),
        "over_quota": form.is_checked("over_quota"),
        "members": form_input.names(form, "members"),
        "note": form_input.note(form),
    }
    form_input.validate(ProjectBody, fields)
    return Project(**fields)


def new_department(form: Form) -> Department:
    """Return the department of a form; raise ``GpupoolError``."""
    blank = Department(form.text("name"))
    made = replace(blank, **department_changes(form, blank))
    form_input.validate(DepartmentBody, asdict(made))
    return made


def _model_quotas(form: Form) -> tuple[tuple[str, int], ...]:
    found = []
    for model, text in form_input.pairs(form, "model_quotas").items():
        with form_input.name_field_in_errors("model_quotas"):
            found.append((model, parse_gpus(text)))
    return tuple(sorted(found))


def department_form_values(department: Department) -> form_input.FormValues:
    """Return the form values of a department."""
    return form_input.FormValues(
        {
            "name": department.name,
            "quota": form_input.gpus_text(department.quota_permille),
            "weight": f"{department.weight:g}",
            "limit": form_input.gpus_text(department.limit_permille),
            "note": department.note,
        }
    )


def department_changes(form: Form, department: Department) -> dict[str, Any]:
    """Return the fields of a department that a form changes; raise ``FieldError``."""
    wanted = {
        "quota_permille": form_input.gpus(form, "quota"),
        "weight": form_input.number(form, "weight"),
        "limit_permille": form_input.gpus(form, "limit"),
        "note": form_input.note(form),
    }
    return _changed(wanted, department)


def _changed(wanted: Mapping[str, Any], now: object) -> dict[str, Any]:
    return {name: value for name, value in wanted.items() if value != getattr(now, name)}
