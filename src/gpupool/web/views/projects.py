"""Projects and departments: what each is due, holds, has borrowed and waits for, and the forms that change them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from gpupool.api.schemas import DepartmentBody, ProjectBody, ProjectChange
from gpupool.domain.access import Department, Project
from gpupool.domain.gpu import ComputePolicy, Sharing
from gpupool.domain.units import format_permille, parse_gpus
from gpupool.scheduling.standing import DepartmentStanding, ModelStanding, ProjectStanding, Standings, UserStanding
from gpupool.services.pool import PoolServices
from gpupool.web.deps import Form
from gpupool.web.views import typed

WIDTH = 1000.0  # of a drawing


@dataclass(frozen=True, slots=True)
class ShareBar:
    """What a drawing of a share shows, in thousandths of its width; None: beyond the drawing, or there is none.

    ``inside`` is held within the quota, ``borrowed`` beyond it, ``waiting`` is wanted on top.
    """

    inside: float
    borrowed: float
    waiting: float
    quota: float | None
    fair: float
    label: str


@dataclass(frozen=True, slots=True)
class ShareLine:
    """How a project or a department stands; GPUs in thousandths."""

    name: str
    department: str
    quota: int | None
    limit: int | None
    weight: float
    fair: int
    held: int
    borrowed: int
    waiting: int
    used_gpu_hours: float
    bar: ShareBar
    position: int = 0
    reason: str = ""
    members: tuple[str, ...] = ()
    projects: tuple[str, ...] = ()
    note: str = ""
    of_models: tuple[ModelStanding, ...] = ()

    @property
    def turn(self) -> int | None:
        """Its place among those whose work waits."""
        return self.position or None

    @property
    def who(self) -> str:
        """Who may use it."""
        return ", ".join(self.members) or "everybody"


@dataclass(frozen=True, slots=True)
class Shares:
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
    """One project with the users who hold or held anything in it."""

    project: Project
    line: ShareLine
    users: tuple[UserStanding, ...]


async def shares(services: PoolServices) -> Shares:
    """Everybody's share, in order of turns."""
    standings = await services.departments.standings()
    projects = {project.name: project for project in await services.access.projects()}
    departments = await services.departments.departments()
    scale = _scale(standings)
    lines = tuple(_project_line(row, projects.get(row.project), scale) for row in standings.projects)
    return Shares(
        capacity=standings.capacity_permille,
        held=sum(line.held for line in lines),
        borrowed=sum(line.borrowed for line in lines),
        waiting=sum(line.waiting for line in lines),
        half_life_s=standings.half_life_s,
        projects=lines,
        departments=tuple(_department_line(one, standings, projects.values(), scale) for one in departments),
    )


async def project_page(services: PoolServices, project: Project) -> ProjectPage:
    """One project; the drawing has the scale of its own numbers."""
    standings = await services.departments.standings()
    row = next(row for row in standings.projects if row.project == project.name)
    scale = max(row.held_permille, row.quota_permille or 0, row.fair_permille, row.limit_permille or 0, 1000) * 1.1
    users = tuple(user for user in standings.users if user.project == project.name)
    return ProjectPage(project, _project_line(row, project, scale), users)


def _scale(standings: Standings) -> float:
    """What the whole width stands for: the most that anybody holds or is due."""
    rows: Sequence[ProjectStanding | DepartmentStanding] = (*standings.projects, *standings.departments)
    most = (max(row.held_permille, row.quota_permille or 0, row.fair_permille) for row in rows)
    return 1.1 * max(1000.0, *most, 0.0)


def _project_line(row: ProjectStanding, project: Project | None, scale: float) -> ShareLine:
    return ShareLine(
        name=row.project,
        department=row.department,
        quota=row.quota_permille,
        limit=row.limit_permille,
        weight=row.weight,
        fair=round(row.fair_permille),
        held=row.held_permille,
        borrowed=_borrowed(row),
        waiting=row.waiting_permille,
        used_gpu_hours=row.used_gpu_hours,
        bar=_bar(row, row.project, scale),
        position=row.position,
        reason=row.reason,
        members=() if project is None else project.members,
        note="" if project is None else project.note,
        of_models=row.of_models,
    )


def _department_line(one: Department, standings: Standings, projects: Iterable[Project], scale: float) -> ShareLine:
    idle = DepartmentStanding(one.name, one.quota_permille, one.limit_permille, one.weight, 0, 0, 0.0, 0.0, 0.0)
    row = next((row for row in standings.departments if row.department == one.name), idle)
    return ShareLine(
        name=one.name,
        department="",
        quota=one.quota_permille,
        limit=one.limit_permille,
        weight=one.weight,
        fair=round(row.fair_permille),
        held=row.held_permille,
        borrowed=_borrowed(row),
        waiting=row.waiting_permille,
        used_gpu_hours=row.used_gpu_hours,
        bar=_bar(row, one.name, scale),
        projects=tuple(sorted(p.name for p in projects if p.department == one.name)),
        note=one.note,
    )


def _borrowed(row: ProjectStanding | DepartmentStanding) -> int:
    return 0 if row.quota_permille is None else max(0, row.held_permille - row.quota_permille)


