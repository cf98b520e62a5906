"""Departments: groups of projects that share a quota, a weight and a limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.ids import check_name
from gpupool.domain.people.access import Actor, Department, Project, Role
from gpupool.domain.people.shares import ShareReport
from gpupool.services.access.permissions import Permissions
from gpupool.services.control.engine import Engine
from gpupool.services.state.identity_cache import IdentityCache

MAX_WEIGHT = 1_000_000.0
MAX_DEPARTMENTS = 1_000


class DepartmentService:
    """Departments; all users may read them, administrators may change them."""

    def __init__(self, engine: Engine, identities: IdentityCache, permissions: Permissions) -> None:
        self._engine = engine
        self._identities = identities
        self._permissions = permissions

    async def departments(self) -> Sequence[Department]:
        """Return all departments, sorted by name."""
        return [self._identities.departments[name] for name in sorted(self._identities.departments)]

    def department(self, name: str) -> Department:
        """Return a department; raises UNKNOWN_DEPARTMENT."""
        return self._identities.department(name)

    def projects_of(self, name: str) -> Sequence[str]:
        """Return the names of a department's projects, sorted."""
        return sorted(p.name for p in self._identities.projects.values() if p.department == name)

    async def standings(self) -> ShareReport:
        """Return the current shares of departments, projects and users."""
        engine = self._engine
        return engine.feed.scheduler.share_report(engine.ports.clock.now())

    async def create(self, actor: Actor, department: Department) -> Department:
        """Create a department; raises NAME_TAKEN."""
        self._permissions.need_role(actor, Role.ADMIN)
        check_name(department.name, "department")
        known = self._identities.departments
        if department.name in known:
            raise GpupoolError(
                ErrorCode.NAME_TAKEN, f"The department '{department.name}' already exists.", "Choose another name."
            )
        if len(known) >= MAX_DEPARTMENTS:
            raise GpupoolError(
                ErrorCode.INVALID_COUNT, f"A pool has at most {MAX_DEPARTMENTS} departments.", "Delete one first."
            )
        return await self._save(actor, department, "created")

    async def change(self, actor: Actor, name: str, changes: dict[str, Any]) -> Department:
        """Change fields of a department; raises UNKNOWN_DEPARTMENT."""
        self._permissions.need_role(actor, Role.ADMIN)
        department = self._identities.department(name)
        return await self._save(actor, replace(department, **changes), f"changed: {', '.join(sorted(changes))}")

    async def _save(self, actor: Actor, department: Department, what: str) -> Department:
        check_weight(department.weight)
        event = self._engine.change_event(actor.user, what, f"department {department.name}")

        async def write() -> None:
            await self._engine.ports.store.departments.save(department, event)
            self._identities.departments[department.name] = department
            self._engine.feed.department_changed(department)

        await self._engine.run_exclusive(write)
        self._engine.work.set()
        return department

    async def delete(self, actor: Actor, name: str) -> None:
        """Delete a department without projects; raises UNKNOWN_DEPARTMENT, WRONG_STATE."""
        self._permissions.need_role(actor, Role.ADMIN)
        self._identities.department(name)

        async def write() -> None:
            inside = self.projects_of(name)
            if inside:
                raise GpupoolError(
                    ErrorCode.WRONG_STATE,
                    f"The department {name} has projects: {', '.join(inside[:8])}.",
                    "Move them first: `gpupool project set NAME --department none`.",
                )
            event = self._engine.change_event(actor.user, "deleted", f"department {name}")
            await self._engine.ports.store.departments.delete(name, event)
            del self._identities.departments[name]

        await self._engine.run_exclusive(write)


def check_weight(weight: float) -> None:
    """Raise ``GpupoolError(INVALID_COUNT)`` for an invalid weight."""
    if not 0 <= weight <= MAX_WEIGHT:
        raise GpupoolError(
            ErrorCode.INVALID_COUNT, f"{weight:g} is not a valid weight.", "Give 0 or more, for example 2."
        )


def check_shares(project: Project, identities: IdentityCache) -> None:
    """Raise ``GpupoolError`` unless a project's department exists and its weight and model quotas are valid."""
    if project.department:
        identities.department(project.department)
    check_weight(project.weight)
    models = [model.lower() for model, _ in project.model_quotas]
    if len(set(models)) != len(models):
        raise GpupoolError(ErrorCode.INVALID_REQUEST, "A model has two quotas.", "Name each model once.")
    total = sum(permille for _, permille in project.model_quotas)
    if project.quota_permille is not None and total > project.quota_permille:
        raise GpupoolError(
            ErrorCode.INVALID_COUNT,
            f"The quotas by model add up to {total / 1000:g} GPUs; the quota is {project.quota_permille / 1000:g}.",
            "Raise the quota: quotas by model are parts of it.",
        )
