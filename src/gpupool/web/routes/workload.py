"""One workload: its page, and what can be done with it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from gpupool.api.deps import Ref
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.events import Event
from gpupool.domain.units import format_duration, parse_duration_s
from gpupool.domain.workload import WorkloadKind
from gpupool.specs.limits import MAX_PRIORITY
from gpupool.specs.request import parse_request
from gpupool.web.deps import Form, SentForm, Services, Visitor
from gpupool.web.listing import Column, Kind, listing
from gpupool.web.pages import back_to, page
from gpupool.web.views.account import account_of
from gpupool.web.views.leases import EXTENSIONS
from gpupool.web.views.queue import reasons_of
from gpupool.web.views.words import command_text, gang_text, gpus_text, limits_text, sharing_text
from gpupool.web.views.workload import ReplicaRow, retry_text, workload_page

router = APIRouter(prefix="/workloads/{ref}")

Replica = Annotated[int | None, Query(ge=0, le=10_000_000)]
Attempt = Annotated[int | None, Query(ge=1, le=10_000_000)]

REPLICAS: tuple[Column[ReplicaRow], ...] = (
    Column("index", "Replica", lambda row: row.index, link=lambda row: f"?replica={row.index}#output"),
    Column("state", "State", lambda row: row.state, Kind.STATE),
    Column("attempt", "Attempt", lambda row: row.attempt, Kind.NUMBER),
    Column("node", "Node", lambda row: row.node, link=lambda row: f"/nodes/{row.node}" if row.node else None),
    Column("gpus", "GPUs", lambda row: row.gpus or None, about="Number of the GPU: part of it"),
    Column("exit", "Exit", lambda row: row.exit_status, Kind.NUMBER),
    Column("started", "Started", lambda row: row.started_at, Kind.TIME),
    Column("ran", "Ran", lambda row: row.ran_s, Kind.DURATION),
    Column("about", "About", lambda row: row.about or None, note=lambda row: row.parameters or None),
)
EVENTS: tuple[Column[Event], ...] = (
    Column("at", "When", lambda event: event.at, Kind.TIME),
    Column("reason", "What", lambda event: event.reason.value),
    Column("index", "Replica", lambda event: event.index),
    Column("actor", "By", lambda event: event.actor),
    Column("message", "About", lambda event: event.message),
)


@router.get("")
async def workload(
    request: Request,
    services: Services,
    visitor: Visitor,
    ref: Ref,
    replica: Replica = None,
    attempt: Attempt = None,
) -> Response:
    """Everything about a workload that the visitor may see."""
    found = await services.workloads.get(visitor, ref)
    now = services.workloads.now()
    reasons = reasons_of(services, request.app.state)
    shown = await workload_page(services, visitor, found, (replica, attempt), now, reasons)
    seen = shown.allowed.see
    return page(
        request,
        visitor,
        "workload.html",
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
        extensions=EXTENSIONS,
        replicas=listing(request, REPLICAS, shown.replicas, name="replicas", default_sort="index", prefix="r_"),
        events=listing(request, EVENTS, reversed(shown.events), name="events", default_sort="-at", prefix="e_"),
    )


@router.post("/stop")
async def stop(services: Services, visitor: Visitor, ref: Ref, form: SentForm) -> Response:
    """End it: TERM, the grace, KILL; at once with ``force``; one replica with ``index``."""
    index = _index(form)
    found = await services.workloads.stop(visitor, ref, force=form.ticked("force"), index=index)
    what = found.name if index is None else f"{found.name}/{index}"
    word = "Released" if found.kind is WorkloadKind.LEASE else "Asked to stop"
    return back_to(_back(form, found.id), said=f"{word}: {what}.")


@router.post("/suspend")
async def suspend(services: Services, visitor: Visitor, ref: Ref, form: SentForm) -> Response:
    """Stop what runs and keep it out of the queue."""
    found = await services.workloads.suspend(visitor, ref)
    return back_to(_back(form, found.id), said=f"Suspended: {found.name}. It waits until it is resumed.")


@router.post("/resume")
async def resume(services: Services, visitor: Visitor, ref: Ref, form: SentForm) -> Response:
    """Put it back into the queue."""
    found = await services.workloads.resume(visitor, ref)
    return back_to(_back(form, found.id), said=f"Back in the queue: {found.name}.")


@router.post("/extend")
async def extend(services: Services, visitor: Visitor, ref: Ref, form: SentForm) -> Response:
    """Let a lease live longer."""
    seconds = parse_duration_s(form.text("by"))
    found = await services.workloads.extend(visitor, ref, seconds)
    return back_to(_back(form, found.id), said=f"{found.name} is held {format_duration(seconds)} longer.")


@router.post("/priority")
async def priority(services: Services, visitor: Visitor, ref: Ref, form: SentForm) -> Response:
    """Let it come earlier or later in its project."""
    found = await services.workloads.set_priority(visitor, ref, _priority(form.text("priority")))
    return back_to(f"/workloads/{found.id}", said=f"{found.name} has priority {found.priority}.")


@router.post("/delete")
async def delete(services: Services, visitor: Visitor, ref: Ref, form: SentForm) -> Response:
    """Take one that has ended off the lists, with its output."""
    del form
    found = await services.workloads.get(visitor, ref)
    await services.workloads.delete(visitor, found.id)
    return back_to("/workloads", said=f"Deleted: {found.name}.")


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
        "workdir": account.home,
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


def _priority(text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 5) or abs(int(text)) > MAX_PRIORITY:
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST, f"'{text[:40]}' is not a priority.", f"From -{MAX_PRIORITY} to {MAX_PRIORITY}."
        )
    return int(text)


def _back(form: Form, workload: str) -> str:
    """The leases for what was asked there, else the workload's page."""
    return "/leases" if form.text("back") == "leases" else f"/workloads/{workload}"
