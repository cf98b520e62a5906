"""Workloads: submit, list, look, wait, ask why, and change their course."""

from __future__ import annotations

from signal import Signals
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from gpupool.api import assemble, foretelling
from gpupool.api.assemble import Viewer
from gpupool.api.closing import unless_over
from gpupool.api.deps import (
    Caller,
    Closing,
    Cursor,
    Index,
    Limit,
    Ref,
    Services,
    TimeoutS,
    Word,
    answer,
    decode_page,
    encode_page,
    peer_uid,
)
from gpupool.api.schemas import (
    ExtendBody,
    PriorityBody,
    SignalBody,
    StopBody,
    WhyView,
    WorkloadDetail,
    WorkloadList,
    WorkloadView,
)
from gpupool.domain.access import Actor
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.workload import Workload, WorkloadState
from gpupool.services.pool import PoolServices
from gpupool.services.ports import WorkloadFilter
from gpupool.services.workloads import WaitFor
from gpupool.specs.request import parse_request_json

router = APIRouter(prefix="/v1/workloads", tags=["workloads"])

_LIVE = tuple(state for state in WorkloadState if not state.final)
REQUEST_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/WorkloadRequest"}}},
    }
}


def viewer_of(request: Request, caller: Actor) -> Viewer:
    """Who looks, and from where."""
    return Viewer(caller, local=peer_uid(request) is not None)


@router.post(
    "",
    status_code=201,
    response_model=WorkloadDetail | WorkloadView,
    responses={200: {"model": WorkloadDetail | WorkloadView, "description": "This request_id was seen before."}},
    openapi_extra=REQUEST_BODY,
)
async def submit(
    request: Request,
    services: Services,
    caller: Caller,
    closing: Closing,
    wait: WaitFor | None = None,
    timeout_s: TimeoutS = 25.0,
) -> Response:
    """Ask for something to be run. With ``wait`` the answer has the replicas, after the wait or its time limit."""
    wanted = parse_request_json(await request.body())
    workload, created = await services.workloads.submit(caller, wanted)
    status = 201 if created else 200
    if wait is None:
        return answer(await assemble.workload_view(services, viewer_of(request, caller), workload), status)
    waiting = services.workloads.wait(
        caller, workload.id, until=wait, timeout_s=timeout_s, bound=workload.program.client_bound
    )
    workload = await unless_over(waiting, request, closing, otherwise=workload)
    return answer(await assemble.workload_detail(services, viewer_of(request, caller), workload), status)


@router.get("", response_model=WorkloadList)
async def list_workloads(  # noqa: PLR0913 - each is an input of the route
    *,
    request: Request,
    services: Services,
    caller: Caller,
    state: Annotated[list[WorkloadState] | None, Query(description="Only those in one of these states.")] = None,
    project: Word | None = None,
    user: Word | None = None,
    name: Word | None = None,
    label: Annotated[
        list[Word] | None, Query(max_length=64, description="Only those with this label: key=value.")
    ] = None,
    all: Annotated[bool, Query(description="Those that have ended, too.")] = False,  # noqa: A002 - a query's name
    limit: Limit = 100,
    cursor: Cursor | None = None,
) -> Response:
    """Workloads, newest first: without ``state`` and ``all`` those that have not ended."""
    wanted = WorkloadFilter(
        states=tuple(state or (() if all else _LIVE)),
        project=project,
        user=user,
        name=name,
        labels=tuple(_label(text) for text in label or ()),
        before=decode_page(cursor) if cursor else None,
        limit=limit,
    )
    found = await services.workloads.list(caller, wanted)
    viewer = viewer_of(request, caller)
    last = found[-1] if len(found) == limit else None
    return answer(
        WorkloadList(
            workloads=[await assemble.workload_view(services, viewer, workload) for workload in found],
            next_cursor=encode_page(last.created_at, last.id) if last else None,
        )
    )


