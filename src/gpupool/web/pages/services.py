"""Pages of services: a list, and one service with its replicas, requests and revisions."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from gpupool.api.deps import ServiceRef
from gpupool.api.schemas.work.services import RevisionView, ServiceReplicaView, ServiceView, TokenUsageView
from gpupool.api.views.service_view import service_view
from gpupool.domain.units import format_duration
from gpupool.domain.work.workspace import format_bytes
from gpupool.specs.fields.service import parse_replicas
from gpupool.web.deps import SentForm, reads
from gpupool.web.kit import form_input
from gpupool.web.kit.listing import Column, ColumnKind, listing, table_names
from gpupool.web.page_context import Context, MemberContext
from gpupool.web.rendering import back_to

router = APIRouter(prefix="/services")


def limits_text(row: ServiceView) -> str:
    """Return the number of replicas: ``2`` or ``0..4``."""
    return str(row.min) if row.min == row.max else f"{row.min}..{row.max}"


def _first_byte(row: ServiceView) -> str:
    return "" if row.first_byte_ms is None else f"{row.first_byte_ms[0]:.0f} ms, {row.first_byte_ms[1]:.0f} ms"


def _state_note(row: ServiceView) -> str:
    return row.problem or "; ".join(row.warnings) or row.failure


COLUMNS: tuple[Column[ServiceView], ...] = (
    Column("name", "Name", lambda row: row.name, link=lambda row: f"/services/{row.id}", note=lambda row: row.path),
    Column("state", "State", lambda row: row.state, ColumnKind.STATE, note=_state_note),
    Column("user", "Owner", lambda row: row.user, note=lambda row: row.project),
    Column(
        "ready", "Ready", lambda row: f"{row.ready} of {row.desired}", note=lambda row: f"limits {limits_text(row)}"
    ),
    Column("in_flight", "In flight", lambda row: row.in_flight, ColumnKind.NUMBER, about="Requests answered now"),
    Column("held", "Held", lambda row: row.held, ColumnKind.NUMBER, about="Requests that wait for a replica"),
    Column("latency", "First byte", _first_byte, about="Median, 99th percentile"),
    Column("revision", "Revision", lambda row: row.revision, ColumnKind.NUMBER),
)
REPLICAS: tuple[Column[ServiceReplicaView], ...] = (
    Column("name", "Replica", lambda row: row.name, link=lambda row: f"/workloads/{row.workload}"),
    Column("state", "State", lambda row: row.state, ColumnKind.STATE, note=lambda row: row.message or None),
    Column("ready", "Ready", lambda row: "draining" if row.draining else "yes" if row.ready else "no"),
    Column("revision", "Revision", lambda row: row.revision, ColumnKind.NUMBER),
    Column("node", "Node", lambda row: row.node or "", link=lambda row: row.node and f"/nodes/{row.node}"),
    Column("address", "Address", lambda row: row.address or ""),
    Column("started", "Started", lambda row: row.started_at, ColumnKind.TIME),
    Column("restarts", "Restarts", lambda row: row.restarts, ColumnKind.NUMBER),
)
USAGE: tuple[Column[TokenUsageView], ...] = (
    Column("token", "Token", lambda row: row.token, note=lambda row: row.user),
    Column("requests", "Requests", lambda row: row.requests, ColumnKind.NUMBER),
    Column("errors", "Errors", lambda row: row.errors, ColumnKind.NUMBER),
    Column("received", "Received", lambda row: format_bytes(row.received_bytes)),
    Column("sent", "Sent", lambda row: format_bytes(row.sent_bytes)),
    Column("time", "Request time", lambda row: format_duration(row.request_s)),
    Column("gpu", "GPU hours", lambda row: f"{row.gpu_hours:.2f}", about="In proportion to the request time"),
)
REVISIONS: tuple[Column[RevisionView], ...] = (
    Column("number", "Revision", lambda row: row.number, ColumnKind.NUMBER),
    Column("command", "Command", lambda row: " ".join(row.command or ()), note=lambda row: row.image),
    Column("by", "By", lambda row: row.created_by),
    Column("created", "Made", lambda row: row.created_at, ColumnKind.TIME),
)


@router.get("", dependencies=[reads(*table_names())])
async def services(context: Context) -> Response:
    """Show the services of the visitor's projects."""
    serving = context.services.serving
    rows = [service_view(context.services, context.visitor, row) for row in serving.all(context.visitor)]
    return context.show(
        "services/services.html", "Services", table=listing(context.request, COLUMNS, rows, name="services")
    )


@router.get("/{service}", dependencies=[reads(*table_names())])
async def service(context: Context, service: ServiceRef) -> Response:
    """Show a service and its actions."""
    found = context.services.serving.get(context.visitor, service)
    row = service_view(context.services, context.visitor, found)
    return context.show(
        "services/service.html",
        row.name,
        row=row,
        limits=limits_text(row),
        first_byte=_first_byte(row),
        managed=row.definition is not None,
        replicas=listing(context.request, REPLICAS, row.replicas, name="replicas"),
        revisions=listing(context.request, REVISIONS, row.revisions, name="revisions", default_sort="-number"),
        usage=listing(context.request, USAGE, row.usage.tokens or [], name="usage"),
        events=await context.history(f"service {row.id}"),
    )


@router.post("/{service}/scale")
async def scale(context: MemberContext, form: SentForm, service: ServiceRef) -> Response:
    """Set the number of replicas."""
    with form_input.name_field_in_errors("replicas"):
        least, most = parse_replicas(form.text("replicas"))
    row = await context.services.serving.scale(context.visitor, service, least, most)
    return back_to(f"/services/{row.id}", notice=f"{row.name} has {form.text('replicas')} replicas.")


@router.post("/{service}/undo")
async def undo(context: MemberContext, form: SentForm, service: ServiceRef) -> Response:
    """Change back to the revision before."""
    del form
    row = await context.services.serving.undo(context.visitor, service)
    return back_to(f"/services/{row.id}", notice=f"{row.name} changes to revision {row.target}.")


@router.post("/{service}/stop")
async def stop(context: MemberContext, form: SentForm, service: ServiceRef) -> Response:
    """Stop all replicas; the definition stays."""
    del form
    row = await context.services.serving.stop(context.visitor, service)
    return back_to(f"/services/{row.id}", notice=f"{row.name} is stopped.")


@router.post("/{service}/delete")
async def delete(context: MemberContext, form: SentForm, service: ServiceRef) -> Response:
    """Delete a stopped service."""
    del form
    row = context.services.serving.get(context.visitor, service)
    await context.services.serving.delete(context.visitor, row.id)
    return back_to("/services", notice=f"Service {row.name} deleted.")
