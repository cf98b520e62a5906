"""Who holds GPUs."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gpupool.domain.units import format_duration
from gpupool.domain.workload import ReplicaState
from gpupool.web.deps import Services, Visitor
from gpupool.web.listing import Column, Kind, listing
from gpupool.web.pages import page
from gpupool.web.views.leases import EXTENSIONS, LeaseRow, lease_rows

router = APIRouter()


def _name(row: LeaseRow) -> str:
    return row.name if row.completions == 1 else f"{row.name}/{row.index}"


def _kind(row: LeaseRow) -> str:
    return row.kind if row.state == ReplicaState.RUNNING else f"{row.kind}, {row.state}"


def _idle_note(row: LeaseRow) -> str | None:
    if row.idle_limit_s is None:
        return None
    return f"{'soon released: ' if row.warned else ''}limit {format_duration(row.idle_limit_s)}"


COLUMNS: tuple[Column[LeaseRow], ...] = (
    Column("name", "Held by", _name, link=lambda row: f"/workloads/{row.workload}", note=_kind),
    Column("user", "User", lambda row: row.user, link=lambda row: f"/workloads?user={row.user}"),
    Column("project", "Project", lambda row: row.project, link=lambda row: f"/projects/{row.project}"),
    Column(
        "node", "Node", lambda row: row.node, link=lambda row: f"/nodes/{row.node}", note=lambda row: row.gpu_text
    ),
    Column("gpus", "GPUs", lambda row: row.permille, Kind.GPUS),
    Column("held", "Held for", lambda row: row.held_s, Kind.DURATION),
    Column(
        "idle", "Idle for", lambda row: row.idle_s, Kind.DURATION, note=_idle_note,
        about="Since its GPUs were last seen in use, or its program began: what the idle limit goes by",
    ),
    Column("ends", "Ends at the latest", lambda row: row.ends_at, Kind.TIME),
)  # fmt: skip


@router.get("/leases")
async def leases(request: Request, services: Services, visitor: Visitor) -> Response:
    """What is held, for how long it has lain idle, and until when it is held."""
    rows = await lease_rows(services, visitor, services.workloads.now())
    return page(
        request,
        visitor,
        "leases.html",
        title="Leases",
        table=listing(request, COLUMNS, rows, name="leases", default_sort="-idle"),
        rows=rows,
        extensions=EXTENSIONS,
    )
