"""The page of a workload and its actions."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.params import Path
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from gpupool.api.deps import Ref
from gpupool.api.schemas.work.workloads import ResultRow, ResultTable
from gpupool.api.server.peer import loopback_uid
from gpupool.api.views.results_view import FIXED, result_table
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.events import Event
from gpupool.domain.protocol.log_records import ERROR_LINE
from gpupool.domain.units import format_duration, parse_duration_s
from gpupool.domain.work.efficiency import Efficiency
from gpupool.domain.work.workload import Workload, WorkloadKind
from gpupool.services.pool import PoolServices
from gpupool.services.usage.efficiency import efficiency
from gpupool.specs.limits import MAX_PRIORITY
from gpupool.specs.request import parse_request
from gpupool.web.deps import Form, SentForm, Services, Visitor, reads
from gpupool.web.kit.labels import command_text, gang_text, gpus_text, limits_text, sharing_text
from gpupool.web.kit.listing import Column, ColumnKind, listing, table_names
from gpupool.web.kit.response_cache import cache_of
from gpupool.web.pages.leases import EXTENSIONS
from gpupool.web.pages.submit.account import account_of
from gpupool.web.pages.workload.view import ReplicaRow, retry_text, served_ports, workload_page
from gpupool.web.rendering import back_to, page

router = APIRouter(prefix="/workloads/{ref}")

Replica = Annotated[int | None, Query(ge=0, le=10_000_000)]
PortInPath = Annotated[int, Path(ge=1, le=65535)]
Attempt = Annotated[int | None, Query(ge=1, le=10_000_000)]

REPLICAS: tuple[Column[ReplicaRow], ...] = (
    Column("index", "Replica", lambda row: row.index, link=lambda row: f"?replica={row.index}#output"),
    Column("state", "State", lambda row: row.state, ColumnKind.STATE),
    Column("attempt", "Attempt", lambda row: row.attempt, ColumnKind.NUMBER),
    Column("node", "Node", lambda row: row.node, link=lambda row: f"/nodes/{row.node}" if row.node else None),
    Column("gpus", "GPUs", lambda row: row.gpus or None, about="GPU number: share"),
    Column("exit", "Exit", lambda row: row.exit_status, ColumnKind.NUMBER),
    Column("started", "Started", lambda row: row.started_at, ColumnKind.TIME),
    Column("ran", "Ran", lambda row: row.ran_s, ColumnKind.DURATION),
    Column("about", "Message", lambda row: row.about or None, note=lambda row: row.parameters or None),
)
EVENTS: tuple[Column[Event], ...] = (
    Column("at", "When", lambda event: event.at, ColumnKind.TIME),
    Column("reason", "Reason", lambda event: event.reason.value),
    Column("index", "Replica", lambda event: event.index),
    Column("actor", "By", lambda event: event.actor),
    Column("message", "Message", lambda event: event.message),
)


@router.get("", dependencies=[reads(*table_names("r_"), *table_names("e_"))])
async def workload(
    request: Request,
    services: Services,
    visitor: Visitor,
    ref: Ref,
    replica: Replica = None,
    attempt: Attempt = None,
) -> Response:
    """Show a workload."""
    found = await services.workloads.get(visitor, ref)
    now = services.workloads.now()
    shown = await workload_page(services, visitor, found, (replica, attempt), now)
    seen = shown.allowed.see
    local = loopback_uid(request) is not None
    ports = await served_ports(services, visitor, found, shown.chosen, same_machine=local) if shown.served else []
    return page(
        request,
        visitor,
        "workload/workload.html",
        title=found.name,
        view=shown,
        workload=found,
        now=now,
        url=f"/workloads/{found.id}",
        command=command_text(found) if seen else None,
        gpus=gpus_text(found.gpus),
        about_sharing=sharing_text(found),
        about_limits=limits_text(found.limits),
        about_gang=gang_text(found),
        about_retry=retry_text(found),
        error_line=ERROR_LINE,
        used=await _efficiency(request, services, found) if found.started_at is not None else None,
        extensions=EXTENSIONS,
        ports=ports,
        replicas=listing(request, REPLICAS, shown.replicas, name="replicas", default_sort="index", prefix="r_"),
        events=listing(request, EVENTS, reversed(shown.events), name="events", default_sort="-at", prefix="e_"),
    )


async def _efficiency(request: Request, services: PoolServices, found: Workload) -> Efficiency:
    made: Efficiency = await cache_of(request).get(
        ("efficiency", found.id), lambda: efficiency(services.workloads, services.telemetry, found)
    )
    return made


@router.get("/results", dependencies=[reads(*table_names())])
async def results(request: Request, services: Services, visitor: Visitor, ref: Ref) -> Response:
    """Show the parameters and metrics of all replicas as a table that can be sorted and exported."""
    found = await services.workloads.get(visitor, ref)
    replicas = await services.workloads.replicas_of(found)
    private = services.workloads.can_see(visitor, found)
    shown = result_table(found, replicas, services.workloads.now(), private=private)
    table = listing(request, result_columns(shown), shown.rows, name="results", default_sort="index")
    return page(
        request, visitor, "workload/results.html", title=f"Results of {found.name}", workload=found, table=table
    )


def result_columns(shown: ResultTable) -> tuple[Column[ResultRow], ...]:
    """Return the columns of a table: fixed ones, parameters, metrics."""
    taken = {*FIXED, *shown.parameters}

    def named(prefix: str, name: str, values: str) -> Column[ResultRow]:
        numbers = all(isinstance(getattr(row, values).get(name, 0), int | float) for row in shown.rows)
        kind = ColumnKind.NUMBER if numbers else ColumnKind.TEXT
        other = FIXED if values == "parameters" else taken
        return Column(
            f"{prefix}-{name}" if name in other else name, name, lambda row: getattr(row, values).get(name), kind
        )

    return (
        Column("index", "Replica", lambda row: row.index, link=lambda row: f"../{shown.workload}?replica={row.index}"),
        Column("state", "State", lambda row: row.state, ColumnKind.STATE),
        *(named("p", name, "parameters") for name in shown.parameters),
        *(named("m", name, "metrics") for name in shown.metrics),
        Column("step", "Step", lambda row: row.step, ColumnKind.NUMBER),
        Column("ran", "Ran", lambda row: row.ran_s, ColumnKind.DURATION),
        Column("exit", "Exit", lambda row: row.exit_status, ColumnKind.NUMBER),
    )


@router.get("/ports/{port}/open")
async def open_port(
    *, request: Request, services: Services, visitor: Visitor, ref: Ref, port: PortInPath, replica: Replica = None
) -> Response:
    """Send the browser to a port of the workload, at the port's own host name."""
    if request.headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
        raise GpupoolError(
            ErrorCode.FORBIDDEN, "The link is on a page of another site.", "Open the port on the page of the workload."
        )
    here = loopback_uid(request) is not None
    opened = await services.open_ports.open(visitor, ref, replica or 0, port, here=here)
    return RedirectResponse(opened.url, HTTPStatus.SEE_OTHER, {"referrer-policy": "no-referrer"})


