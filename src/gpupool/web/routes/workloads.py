"""The list of workloads."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gpupool.web.deps import Services, Visitor
from gpupool.web.listing import Column, Kind, listing
from gpupool.web.pages import page
from gpupool.web.views.workloads import STATE_CHOICES, Filters, WorkloadRow, find, names

router = APIRouter()

COLUMNS: tuple[Column[WorkloadRow], ...] = (
    Column(
        "name", "Workload", lambda row: row.name, link=lambda row: f"/workloads/{row.id}", note=lambda row: row.kind
    ),
    Column("state", "State", lambda row: row.state, Kind.STATE, note=lambda row: row.replicas or None),
    Column("project", "Project", lambda row: row.project, link=lambda row: f"/projects/{row.project}"),
    Column("user", "User", lambda row: row.user, link=lambda row: f"/workloads?user={row.user}"),
    Column("gpus", "GPUs", lambda row: row.gpus, about="For each replica"),
    Column("created", "Submitted", lambda row: row.created_at, Kind.TIME),
    Column("ran", "Ran", lambda row: row.ran_s, Kind.DURATION, about="Since its first start"),
    Column("ended", "Ended", lambda row: row.finished_at, Kind.TIME),
    Column("command", "Command", lambda row: row.command, about="Shown to its owner and to those who manage it"),
)


@router.get("/workloads")
async def workloads(request: Request, services: Services, visitor: Visitor) -> Response:
    """Workloads of all states, newest first; the address holds what is asked for."""
    filters = Filters.of(request.query_params)
    found = await find(services, visitor, filters, services.workloads.now())
    projects, users = names(found.rows)
    return page(
        request,
        visitor,
        "workloads.html",
        title="Workloads",
        filters=filters,
        states=STATE_CHOICES,
        projects=projects,
        users=users,
        older=found.older,
        table=listing(request, COLUMNS, found.rows, name="workloads", default_sort="-created"),
    )
