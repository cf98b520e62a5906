"""Workloads: list, show, wait, explain and control."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from signal import Signals
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from gpupool.api.deps import (
    Caller,
    Closing,
    Cursor,
    Index,
    Limit,
    Member,
    Ref,
    Services,
    TimeoutS,
    Word,
    answer,
    decode_offset,
    decode_page,
    encode_offset,
    encode_page,
)
from gpupool.api.schemas.bodies import ExtendBody, PriorityBody, RestartBody, SignalBody, StopBody
from gpupool.api.schemas.work.workloads import (
    WhyView,
    WorkloadDetail,
    WorkloadList,
    WorkloadSummaries,
    WorkloadView,
)
from gpupool.api.server.peer import peer_uid
from gpupool.api.views import plan_view, workload_view
from gpupool.api.views.workload_view import Viewer
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.people.access import Actor
from gpupool.domain.work.search import NEWEST_FIRST, parse_search, parse_sort
from gpupool.domain.work.workload import Workload, WorkloadKind, WorkloadState
from gpupool.services.pool import PoolServices
from gpupool.services.ports.store import WorkloadFilter
from gpupool.services.workloads.service import WaitFor

router = APIRouter(prefix="/v1/workloads", tags=["workloads"])

_LIVE = tuple(state for state in WorkloadState if not state.final)
SEARCH_HELP = (
    "Words that must all be part of a name, id, state, kind, project, user or label; 'user:ann' looks in one field, "
    "'command:train' in the commands that you may read."
)


def viewer_of(request: Request, caller: Actor) -> Viewer:
    """Return the caller, and whether the request came by the unix socket."""
    return Viewer(caller, local=peer_uid(request) is not None)


@router.get("", response_model=WorkloadList | WorkloadSummaries)
async def list_workloads(  # noqa: PLR0913 - each is a query parameter of the route
    *,
    request: Request,
    services: Services,
    caller: Caller,
    state: Annotated[list[WorkloadState] | None, Query(description="Only workloads in one of these states.")] = None,
    project: Word | None = None,
    user: Word | None = None,
    mine: Annotated[bool, Query(description="Only workloads of the user.")] = False,
    name: Word | None = None,
    kind: Annotated[list[WorkloadKind] | None, Query(description="Only workloads of one of these kinds.")] = None,
    label: Annotated[
        list[Word] | None, Query(max_length=64, description="Only workloads with this label: key=value.")
    ] = None,
    all: Annotated[bool, Query(description="Include ended workloads.")] = False,  # noqa: A002 - as in the query
    search: Annotated[Word, Query(description=SEARCH_HELP)] = "",
    sort: Annotated[
        Word, Query(description="created, name, state, project, user, gpus, ran, ended; -KEY: reversed.")
    ] = ("-created"),
    count: Annotated[bool, Query(description="Count the workloads on all pages: ``total``.")] = False,
    summary: Annotated[
        bool, Query(description="Return only the fields of a list, a third of the data: ``WorkloadSummary``.")
    ] = False,
    reasons: Annotated[
        bool, Query(description="Add why queued workloads wait, as far as quickly found: ``waiting``.")
    ] = False,
    limit: Limit = 100,
    cursor: Cursor | None = None,
) -> Response:
    """List workloads, by default newest first; without ``state`` and ``all`` only those that have not ended."""
    wanted = WorkloadFilter(
        states=tuple(state or (() if all else _LIVE)),
        project=project,
        user=caller.user if mine else user,
        name=name,
        kinds=tuple(kind or ()),
        labels=tuple(_label(text) for text in label or ()),
        search=parse_search(search),
        sort=parse_sort(sort),
        limit=limit,
    )
    page = _paged(wanted, cursor)
    found = await services.workloads.list(caller, page)
    viewer = viewer_of(request, caller)
    next_cursor = _next_cursor(page, found) if len(found) == limit else None
    total = await services.workloads.count(caller, wanted) if count else None
    queued = [workload.id for workload in found if workload.state is WorkloadState.QUEUED] if reasons else []
    why = await services.workloads.reason_cache.of(caller, queued, estimates=False)
    if summary:
        summaries = [await workload_view.workload_summary(services, viewer, each, why.get(each.id)) for each in found]
        return answer(WorkloadSummaries(workloads=summaries, next_cursor=next_cursor, total=total))
    views = [await workload_view.workload_view(services, viewer, each, why.get(each.id)) for each in found]
    return answer(WorkloadList(workloads=views, next_cursor=next_cursor, total=total))


def _paged(wanted: WorkloadFilter, cursor: str | None) -> WorkloadFilter:
    """Continue a listing: after a row in the default order, after a number of rows in other orders."""
    if not cursor:
        return wanted
    if wanted.sort == NEWEST_FIRST:
        return replace(wanted, before=decode_page(cursor))
    return replace(wanted, offset=decode_offset(cursor))


def _next_cursor(page: WorkloadFilter, found: Sequence[Workload]) -> str:
    if page.sort == NEWEST_FIRST:
        return encode_page(found[-1].created_at, found[-1].id)
    return encode_offset(page.offset + len(found))


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
    """Return all data of a workload, its replicas (at most 1000, from ``replicas_from``) and leases."""
    workload = await services.workloads.get(caller, ref)
    return answer(await workload_view.workload_detail(services, viewer_of(request, caller), workload, replicas_from))


@router.get("/{ref}/wait", response_model=WorkloadDetail)
async def wait_for_workload(  # noqa: PLR0913 - each is a query parameter of the route
    *,
    request: Request,
    services: Services,
    caller: Caller,
    closing: Closing,
    ref: Ref,
    until: Annotated[WaitFor, Query(alias="for")] = WaitFor.FINISHED,
    timeout_s: TimeoutS = 25.0,
    index: Index = 0,
    bound: Annotated[bool, Query(description="The workload is bound to this client.")] = False,
) -> Response:
    """Return a workload when it has started or ended, or in its present state after the time limit."""
    present = await services.workloads.get(caller, ref)
    waiting = services.workloads.wait(caller, ref, until=until, timeout_s=timeout_s, index=index, bound=bound)
    workload = await unless_over(waiting, request, closing, otherwise=present)
    replicas_from = index if index >= 1000 else 0
    return answer(await workload_view.workload_detail(services, viewer_of(request, caller), workload, replicas_from))


@router.get("/{ref}/why", response_model=WhyView)
async def explain_workload(services: Services, caller: Caller, ref: Ref, index: Index | None = None) -> Response:
    """Explain why a workload or one of its replicas is in its state, with numbers and an estimate of its start."""
    workload = await services.workloads.get(caller, ref)
    return answer(plan_view.why_view(workload.state, await services.workloads.why(caller, ref, index)))


@router.post("/{ref}/stop", response_model=WorkloadView)
async def stop_workload(
    request: Request, services: Services, caller: Member, ref: Ref, body: StopBody | None = None
) -> Response:
    """Stop a workload, or one replica: TERM, the grace period, KILL; with ``force`` KILL at once."""
    how = body or StopBody()
    workload = await services.workloads.stop(caller, ref, grace_s=how.grace_s, force=how.force, index=how.index)
    return await _changed(request, services, caller, workload)


@router.post("/{ref}/suspend", response_model=WorkloadView)
async def suspend_workload(request: Request, services: Services, caller: Member, ref: Ref) -> Response:
    """Stop the running replicas and keep the workload out of the queue until it is resumed."""
    return await _changed(request, services, caller, await services.workloads.suspend(caller, ref))


@router.post("/{ref}/restart", response_model=WorkloadView)
async def restart_workload(
    request: Request, services: Services, caller: Member, ref: Ref, body: RestartBody | None = None
) -> Response:
    """Stop programs and start them again on the same GPUs; the replica does not return to the queue."""
    how = body or RestartBody()
    workload = await services.workloads.restart(
        caller, ref, index=how.index, attempt=how.attempt, grace_s=how.grace_s, force=how.force
    )
    return await _changed(request, services, caller, workload)


@router.post("/{ref}/resume", response_model=WorkloadView)
async def resume_workload(request: Request, services: Services, caller: Member, ref: Ref) -> Response:
    """Queue a suspended workload again."""
    return await _changed(request, services, caller, await services.workloads.resume(caller, ref))


@router.post("/{ref}/signal", response_model=WorkloadView)
async def signal_workload(request: Request, services: Services, caller: Member, ref: Ref, body: SignalBody) -> Response:
    """Send a signal to the foreground processes of a replica."""
    signum = signal_number(body.signal)
    return await _changed(
        request, services, caller, await services.workloads.signal(caller, ref, signum, index=body.index)
    )


def signal_number(wanted: int | str) -> int:
    """Return the number of ``2``, ``INT`` or ``SIGINT``; raise ``GpupoolError(INVALID_REQUEST)``."""
    try:
        return Signals(wanted).value if isinstance(wanted, int) else Signals["SIG" + wanted.removeprefix("SIG")].value
    except (ValueError, KeyError) as error:
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST, f"signal: '{wanted}' is not a signal.", "For example INT, TERM, USR1."
        ) from error


@router.post("/{ref}/extend", response_model=WorkloadView)
async def extend_workload(request: Request, services: Services, caller: Member, ref: Ref, body: ExtendBody) -> Response:
    """Extend the lifetime of a lease."""
    return await _changed(request, services, caller, await services.workloads.extend(caller, ref, body.seconds))


@router.post("/{ref}/priority", response_model=WorkloadView)
async def set_workload_priority(
    request: Request, services: Services, caller: Member, ref: Ref, body: PriorityBody
) -> Response:
    """Change the priority of a queued workload in its project."""
    return await _changed(request, services, caller, await services.workloads.set_priority(caller, ref, body.priority))


@router.delete("/{ref}", status_code=204)
async def delete_workload(services: Services, caller: Member, ref: Ref) -> Response:
    """Delete a workload that has ended."""
    await services.workloads.delete(caller, ref)
    return Response(status_code=204)


async def _changed(request: Request, services: PoolServices, caller: Actor, workload: Workload) -> Response:
    return answer(await workload_view.workload_view(services, viewer_of(request, caller), workload))


T = TypeVar("T")


async def unless_over(waiting: Coroutine[Any, Any, T], request: Request, closing: asyncio.Event, *, otherwise: T) -> T:
    """Return the result of ``waiting``, or ``otherwise`` when the client disconnects or the server stops.

    When the server stops, the client gets ``otherwise`` as the present state and can ask the next control plane.
    ``waiting`` is cancelled, so that a disconnected client no longer counts as waiting. The request's body must have
    been read before.
    """
    work = asyncio.create_task(waiting)
    ends = [asyncio.create_task(closing.wait()), asyncio.create_task(_hang_up(request))]
    try:
        await asyncio.wait({work, *ends}, return_when=asyncio.FIRST_COMPLETED)
        return work.result() if work.done() else otherwise
    finally:
        for task in (work, *ends):
            task.cancel()
        await asyncio.gather(work, *ends, return_exceptions=True)


async def _hang_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