@router.post("/stop")
async def stop(services: Services, visitor: Visitor, ref: Ref, form: SentForm) -> Response:
    """Stop a workload after its grace period, at once with ``force``, or one replica with ``index``."""
    index = _index(form)
    found = await services.workloads.stop(visitor, ref, force=form.is_checked("force"), index=index)
    what = found.name if index is None else f"{found.name}/{index}"
    word = "Released" if found.kind is WorkloadKind.LEASE else "Stopping"
    return back_to(_back(form, found.id), notice=f"{word}: {what}.")


@router.post("/suspend")
async def suspend(services: Services, visitor: Visitor, ref: Ref, form: SentForm) -> Response:
    """Suspend a workload: stop its replicas and take it off the queue."""
    found = await services.workloads.suspend(visitor, ref)
    return back_to(_back(form, found.id), notice=f"Suspended: {found.name}. Resume it to continue.")


@router.post("/restart")
async def restart(services: Services, visitor: Visitor, ref: Ref, form: SentForm) -> Response:
    """Restart programs on the same GPUs; one replica with ``index``."""
    index = _index(form)
    found = await services.workloads.restart(visitor, ref, index=index)
    what = found.name if index is None else f"{found.name}/{index}"
    return back_to(_back(form, found.id), notice=f"Restarting on the same GPUs: {what}.")


@router.post("/resume")
async def resume(services: Services, visitor: Visitor, ref: Ref, form: SentForm) -> Response:
    """Resume a suspended workload."""
    found = await services.workloads.resume(visitor, ref)
    return back_to(_back(form, found.id), notice=f"Resumed: {found.name} is queued.")


@router.post("/extend")
async def extend(services: Services, visitor: Visitor, ref: Ref, form: SentForm) -> Response:
    """Extend a lease."""
    seconds = parse_duration_s(form.text("by"))
    found = await services.workloads.extend(visitor, ref, seconds)
    return back_to(_back(form, found.id), notice=f"{found.name} extended by {format_duration(seconds)}.")


@router.post("/priority")
async def priority(services: Services, visitor: Visitor, ref: Ref, form: SentForm) -> Response:
    """Set the priority of a workload within its project."""
    found = await services.workloads.set_priority(visitor, ref, priority_of(form.text("priority")))
    return back_to(f"/workloads/{found.id}", notice=f"Priority of {found.name} set to {found.priority}.")


@router.post("/delete")
async def delete(services: Services, visitor: Visitor, ref: Ref, form: SentForm) -> Response:
    """Delete an ended workload with its output."""
    del form
    found = await services.workloads.get(visitor, ref)
    await services.workloads.delete(visitor, found.id)
    return back_to("/workloads", notice=f"Deleted: {found.name}.")


@router.post("/shell")
async def shell(services: Services, visitor: Visitor, ref: Ref, form: SentForm) -> Response:
    """Open a shell on the GPUs that a workload holds, and go to its terminal."""
    host = await services.workloads.get(visitor, ref)
    account = account_of(services.info, visitor)
    body = {
        "kind": "exec",
        "command": [account.shell],
        "on": host.id,
        "on_index": _index(form) or 0,
        "tty": True,
        "workdir": "" if host.program.workspace else account.home,  # empty: the home of the workspace
        "env": dict(account.environment) | {"TERM": "xterm-256color"},
    }
    made, _ = await services.workloads.submit(visitor, parse_request(body))
    return back_to(f"/workloads/{made.id}#terminal")


def _index(form: Form) -> int | None:
    text = form.text("index")
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 8:
        raise GpupoolError(ErrorCode.INVALID_COUNT, f"'{text[:40]}' is not a replica.", "Go back and reload the page.")
    return int(text)


def priority_of(text: str) -> int:
    """Return the priority of a form. Raises ``GpupoolError`` (INVALID_REQUEST)."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 5) or abs(int(text)) > MAX_PRIORITY:
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST, f"'{text[:40]}' is not a priority.", f"From -{MAX_PRIORITY} to {MAX_PRIORITY}."
        )
    return int(text)


def _back(form: Form, workload: str) -> str:
    """Return the leases page for forms sent from it, else the workload's page."""
    return "/leases" if form.text("back") == "leases" else f"/workloads/{workload}"
