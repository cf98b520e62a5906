"""The leases page: holders, idle times and ends."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gpupool.domain.ids import WorkloadId
from gpupool.domain.people.access import Actor
from gpupool.domain.units import format_duration
from gpupool.domain.work.workload import ReplicaState, Workload, WorkloadKind, holder_index
from gpupool.services.control.scheduling_loop import IDLE_WARNING_FRACTION
from gpupool.services.pool import PoolServices
from gpupool.services.workloads.leases import LeaseUse
from gpupool.web.deps import Services, Visitor, reads
from gpupool.web.kit.listing import Column, ColumnKind, listing, table_names
from gpupool.web.pages.saved_views import saved_views
from gpupool.web.rendering import page

EXTENSIONS = (("30m", "30 minutes"), ("1h", "1 hour"), ("4h", "4 hours"), ("1d", "1 day"))


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """A lease that is held. ``idle_s`` is what the idle limit ``idle_limit_s`` goes by; ``ends_at``: by its limits.

    ``gpus`` are (index, uuid, thousandths); ``warned``: the idle limit is near; ``manage``: may release or extend it.
    """

    epoch: int
    workload: WorkloadId
    name: str
    index: int
    completions: int
    kind: str
    state: str
    user: str
    project: str
    node: str
    gpus: tuple[tuple[int, str, int], ...]
    permille: int
    since: float
    held_s: float
    idle_s: float
    idle_limit_s: float | None
    warned: bool
    ends_at: float | None
    programs: int
    manage: bool
    extendable: bool

    @property
    def gpu_text(self) -> str:
        """Return ``GPU 0``, ``GPUs 0, 1``."""
        numbers = ", ".join(str(index) for index, _, _ in self.gpus)
        return f"GPU{'s' if len(self.gpus) > 1 else ''} {numbers}"


async def lease_rows(services: PoolServices, actor: Actor, now: float) -> tuple[LeaseRow, ...]:
    """Return all leases, oldest first."""
    return tuple(_row(services, actor, holding, now) for holding in await services.workloads.current_leases.held())


def _row(services: PoolServices, actor: Actor, holding: LeaseUse, now: float) -> LeaseRow:
    lease, workload, replica = holding.lease, holding.workload, holding.replica
    limit = workload.limits.idle_timeout_s if workload is not None else None
    idle_s = max(0.0, now - holding.last_active_at)
    manage = workload is not None and services.workloads.can_manage(actor, workload)
    return LeaseRow(
        lease.epoch,
        lease.workload,
        workload.name if workload is not None else lease.workload,
        holder_index(lease.index),
        workload.completions if workload is not None else 1,
        workload.kind.value if workload is not None else "",
        (replica.state if replica is not None else ReplicaState.STOPPING).value,
        lease.user,
        lease.project,
        lease.node,
        tuple((share.gpu_index, share.gpu_uuid, share.permille) for share in lease.shares),
        lease.permille,
        lease.granted_at,
        now - lease.granted_at,
        idle_s,
        limit,
        limit is not None and idle_s > limit * IDLE_WARNING_FRACTION,
        _ends_at(workload, lease.granted_at),
        holding.programs,
        manage,
        manage and workload is not None and is_extendable(workload),
    )


def is_extendable(workload: Workload) -> bool:
    """Return True for a live lease workload with an expiry."""
    return workload.kind is WorkloadKind.LEASE and workload.expires_at is not None and not workload.state.final


def _ends_at(workload: Workload | None, granted_at: float) -> float | None:
    if workload is None:
        return None
    if workload.kind is WorkloadKind.LEASE:
        return workload.expires_at
    return None if workload.limits.max_time_s is None else granted_at + workload.limits.max_time_s


router = APIRouter()


def _name(row: LeaseRow) -> str:
    return row.name if row.completions == 1 else f"{row.name}/{row.index}"


def _kind(row: LeaseRow) -> str:
    return row.kind if row.state == ReplicaState.RUNNING else f"{row.kind}, {row.state}"


def _idle_note(row: LeaseRow) -> str | None:
    if row.idle_limit_s is None:
        return None
    return f"{'released soon: ' if row.warned else ''}limit {format_duration(row.idle_limit_s)}"


COLUMNS: tuple[Column[LeaseRow], ...] = (
    Column("name", "Held by", _name, link=lambda row: f"/workloads/{row.workload}", note=_kind),
    Column("user", "User", lambda row: row.user, link=lambda row: f"/workloads?user={row.user}"),
    Column("project", "Project", lambda row: row.project, link=lambda row: f"/projects/{row.project}"),
    Column(
        "node", "Node", lambda row: row.node, link=lambda row: f"/nodes/{row.node}", note=lambda row: row.gpu_text
    ),
    Column("gpus", "GPUs", lambda row: row.permille, ColumnKind.GPUS),
    Column("held", "Held for", lambda row: row.held_s, ColumnKind.DURATION),
    Column(
        "idle", "Idle for", lambda row: row.idle_s, ColumnKind.DURATION, note=_idle_note,
        about="Time since its GPUs were last in use or its program started; the idle limit uses it",
    ),
    Column("ends", "Ends by", lambda row: row.ends_at, ColumnKind.TIME),
)  # fmt: skip


@router.get("/leases", dependencies=[reads(*table_names())])
async def leases(request: Request, services: Services, visitor: Visitor) -> Response:
    """Show leases with their idle time and end."""
    rows = await lease_rows(services, visitor, services.workloads.now())
    return page(
        request,
        visitor,
        "leases.html",
        title="Leases",
        views=await saved_views(request, services, visitor, "leases"),
        table=listing(request, COLUMNS, rows, name="leases", default_sort="-idle"),
        rows=rows,
        extensions=EXTENSIONS,
    )
