"""Pages of projects and departments: shares and settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from gpupool.api.deps import NameInPath
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.gpu import SpreadRule, missing_pools_text
from gpupool.domain.nodes.sharing import ComputePolicy, Sharing
from gpupool.domain.people.access import Department, Project, Role
from gpupool.web.deps import Form, SentForm, reads
from gpupool.web.kit.form_input import FormValues
from gpupool.web.kit.form_input import names as typed_names
from gpupool.web.kit.listing import Column, ColumnKind, listing, table_names
from gpupool.web.page_context import AdministratorContext, Context, ManagerContext, PageContext, handle_form
from gpupool.web.pages.projects import view as views
from gpupool.web.pages.projects.view import ShareLine
from gpupool.web.rendering import back_to

router = APIRouter()

MAX_BARS = 60
NEW = FormValues({"weight": "1", "over_quota": True})

SHARES = (
    Column[ShareLine]("quota", "Quota", lambda row: row.share.quota_permille, ColumnKind.GPUS, about="Guaranteed GPUs"),
    Column[ShareLine](
        "fair", "Fair share", lambda row: row.fair, ColumnKind.GPUS, about="GPUs that it should have now"
    ),
    Column[ShareLine]("held", "Held", lambda row: row.share.held_permille, ColumnKind.GPUS),
    Column[ShareLine](
        "borrowed", "Over quota", lambda row: row.borrowed, ColumnKind.GPUS, about="Held above its quota"
    ),
    Column[ShareLine]("waiting", "Waiting", lambda row: row.share.waiting_permille, ColumnKind.GPUS),
    Column[ShareLine]("weight", "Weight", lambda row: row.share.weight, ColumnKind.NUMBER),
    Column[ShareLine](
        "hours",
        "Recent use",
        lambda row: row.share.used_gpu_hours,
        ColumnKind.NUMBER,
        about="GPU hours; older use counts less",
    ),
)
PROJECTS = (
    Column[ShareLine](
        "turn", "Order", lambda row: row.turn, ColumnKind.NUMBER, about="Position among projects with queued workloads"
    ),
    Column[ShareLine]("project", "Project", lambda row: row.name, link=lambda row: f"/projects/{row.name}"),
    Column[ShareLine](
        "department",
        "Department",
        lambda row: row.department or None,
        link=lambda row: f"/departments/{row.department}" if row.department else None,
    ),
    *SHARES,
    Column[ShareLine]("members", "Members", lambda row: row.who),
    Column[ShareLine]("why", "Why", lambda row: row.reason, note=lambda row: row.note or None),
)
DEPARTMENTS = (
    Column[ShareLine]("department", "Department", lambda row: row.name, link=lambda row: f"/departments/{row.name}"),
    *SHARES,
    Column[ShareLine]("projects", "Projects", lambda row: ", ".join(row.projects) or None),
    Column[ShareLine]("note", "Note", lambda row: row.note or None),
)


@router.get("/projects", dependencies=[reads(*table_names(), *table_names("d-"))])
async def projects(context: Context) -> Response:
    """Show quotas, fair shares, over-quota use and waiting GPUs."""
    return await _list(context)


async def _list(context: PageContext, typed: FormValues = NEW, opened: str = "") -> Response:
    found = await views.shares(context.services)
    return context.show(
        "projects/projects.html",
        "Projects",
        typed,
        shares=found,
        drawn=found.projects[:MAX_BARS],
        table=listing(context.request, PROJECTS, found.projects, name="projects"),
        departments=listing(context.request, DEPARTMENTS, found.departments, name="departments", prefix="d-"),
        opened=opened,
    )


@router.post("/projects")
async def create_project(context: AdministratorContext, form: SentForm) -> Response:
    """Create a project from the short form."""

    async def change() -> Response:
        made = await context.services.access.create_project(context.visitor, views.new_project(form))
        return back_to(f"/projects/{made.name}", notice=f"Project {made.name} created.")

    return await handle_form(form, change, lambda typed: _list(context, typed, "project"))


@router.post("/departments")
async def create_department(context: AdministratorContext, form: SentForm) -> Response:
    """Create a department."""

    async def change() -> Response:
        made = await context.services.departments.create(context.visitor, views.new_department(form))
        return back_to(f"/departments/{made.name}", notice=f"Department {made.name} created.")

    return await handle_form(form, change, lambda typed: _list(context, typed, "department"))


# One project


@router.get("/projects/{name}")
async def project(context: Context, name: NameInPath) -> Response:
    """Show a project and its forms."""
    return await _show_project(context, await _project(context, name))


@router.post("/projects/{name}")
async def change_project(context: AdministratorContext, form: SentForm, name: NameInPath) -> Response:
    """Change the settings of a project."""
    known = await _project(context, name)
    return await _change_project(context, form, known, lambda: views.project_changes(form, known))


@router.post("/projects/{name}/members")
async def change_members(context: ManagerContext, form: SentForm, name: NameInPath) -> Response:
    """Change the members of a project; managers may do this, too."""
    known = await _project(context, name)
    return await _change_project(context, form, known, lambda: {"members": typed_names(form, "members")})


@router.post("/projects/{name}/delete")
async def delete_project(context: AdministratorContext, form: SentForm, name: NameInPath) -> Response:
    """Delete a project without live workloads."""
    del form
    await context.services.access.delete_project(context.visitor, name)
    return back_to("/projects", notice=f"Project {name} deleted; its history remains.")


async def _project(context: PageContext, name: str) -> Project:
    found = next((known for known in await context.services.access.projects() if known.name == name), None)
    if found is None:
        raise GpupoolError(ErrorCode.UNKNOWN_PROJECT, f"There is no project '{name[:80]}'.", "See the projects page.")
    return found


async def _change_project(
    context: PageContext, form: Form, known: Project, read: Callable[[], dict[str, Any]]
) -> Response:
    async def change() -> Response:
        changes = read()
        if changes:
            await context.services.access.change_project(context.visitor, known.name, changes)
        labels = [node.all_labels for node in await context.services.nodes.nodes()]
        missing = missing_pools_text(changes.get("rules", {}).get("node_pools", ()), labels)
        return back_to(f"/projects/{known.name}", notice=f"Saved. {missing}".strip() if changes else "No changes.")

    return await handle_form(form, change, lambda typed: _show_project(context, known, typed))


async def _show_project(context: PageContext, known: Project, typed: FormValues | None = None) -> Response:
    return context.show(
        "projects/project.html",
        known.name,
        typed or views.project_form_values(known),
        found=await views.project_page(context.services, known),
        departments=[""] + [department.name for department in await context.services.departments.departments()],
        manages=context.visitor.role is Role.MANAGER and context.visitor.user in known.members,
        compute_policies=list(ComputePolicy),
        compute_options=[("", "pool default"), *((one, one) for one in ComputePolicy)],
        sharing_modes=list(Sharing),
        spread_options=[("", "as the pool"), *((one, one) for one in SpreadRule)],
        sharing_options=[("", "node default"), *((one, one) for one in Sharing)],
        events=await context.history(f"project {known.name}"),
    )


# One department


@router.get("/departments/{name}")
async def department(context: Context, name: NameInPath) -> Response:
    """Show a department, its projects and its form."""
    return await _show_department(context, await _department(context, name))


@router.post("/departments/{name}")
async def change_department(context: AdministratorContext, form: SentForm, name: NameInPath) -> Response:
    """Change its quota, weight, limit or note."""
    known = await _department(context, name)

    async def change() -> Response:
        changes = views.department_changes(form, known)
        if changes:
            await context.services.departments.change(context.visitor, name, changes)
        return back_to(f"/departments/{name}", notice="Saved." if changes else "No changes.")

    return await handle_form(form, change, lambda typed: _show_department(context, known, typed))


@router.post("/departments/{name}/delete")
async def delete_department(context: AdministratorContext, form: SentForm, name: NameInPath) -> Response:
    """Delete a department without projects."""
    del form
    await context.services.departments.delete(context.visitor, name)
    return back_to("/projects", notice=f"Department {name} deleted.")


async def _department(context: PageContext, name: str) -> Department:
    found = next((known for known in await context.services.departments.departments() if known.name == name), None)
    if found is None:
        raise GpupoolError(
            ErrorCode.UNKNOWN_DEPARTMENT, f"There is no department '{name[:80]}'.", "See the projects page."
        )
    return found


async def _show_department(context: PageContext, known: Department, typed: FormValues | None = None) -> Response:
    found = await views.shares(context.services)
    return context.show(
        "projects/department.html",
        known.name,
        typed or views.department_form_values(known),
        line=next(line for line in found.departments if line.name == known.name),
        projects=[line for line in found.projects if line.department == known.name],
        events=await context.history(f"department {known.name}"),
    )
