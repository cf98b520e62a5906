"""Departments, and how everybody stands."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter
from starlette.responses import Response

from gpupool.api.deps import Caller, NameInPath, Services, answer
from gpupool.api.schemas import (
    DepartmentBody,
    DepartmentChange,
    DepartmentList,
    DepartmentView,
    FairShareView,
)
from gpupool.domain.access import Department
from gpupool.services.pool import PoolServices

router = APIRouter(prefix="/v1", tags=["access"])


@router.get("/departments", response_model=DepartmentList)
async def list_departments(services: Services, _caller: Caller) -> Response:
    """All departments with their projects."""
    found = await services.departments.departments()
    return answer(DepartmentList(departments=[_view(services, department) for department in found]))


@router.post("/departments", status_code=201, response_model=DepartmentView)
async def create_department(services: Services, caller: Caller, body: DepartmentBody) -> Response:
    """Make a department. For administrators."""
    made = await services.departments.create(caller, Department(**body.model_dump()))
    return answer(_view(services, made), 201)


@router.patch("/departments/{name}", response_model=DepartmentView)
async def change_department(services: Services, caller: Caller, name: NameInPath, body: DepartmentChange) -> Response:
    """Change a department; fields left out stay. For administrators."""
    return answer(_view(services, await services.departments.change(caller, name, body.model_dump(exclude_unset=True))))


@router.delete("/departments/{name}", status_code=204)
async def delete_department(services: Services, caller: Caller, name: NameInPath) -> Response:
    """Remove a department without projects. For administrators."""
    await services.departments.delete(caller, name)
    return Response(status_code=204)


@router.get("/fairshare", response_model=FairShareView)
async def fair_share(services: Services, _caller: Caller) -> Response:
    """What each project is due, holds, waits for and used lately, and in which order their turns come."""
    return answer(FairShareView(**asdict(await services.departments.standings())))


def _view(services: PoolServices, department: Department) -> DepartmentView:
    return DepartmentView(**asdict(department), projects=list(services.departments.projects_of(department.name)))
