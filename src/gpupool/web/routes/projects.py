"""Projects and departments: who is due what, and changing it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from gpupool.api.deps import NameInPath
from gpupool.domain.access import Department, Project, Role
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.gpu import ComputePolicy, Sharing
from gpupool.web.asked import Ask, Asked, attempt
from gpupool.web.deps import Form, SentForm
from gpupool.web.listing import Column, Kind, listing
from gpupool.web.pages import back_to
from gpupool.web.views import projects as views
from gpupool.web.views.projects import ShareLine
from gpupool.web.views.typed import Typed
from gpupool.web.views.typed import names as typed_names

router = APIRouter()

MOST_DRAWN = 60
NEW = Typed({"weight": "1", "over_quota": True})

PROJECTS = (
    Column[ShareLine](
        "turn", "Turn", lambda row: row.turn, Kind.NUMBER, about="Its place among those whose work waits"
    ),
    Column[ShareLine]("project", "Project", lambda row: row.name, link=lambda row: f"/projects/{row.name}"),
    Column[ShareLine](
        "department",
        "Department",
        lambda row: row.department or None,
        link=lambda row: f"/departments/{row.department}" if row.department else None,
    ),
    Column[ShareLine]("quota", "Quota", lambda row: row.quota, Kind.GPUS, about="GPUs that it can count on"),
    Column[ShareLine]("fair", "Fair", lambda row: row.fair, Kind.GPUS, about="Its fair share: what it is due now"),
    Column[ShareLine]("held", "Held", lambda row: row.held, Kind.GPUS),
    Column[ShareLine]("borrowed", "Borrowed", lambda row: row.borrowed, Kind.GPUS, about="Held beyond its quota"),
    Column[ShareLine]("waiting", "Waiting", lambda row: row.waiting, Kind.GPUS),
    Column[ShareLine]("weight", "Weight", lambda row: row.weight, Kind.NUMBER),
    Column[ShareLine](
        "hours", "GPU hours", lambda row: row.used_gpu_hours, Kind.NUMBER, about="Used lately: older use counts less"
    ),
    Column[ShareLine]("members", "Members", lambda row: row.who),
    Column[ShareLine]("why", "Why", lambda row: row.reason, note=lambda row: row.note or None),
)
DEPARTMENTS = (
    Column[ShareLine]("department", "Department", lambda row: row.name, link=lambda row: f"/departments/{row.name}"),
    Column[ShareLine]("quota", "Quota", lambda row: row.quota, Kind.GPUS),
    Column[ShareLine]("fair", "Fair share", lambda row: row.fair, Kind.GPUS),
    Column[ShareLine]("held", "Held", lambda row: row.held, Kind.GPUS),
    Column[ShareLine]("borrowed", "Borrowed", lambda row: row.borrowed, Kind.GPUS),
    Column[ShareLine]("waiting", "Waiting", lambda row: row.waiting, Kind.GPUS),
    Column[ShareLine]("weight", "Weight", lambda row: row.weight, Kind.NUMBER),
    Column[ShareLine](
        "hours", "GPU hours", lambda row: row.used_gpu_hours, Kind.NUMBER, about="Used lately: older use counts less"
    ),
    Column[ShareLine]("projects", "Projects", lambda row: ", ".join(row.projects) or None),
    Column[ShareLine]("note", "Note", lambda row: row.note or None),
)


@router.get("/projects")
async def projects(ask: Ask) -> Response:
    """Quotas, fair shares, what is borrowed and what waits."""
    return await _list(ask)


async def _list(ask: Asked, typed: Typed = NEW, opened: str = "") -> Response:
    found = await views.shares(ask.services)
    return ask.show(
        "projects.html",
        "Projects",
        typed,
        shares=found,
        drawn=found.projects[:MOST_DRAWN],
        table=listing(ask.request, PROJECTS, found.projects, name="projects"),
        departments=listing(ask.request, DEPARTMENTS, found.departments, name="departments", prefix="d-"),
        opened=opened,
    )


@router.post("/projects")
async def create_project(ask: Ask, form: SentForm) -> Response:
    """Make a project of the few things that the short form asks for."""

    async def change() -> Response:
        made = await ask.services.access.create_project(ask.visitor, views.new_project(form))
        return back_to(f"/projects/{made.name}", said=f"The project {made.name} is made.")

    return await attempt(form, change, lambda typed: _list(ask, typed, "project"))


@router.post("/departments")
async def create_department(ask: Ask, form: SentForm) -> Response:
    """Make a department."""

    async def change() -> Response:
        made = await ask.services.departments.create(ask.visitor, views.new_department(form))
        return back_to(f"/departments/{made.name}", said=f"The department {made.name} is made.")

    return await attempt(form, change, lambda typed: _list(ask, typed, "department"))


# One project


@router.get("/projects/{name}")
async def project(ask: Ask, name: NameInPath) -> Response:
    """One project and its forms."""
    return await _show_project(ask, await _project(ask, name))


@router.post("/projects/{name}")
async def change_project(ask: Ask, form: SentForm, name: NameInPath) -> Response:
    """Change whatever the large form changes."""
    known = await _project(ask, name)
    return await _change_project(ask, form, known, lambda: views.project_changes(form, known))


@router.post("/projects/{name}/members")
async def change_members(ask: Ask, form: SentForm, name: NameInPath) -> Response:
    """Change who may use it: for its managers too."""
    known = await _project(ask, name)
    return await _change_project(ask, form, known, lambda: {"members": typed_names(form, "members")})


@router.post("/projects/{name}/delete")
async def delete_project(ask: Ask, form: SentForm, name: NameInPath) -> Response:
    """Remove a project without live work."""
    del form
    await ask.services.access.delete_project(ask.visitor, name)
    return back_to("/projects", said=f"The project {name} is deleted; its history stays.")


async def _project(ask: Asked, name: str) -> Project:
    found = next((known for known in await ask.services.access.projects() if known.name == name), None)
    if found is None:
        raise GpupoolError(
            ErrorCode.UNKNOWN_PROJECT, f"There is no project '{name[:80]}'.", "See the list of all projects."
        )
    return found


async def _change_project(ask: Asked, form: Form, known: Project, read: Callable[[], dict[str, Any]]) -> Response:
    async def change() -> Response:
        changes = read()
        if changes:
            await ask.services.access.change_project(ask.visitor, known.name, changes)
        return back_to(f"/projects/{known.name}", said="Saved." if changes else "Nothing was changed.")

    return await attempt(form, change, lambda typed: _show_project(ask, known, typed))


async def _show_project(ask: Asked, known: Project, typed: Typed | None = None) -> Response:
    return ask.show(
        "project.html",
        known.name,
        typed or views.typed_project(known),
        found=await views.project_page(ask.services, known),
        departments=[""] + [department.name for department in await ask.services.departments.departments()],
        manages=ask.visitor.role is Role.MANAGER and ask.visitor.user in known.members,
        compute_policies=list(ComputePolicy),
        compute_options=[("", "as the pool has it"), *((one, one) for one in ComputePolicy)],
        sharing_modes=list(Sharing),
        sharing_options=[("", "as the node has it"), *((one, one) for one in Sharing)],
        events=await ask.history(f"project {known.name}"),
    )


# One department


@router.get("/departments/{name}")
async def department(ask: Ask, name: NameInPath) -> Response:
    """One department, its projects and its form."""
    return await _show_department(ask, await _department(ask, name))


@router.post("/departments/{name}")
async def change_department(ask: Ask, form: SentForm, name: NameInPath) -> Response:
    """Change its quota, weight, limit or note."""
    known = await _department(ask, name)

    async def change() -> Response:
        changes = views.department_changes(form, known)
        if changes:
            await ask.services.departments.change(ask.visitor, name, changes)
        return back_to(f"/departments/{name}", said="Saved." if changes else "Nothing was changed.")

    return await attempt(form, change, lambda typed: _show_department(ask, known, typed))


@router.post("/departments/{name}/delete")
async def delete_department(ask: Ask, form: SentForm, name: NameInPath) -> Response:
    """Remove a department without projects."""
    del form
    await ask.services.departments.delete(ask.visitor, name)
    return back_to("/projects", said=f"The department {name} is deleted.")


async def _department(ask: Asked, name: str) -> Department:
    found = next((known for known in await ask.services.departments.departments() if known.name == name), None)
    if found is None:
        raise GpupoolError(
            ErrorCode.UNKNOWN_DEPARTMENT, f"There is no department '{name[:80]}'.", "See the page of projects."
        )
    return found


async def _show_department(ask: Asked, known: Department, typed: Typed | None = None) -> Response:
    found = await views.shares(ask.services)
    return ask.show(
        "department.html",
        known.name,
        typed or views.typed_department(known),
        line=next(line for line in found.departments if line.name == known.name),
        projects=[line for line in found.projects if line.department == known.name],
        events=await ask.history(f"department {known.name}"),
    )
