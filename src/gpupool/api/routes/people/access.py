"""Projects, departments, fair shares, users and tokens."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from gpupool.api.deps import (
    Administrator,
    AdministratorOrSelf,
    Caller,
    Manager,
    NameInPath,
    Search,
    Services,
    Word,
    answer,
)
from gpupool.api.etags import IfMatch, only_if, tagged
from gpupool.api.paging import Paged, contains, matches
from gpupool.api.schemas.bodies import (
    DepartmentBody,
    DepartmentChange,
    ProjectBody,
    ProjectChange,
    TokenBody,
    UserChange,
)
from gpupool.api.schemas.fairness import DepartmentList, DepartmentView, FairShareView
from gpupool.api.schemas.people import NewTokenView, ProjectList, ProjectView, TokenList, TokenView, UserList, UserView
from gpupool.api.views import access
from gpupool.domain.people.access import Department, Project, ProjectRules, Role, Scope
from gpupool.services.pool import PoolServices

router = APIRouter(prefix="/v1", tags=["access"])


@router.get("/projects", response_model=ProjectList)
async def list_projects(
    *,
    services: Services,
    _caller: Caller,
    page: Paged,
    search: Search | None = None,
    department: Word | None = None,
    member: Word | None = None,
) -> Response:
    """List the projects that match all filters, by name, with their allocated GPUs and queued replicas."""
    found = [
        project
        for project in await services.access.projects()
        if contains(search, project.name)
        and matches(department, project.department)
        and (member is None or member in project.members)
    ]
    rows, following = page.cut(found)
    views = [await _project_view(services, project) for project in rows]
    return answer(ProjectList(projects=views, next_cursor=following))


@router.get("/projects/{name}", response_model=ProjectView)
async def get_project(services: Services, _caller: Caller, name: NameInPath) -> Response:
    """Return a project, with the ETag of its settings."""
    project = services.access.project(name)
    return tagged(await _project_view(services, project), project)


@router.post("/projects", status_code=201, response_model=ProjectView)
async def create_project(services: Services, caller: Administrator, body: ProjectBody) -> Response:
    """Create a project. For administrators."""
    fields = _lists_as_tuples(body.model_dump())
    wanted = Project(**fields | {"rules": ProjectRules(**fields["rules"])})
    made = await services.access.create_project(caller, wanted)
    return tagged(await _project_view(services, made), made, 201, f"/v1/projects/{made.name}")


@router.patch("/projects/{name}", response_model=ProjectView)
async def change_project(
    services: Services, caller: Manager, name: NameInPath, body: ProjectChange, if_match: IfMatch = None
) -> Response:
    """Change a project; omitted fields stay. For administrators; managers may change its members and their rules."""
    changes = _lists_as_tuples(body.model_dump(exclude_unset=True))
    with only_if(if_match, lambda: services.access.project(name)):
        changed = await services.access.change_project(caller, name, changes)
    return tagged(await _project_view(services, changed), changed)


@router.delete("/projects/{name}", status_code=204)
async def delete_project(
    services: Services, caller: Administrator, name: NameInPath, if_match: IfMatch = None
) -> Response:
    """Delete a project without live workloads. For administrators."""
    with only_if(if_match, lambda: services.access.project(name)):
        await services.access.delete_project(caller, name)
    return Response(status_code=204)


_PAIRS = {"model_quotas", "user_weights", "user_quotas"}  # objects that are stored as sorted pairs


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
async def list_users(
    *,
    services: Services,
    caller: Caller,
    page: Paged,
    search: Search | None = None,
    role: Role | None = None,
    disabled: bool | None = None,
) -> Response:
    """List the users that match all filters, by name, for an administrator, else at most the caller."""
    found = [
        user
        for user in await services.access.users()
        if (caller.role is Role.ADMIN or user.name == caller.user)
        and contains(search, user.name)
        and matches(role, user.role)
        and matches(disabled, user.disabled)
    ]
    rows, following = page.cut(found)
    return answer(UserList(users=[access.user_view(user) for user in rows], next_cursor=following))


@router.get("/users/{name}", response_model=UserView)
async def get_user(services: Services, _caller: AdministratorOrSelf, name: NameInPath) -> Response:
    """Return a user with its ETag. For administrators and the user."""
    user = services.access.user(name)
    return tagged(access.user_view(user), user)


@router.put("/users/{name}", response_model=UserView)
async def put_user(
    services: Services, caller: AdministratorOrSelf, name: NameInPath, body: UserChange, if_match: IfMatch = None
) -> Response:
    """Create or change a user; omitted fields stay. For administrators; users may change their own e-mail address."""
    with only_if(if_match, lambda: services.access.user(name)):
        user = await services.access.put_user(caller, name, body.model_dump(exclude_unset=True))
    return tagged(access.user_view(user), user)


@router.get("/tokens", response_model=TokenList)
async def list_tokens(
    services: Services, caller: Caller, page: Paged, user: Word | None = None, scope: Scope | None = None
) -> Response:
    """List the tokens that match all filters, newest first, without their secrets; the caller's own for others."""
    found = [t for t in await services.access.tokens(caller) if matches(user, t.user) and matches(scope, t.scope)]
    rows, following = page.cut(found)
    return answer(TokenList(tokens=[access.token_view(token) for token in rows], next_cursor=following))