def _label(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise GpupoolError(ErrorCode.INVALID_REQUEST, f"label: '{text[:80]}' is not key=value.", "Write team=vision.")
    return key, value


@router.get("/{ref}", response_model=WorkloadDetail)
async def get_workload(
    request: Request,
    services: Services,
    caller: Caller,
    ref: Ref,
    replicas_from: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
) -> Response:
    """Everything about a workload, its replicas (at most 1000, from ``replicas_from``) and leases."""
    workload = await services.workloads.get(caller, ref)
    return answer(await assemble.workload_detail(services, viewer_of(request, caller), workload, replicas_from))


@router.get("/{ref}/wait", response_model=WorkloadDetail)
async def wait_for(  # noqa: PLR0913 - each is an input of the route
    *,
    request: Request,
    services: Services,
    caller: Caller,
    closing: Closing,
    ref: Ref,
    until: Annotated[WaitFor, Query(alias="for")] = WaitFor.FINISHED,
    timeout_s: TimeoutS = 25.0,
    index: Index = 0,
    bound: Annotated[bool, Query(description="The caller is the client that the workload is bound to.")] = False,
) -> Response:
    """Answer when a workload has started or ended, or at the time limit with how it stands."""
    present = await services.workloads.get(caller, ref)
    waiting = services.workloads.wait(caller, ref, until=until, timeout_s=timeout_s, index=index, bound=bound)
    workload = await unless_over(waiting, request, closing, otherwise=present)
    replicas_from = index if index >= 1000 else 0
    return answer(await assemble.workload_detail(services, viewer_of(request, caller), workload, replicas_from))


@router.get("/{ref}/why", response_model=WhyView)
async def why(services: Services, caller: Caller, ref: Ref, index: Index | None = None) -> Response:
    """Why a workload, or one of its replicas, stands where it stands, with numbers, and when it should start."""
    workload = await services.workloads.get(caller, ref)
    return answer(foretelling.why_view(workload.state, await services.workloads.why(caller, ref, index)))


@router.post("/{ref}/stop", response_model=WorkloadView)
async def stop(
    request: Request, services: Services, caller: Caller, ref: Ref, body: StopBody | None = None
) -> Response:
    """End a workload, or one replica: TERM, the grace, KILL; at once with ``force``."""
    how = body or StopBody()
    workload = await services.workloads.stop(caller, ref, grace_s=how.grace_s, force=how.force, index=how.index)
    return await _changed(request, services, caller, workload)


@router.post("/{ref}/suspend", response_model=WorkloadView)
async def suspend(request: Request, services: Services, caller: Caller, ref: Ref) -> Response:
    """Stop what runs and keep it out of the queue until it is resumed."""
    return await _changed(request, services, caller, await services.workloads.suspend(caller, ref))


@router.post("/{ref}/resume", response_model=WorkloadView)
async def resume(request: Request, services: Services, caller: Caller, ref: Ref) -> Response:
    """Put a suspended workload back into the queue."""
    return await _changed(request, services, caller, await services.workloads.resume(caller, ref))


@router.post("/{ref}/signal", response_model=WorkloadView)
async def send_signal(request: Request, services: Services, caller: Caller, ref: Ref, body: SignalBody) -> Response:
    """Send a signal to the foreground processes of a replica."""
    signum = signal_number(body.signal)
    return await _changed(
        request, services, caller, await services.workloads.signal(caller, ref, signum, index=body.index)
    )


def signal_number(wanted: int | str) -> int:
    """The number of ``2``, ``INT`` or ``SIGINT``; raises ``GpupoolError(INVALID_REQUEST)``."""
    try:
        return Signals(wanted).value if isinstance(wanted, int) else Signals["SIG" + wanted.removeprefix("SIG")].value
    except (ValueError, KeyError) as error:
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST, f"signal: '{wanted}' is not a signal.", "For example INT, TERM, USR1."
        ) from error


@router.post("/{ref}/extend", response_model=WorkloadView)
async def extend(request: Request, services: Services, caller: Caller, ref: Ref, body: ExtendBody) -> Response:
    """Let a lease live longer."""
    return await _changed(request, services, caller, await services.workloads.extend(caller, ref, body.seconds))


@router.post("/{ref}/priority", response_model=WorkloadView)
async def set_priority(request: Request, services: Services, caller: Caller, ref: Ref, body: PriorityBody) -> Response:
    """Let a workload that waits come earlier or later in its project."""
    return await _changed(request, services, caller, await services.workloads.set_priority(caller, ref, body.priority))


@router.delete("/{ref}", status_code=204)
async def delete(services: Services, caller: Caller, ref: Ref) -> Response:
    """Take a workload that has ended off the lists."""
    await services.workloads.delete(caller, ref)
    return Response(status_code=204)


async def _changed(request: Request, services: PoolServices, caller: Actor, workload: Workload) -> Response:
    return answer(await assemble.workload_view(services, viewer_of(request, caller), workload))
