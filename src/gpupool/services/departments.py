"""Departments: groups of projects that share a quota, a weight and a limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gpupool.domain.access import Actor, Department, Project, Role
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.events import Event, Reason
from gpupool.domain.ids import check_name
from gpupool.scheduling.standing import Standings
from gpupool.services.engine import Engine
from gpupool.services.permissions import Permissions
from gpupool.services.register import Register

MOST_WEIGHT = 1_000_000.0
MOST_DEPARTMENTS = 1_000


class DepartmentService:
    """Reading is for everybody, changing for administrators, as for projects."""

    def __init__(self, engine: Engine, register: Register, permissions: Permissions) -> None:
        self._engine = engine
        self._register = register
        self._permissions = permissions

    async def departments(self) -> Sequence[Department]:
        """All departments by name."""
        return [self._register.departments[name] for name in sorted(self._register.departments)]

    def projects_of(self, name: str) -> Sequence[str]:
        """The names of a department's projects, in order."""
        return sorted(p.name for p in self._register.projects.values() if p.department == name)

    async def standings(self) -> Standings:
        """How departments, projects and users stand now."""
        engine = self._engine
        return engine.demand.scheduler.standings(engine.ports.clock.now())

    async def create(self, actor: Actor, department: Department) -> Department:
        """Make a department; raises NAME_TAKEN."""
        self._permissions.need_role(actor, Role.ADMIN)
        check_name(department.name, "department")
        known = self._register.departments
        if department.name in known:
            raise GpupoolError(
                ErrorCode.NAME_TAKEN, f"There is a department '{department.name}' already.", "Choose another name."
            )
        if len(known) >= MOST_DEPARTMENTS:
            raise GpupoolError(
                ErrorCode.INVALID_COUNT, f"A pool has {MOST_DEPARTMENTS} departments at most.", "Delete one first."
            )
        return await self._save(actor, department, "created")

    async def change(self, actor: Actor, name: str, changes: dict[str, Any]) -> Department:
        """Change fields of a department; raises UNKNOWN_DEPARTMENT."""
        self._permissions.need_role(actor, Role.ADMIN)
        department = self._register.department(name)
        return await self._save(actor, replace(department, **changes), f"changed: {', '.join(sorted(changes))}")

    async def _save(self, actor: Actor, department: Department, what: str) -> Department:
        check_weight(department.weight)
        event = self._event(actor, what, department.name)

        async def write() -> None:
            await self._engine.ports.store.save_department(department, event)
            self._register.departments[department.name] = department
            self._engine.demand.department_changed(department)

        await self._engine.alone(write)
        self._engine.work.set()
        return department

    async def delete(self, actor: Actor, name: str) -> None:
        """Remove a department without projects; raises UNKNOWN_DEPARTMENT, WRONG_STATE."""
        self._permissions.need_role(actor, Role.ADMIN)
        self._register.department(name)

        async def write() -> None:
            inside = self.projects_of(name)
            if inside:
                raise GpupoolError(
                    ErrorCode.WRONG_STATE,
                    f"The department {name} has projects: {', '.join(inside[:8])}.",
                    "Move them out first: `gpupool project set NAME --department none`.",
                )
            await self._engine.ports.store.delete_department(name, self._event(actor, "deleted", name))
            del self._register.departments[name]

        await self._engine.alone(write)

    def _event(self, actor: Actor, what: str, name: str) -> Event:
        return Event(self._engine.ports.clock.now(), actor.user, Reason.CHANGED, what, target=f"department {name}")


def check_weight(weight: float) -> None:
    """Raise ``GpupoolError(INVALID_COUNT)`` for a weight that is none."""
    if not 0 <= weight <= MOST_WEIGHT:
        raise GpupoolError(ErrorCode.INVALID_COUNT, f"{weight:g} is not a possible weight.", "Give 0 or more, as in 2.")


def check_shares(project: Project, register: Register) -> None:
    """Raise ``GpupoolError`` unless a project's department is known and its weight and quotas by model make sense."""
    if project.department:
        register.department(project.department)
    check_weight(project.weight)
    models = [model.lower() for model, _ in project.model_quotas]
    if len(set(models)) != len(models):
        raise GpupoolError(ErrorCode.INVALID_REQUEST, "A model has two quotas.", "Name each model once.")
    total = sum(permille for _, permille in project.model_quotas)
    if project.quota_permille is not None and total > project.quota_permille:
        raise GpupoolError(
            ErrorCode.INVALID_COUNT,
            f"The quotas by model add up to {total / 1000:g} GPUs; the quota is {project.quota_permille / 1000:g}.",
            "Raise the quota: those by model are parts of it.",
        )