@router.get("/tokens/{token_id}", response_model=TokenView)
async def get_token(services: Services, caller: Caller, token_id: NameInPath) -> Response:
    """Return a token without its secret: any token for an administrator, else one of the caller."""
    return answer(access.token_view(await services.access.token(caller, token_id)))


@router.post("/tokens", status_code=201, response_model=NewTokenView)
async def create_token(services: Services, caller: Caller, body: TokenBody) -> Response:
    """Create a token; its secret is shown only in this answer."""
    token, secret = await services.access.create_token(
        caller,
        user=body.user or caller.user,
        role=body.role,
        expires_in_s=body.expires_in_s,
        note=body.note,
        scope=body.scope,
    )
    made = answer(access.new_token_view(token, secret), 201, f"/v1/tokens/{token.id}")
    made.headers["cache-control"] = "no-store"
    return made


@router.delete("/tokens/{token_id}", status_code=204)
async def revoke_token(services: Services, caller: Caller, token_id: NameInPath) -> Response:
    """Revoke a token at once."""
    await services.access.revoke_token(caller, token_id)
    return Response(status_code=204)


@router.get("/departments", response_model=DepartmentList)
async def list_departments(services: Services, _caller: Caller, page: Paged, search: Search | None = None) -> Response:
    """List the departments that match the filter, by name, with their projects."""
    found = [one for one in await services.departments.departments() if contains(search, one.name)]
    rows, following = page.cut(found)
    views = [_department_view(services, department) for department in rows]
    return answer(DepartmentList(departments=views, next_cursor=following))


@router.get("/departments/{name}", response_model=DepartmentView)
async def get_department(services: Services, _caller: Caller, name: NameInPath) -> Response:
    """Return a department, with the ETag of its settings."""
    department = services.departments.department(name)
    return tagged(_department_view(services, department), department)


@router.post("/departments", status_code=201, response_model=DepartmentView)
async def create_department(services: Services, caller: Administrator, body: DepartmentBody) -> Response:
    """Create a department. For administrators."""
    made = await services.departments.create(caller, Department(**body.model_dump()))
    return tagged(_department_view(services, made), made, 201, f"/v1/departments/{made.name}")


@router.patch("/departments/{name}", response_model=DepartmentView)
async def change_department(
    services: Services, caller: Administrator, name: NameInPath, body: DepartmentChange, if_match: IfMatch = None
) -> Response:
    """Change a department; omitted fields stay. For administrators."""
    with only_if(if_match, lambda: services.departments.department(name)):
        changed = await services.departments.change(caller, name, body.model_dump(exclude_unset=True))
    return tagged(_department_view(services, changed), changed)


@router.delete("/departments/{name}", status_code=204)
async def delete_department(
    services: Services, caller: Administrator, name: NameInPath, if_match: IfMatch = None
) -> Response:
    """Delete a department without projects. For administrators."""
    with only_if(if_match, lambda: services.departments.department(name)):
        await services.departments.delete(caller, name)
    return Response(status_code=204)


@router.get("/fairshare", response_model=FairShareView)
async def get_fair_share(services: Services, _caller: Caller) -> Response:
    """Return fair share, allocation, waiting GPUs and decayed usage of each project, in scheduling order."""
    return answer(FairShareView.model_validate(await services.departments.standings(), from_attributes=True))


def _department_view(services: PoolServices, department: Department) -> DepartmentView:
    return DepartmentView(**asdict(department), projects=list(services.departments.projects_of(department.name)))
