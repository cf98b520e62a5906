"""Projects, departments, fair shares, users and tokens."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from gpupool.api.deps import Administrator, AdministratorOrSelf, Caller, Manager, NameInPath, Services, answer
from gpupool.api.schemas.bodies import (
    DepartmentBody,
    DepartmentChange,
    ProjectBody,
    ProjectChange,
    TokenBody,
    UserChange,
)
from gpupool.api.schemas.fairness import DepartmentList, DepartmentView, FairShareView
from gpupool.api.schemas.people import NewTokenView, ProjectList, ProjectView, TokenList, UserList, UserView
from gpupool.api.views import access
from gpupool.domain.people.access import Department, Project, ProjectRules, Role
from gpupool.services.pool import PoolServices

router = APIRouter(prefix="/v1", tags=["access"])


@router.get("/projects", response_model=ProjectList)
async def list_projects(services: Services, _caller: Caller) -> Response:
    """All projects with what they hold and wait for."""
    views = [await _project_view(services, project) for project in await services.access.projects()]
    return answer(ProjectList(projects=views))


@router.post("/projects", status_code=201, response_model=ProjectView)
async def create_project(services: Services, caller: Administrator, body: ProjectBody) -> Response:
    """Make a project. For administrators."""
    fields = _lists_as_tuples(body.model_dump())
    wanted = Project(**fields | {"rules": ProjectRules(**fields["rules"])})
    return answer(await _project_view(services, await services.access.create_project(caller, wanted)), 201)


@router.patch("/projects/{name}", response_model=ProjectView)
async def change_project(services: Services, caller: Manager, name: NameInPath, body: ProjectChange) -> Response:
    """Change a project; fields left out stay. For administrators, and managers of the project for its members."""
    changes = _lists_as_tuples(body.model_dump(exclude_unset=True))
    return answer(await _project_view(services, await services.access.change_project(caller, name, changes)))


@router.delete("/projects/{name}", status_code=204)
async def delete_project(services: Services, caller: Administrator, name: NameInPath) -> Response:
    """Remove a project that has no live work. For administrators."""
    await services.access.delete_project(caller, name)
    return Response(status_code=204)


_PAIRS = {"model_quotas", "user_weights"}  # objects that are stored as sorted pairs


def _lists_as_tuples(body: dict[str, Any]) -> dict[str, Any]:
    pairs = {name: tuple(sorted(body[name].items())) for name in _PAIRS & body.keys()}
    return {name: _as_tuples(value) for name, value in body.items()} | pairs


def _as_tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return _lists_as_tuples(value)
    return tuple(value) if isinstance(value, list) else value


async def _project_view(services: PoolServices, project: Project) -> ProjectView:
    allocated, queued = await services.access.project_load(project.name)
    return access.project_view(project, allocated, queued, services.access.gpu_hours_used(project.name))


@router.get("/users", response_model=UserList)
async def list_users(services: Services, caller: Caller) -> Response:
    """All users for an administrator, oneself for others."""
    users = await services.access.users()
    shown = [u for u in users if caller.role is Role.ADMIN or u.name == caller.user]
    return answer(UserList(users=[access.user_view(user) for user in shown]))


@router.put("/users/{name}", response_model=UserView)
async def put_user(services: Services, caller: AdministratorOrSelf, name: NameInPath, body: UserChange) -> Response:
    """Make or change a user; fields left out stay. For administrators, but for one's own e-mail address."""
    user = await services.access.put_user(caller, name, body.model_dump(exclude_unset=True))
    return answer(access.user_view(user))


@router.get("/tokens", response_model=TokenList)
async def list_tokens(services: Services, caller: Caller) -> Response:
    """All tokens for an administrator, one's own for others; never their secrets."""
    return answer(TokenList(tokens=[access.token_view(t) for t in await services.access.tokens(caller)]))


@router.post("/tokens", status_code=201, response_model=NewTokenView)
async def create_token(services: Services, caller: Caller, body: TokenBody) -> Response:
    """Make a token; its secret is shown in this answer and never again."""
    token, secret = await services.access.create_token(
        caller,
        user=body.user or caller.user,
        role=body.role,
        expires_in_s=body.expires_in_s,
        note=body.note,
        scope=body.scope,
    )
    made = answer(access.new_token_view(token, secret), 201)
    made.headers["cache-control"] = "no-store"
    return made


@router.delete("/tokens/{token_id}", status_code=204)
async def revoke_token(services: Services, caller: Caller, token_id: NameInPath) -> Response:
    """Make a token useless at once."""
    await services.access.revoke_token(caller, token_id)
    return Response(status_code=204)


@router.get("/departments", response_model=DepartmentList)
async def list_departments(services: Services, _caller: Caller) -> Response:
    """All departments with their projects."""
    found = await services.departments.departments()
    return answer(DepartmentList(departments=[_department_view(services, department) for department in found]))


@router.post("/departments", status_code=201, response_model=DepartmentView)
async def create_department(services: Services, caller: Administrator, body: DepartmentBody) -> Response:
    """Make a department. For administrators."""
    made = await services.departments.create(caller, Department(**body.model_dump()))
    return answer(_department_view(services, made), 201)


@router.patch("/departments/{name}", response_model=DepartmentView)
async def change_department(
    services: Services, caller: Administrator, name: NameInPath, body: DepartmentChange
) -> Response:
    """Change a department; fields left out stay. For administrators."""
    return answer(
        _department_view(services, await services.departments.change(caller, name, body.model_dump(exclude_unset=True)))
    )


@router.delete("/departments/{name}", status_code=204)
async def delete_department(services: Services, caller: Administrator, name: NameInPath) -> Response:
    """Remove a department without projects. For administrators."""
    await services.departments.delete(caller, name)
    return Response(status_code=204)


@router.get("/fairshare", response_model=FairShareView)
async def fair_share(services: Services, _caller: Caller) -> Response:
    """Return fair share, allocation, waiting GPUs and decayed usage of each project, in scheduling order."""
    return answer(FairShareView.model_validate(await services.departments.standings(), from_attributes=True))


def _department_view(services: PoolServices, department: Department) -> DepartmentView:
    return DepartmentView(**asdict(department), projects=list(services.departments.projects_of(department.name)))