def _bar(row: ProjectStanding | DepartmentStanding, name: str, scale: float) -> ShareBar:
    def x(permille: float) -> float:
        return round(min(permille / scale, 1.0) * WIDTH, 1)

    borrowed = _borrowed(row)
    held = x(row.held_permille)
    inside = x(row.held_permille - borrowed)
    quota = row.quota_permille
    said = [
        f"{name} holds {format_permille(row.held_permille)} GPU",
        f"{format_permille(borrowed)} of it borrowed" if borrowed else "",
        f"waits for {format_permille(row.waiting_permille)}" if row.waiting_permille else "",
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


def typed_project(project: Project) -> typed.Typed:
    """The form of a project as it is."""
    rules = project.rules
    return typed.Typed(
        {
            "name": project.name,
            "note": project.note,
            "department": project.department,
            "quota": typed.gpus_text(project.quota_permille),
            "over_quota": project.over_quota,
            "limit": typed.gpus_text(project.limit_permille),
            "user_limit": typed.gpus_text(project.user_limit_permille),
            "weight": f"{project.weight:g}",
            "model_quotas": "\n".join(f"{model}={typed.gpus_text(n)}" for model, n in project.model_quotas),
            "members": "\n".join(project.members),
            "max_time": typed.seconds_text(project.max_time_s),
            "idle_timeout": typed.seconds_text(project.idle_timeout_s),
            "max_time_limit": typed.seconds_text(rules.max_time_limit_s),
            "max_gpus": typed.gpus_text(rules.max_gpus_permille),
            "min_runtime": typed.seconds_text(rules.min_runtime_s),
            "windows": "\n".join(rules.windows),
            "node_pools": ", ".join(rules.node_pools),
            "compute_default": project.compute_default or "",
            "compute_allowed": tuple(map(str, project.compute_allowed)),
            "sharing_default": project.sharing_default or "",
            "sharing_allowed": tuple(map(str, project.sharing_allowed)),
        }
    )


def project_changes(form: Form, project: Project) -> dict[str, Any]:
    """What a sent form changes of a project; of its ``rules`` those that change. Raises ``FieldError``."""
    wanted: dict[str, Any] = {
        "note": typed.note(form),
        "department": form.text("department"),
        "quota_permille": typed.gpus(form, "quota"),
        "over_quota": form.ticked("over_quota"),
        "limit_permille": typed.gpus(form, "limit"),
        "user_limit_permille": typed.gpus(form, "user_limit"),
        "weight": typed.number(form, "weight"),
        "model_quotas": _model_quotas(form),
        "members": typed.names(form, "members"),
        "max_time_s": typed.seconds(form, "max_time"),
        "idle_timeout_s": typed.seconds(form, "idle_timeout"),
        "compute_default": typed.choice(form, "compute_default", ComputePolicy),
        "compute_allowed": typed.choices(form, "compute_allowed", ComputePolicy),
        "sharing_default": typed.choice(form, "sharing_default", Sharing),
        "sharing_allowed": typed.choices(form, "sharing_allowed", Sharing),
    }
    rules = {
        "max_time_limit_s": typed.seconds(form, "max_time_limit"),
        "max_gpus_permille": typed.gpus(form, "max_gpus"),
        "min_runtime_s": typed.seconds(form, "min_runtime", zero=True),
        "windows": typed.lines(form, "windows"),
        "node_pools": typed.names(form, "node_pools"),
    }
    typed.accepted(ProjectChange, {**wanted, "model_quotas": dict(wanted["model_quotas"]), "rules": rules})
    changed_rules = _changed(rules, project.rules)
    return _changed(wanted, project) | ({"rules": changed_rules} if changed_rules else {})


def new_project(form: Form) -> Project:
    """The project that the short form asks for. Raises ``GpupoolError``."""
    fields: dict[str, Any] = {
        "name": form.text("name"),
        "department": form.text("department"),
        "quota_permille": typed.gpus(form, "quota"),
        "weight": typed.number(form, "weight"),
        "over_quota": form.ticked("over_quota"),
        "members": typed.names(form, "members"),
        "note": typed.note(form),
    }
    typed.accepted(ProjectBody, fields)
    return Project(**fields)


def new_department(form: Form) -> Department:
    """The department that a form asks for. Raises ``GpupoolError``."""
    blank = Department(form.text("name"))
    made = replace(blank, **department_changes(form, blank))
    typed.accepted(DepartmentBody, asdict(made))
    return made


def _model_quotas(form: Form) -> tuple[tuple[str, int], ...]:
    found = []
    for model, text in typed.pairs(form, "model_quotas").items():
        with typed.about("model_quotas"):
            found.append((model, parse_gpus(text)))
    return tuple(sorted(found))


def typed_department(department: Department) -> typed.Typed:
    """The form of a department as it is."""
    return typed.Typed(
        {
            "name": department.name,
            "quota": typed.gpus_text(department.quota_permille),
            "weight": f"{department.weight:g}",
            "limit": typed.gpus_text(department.limit_permille),
            "note": department.note,
        }
    )


def department_changes(form: Form, department: Department) -> dict[str, Any]:
    """What a sent form changes of a department. Raises ``FieldError``."""
    wanted = {
        "quota_permille": typed.gpus(form, "quota"),
        "weight": typed.number(form, "weight"),
        "limit_permille": typed.gpus(form, "limit"),
        "note": typed.note(form),
    }
    return _changed(wanted, department)


def _changed(wanted: Mapping[str, Any], now: object) -> dict[str, Any]:
    return {name: value for name, value in wanted.items() if value != getattr(now, name)}
