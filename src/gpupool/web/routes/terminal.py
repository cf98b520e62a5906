"""A program's terminal in a browser: the frames of ``domain.frames`` over a WebSocket, as the API's attach has them."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from fastapi import APIRouter
from starlette.websockets import WebSocket

from gpupool.api.deps import Index, Ref, Services, get_closing
from gpupool.api.errors import error_response
from gpupool.api.routes.attach import refuse, relay
from gpupool.domain.access import Actor
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.workload import ReplicaState
from gpupool.services.permissions import forbidden
from gpupool.services.pool import PoolServices
from gpupool.services.ports import AttachStream
from gpupool.web.deps import visitor, while_allowed

router = APIRouter(prefix="/ui/workloads/{ref}")


@router.websocket("/terminal")
async def terminal(websocket: WebSocket, services: Services, ref: Ref, index: Index = 0) -> None:
    """Binary messages carry frames. Only a page of this very address may open it: others get a 403.

    Later refusals close with 4000 + HTTP status and the reason ``CODE: sentence``, as the API's attach does.
    """
    if not from_our_page(websocket):
        refusal = GpupoolError(ErrorCode.FORBIDDEN, "Only pages of this dashboard open terminals.", "Open it there.")
        await websocket.send_denial_response(error_response(refusal))
        return
    try:
        actor = await visitor(websocket)
        await _check(services, actor, ref, index)
        stream = await services.workloads.attach(actor, ref, index)
    except Exception as error:  # noqa: BLE001 - whatever it is, the page gets a code and the log the rest
        await websocket.accept()
        await refuse(websocket, error)
        return
    await websocket.accept()
    await _relay_while_allowed(websocket, services, stream, (ref, index))


async def _relay_while_allowed(
    websocket: WebSocket, services: PoolServices, stream: AttachStream, which: tuple[str, int]
) -> None:
    """Until one side ends it, or the visitor is signed out or may not attach any more."""

    async def may_attach(actor: Actor) -> None:
        if not services.workloads.can_manage(actor, await services.workloads.get(actor, which[0])):
            raise forbidden("You may not attach to it any more.")

    over = asyncio.create_task(while_allowed(websocket, may_attach))
    relaying = asyncio.create_task(relay(websocket, stream, await get_closing(websocket)))
    try:
        await asyncio.wait({over, relaying}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        ended = over.result() if over.done() and not relaying.done() else None
        for task in (over, relaying):
            task.cancel()
        await asyncio.gather(over, relaying, return_exceptions=True)
    if ended is not None:
        await refuse(websocket, ended)


def from_our_page(websocket: WebSocket) -> bool:
    """Browsers say where a page came from, and cannot be made to say otherwise; whoever says nothing is none."""
    origin, host = urlsplit(websocket.headers.get("origin", "")), websocket.headers.get("host", "")
    return origin.scheme in {"http", "https"} and bool(host) and origin.netloc == host


async def _check(services: PoolServices, actor: Actor, ref: str, index: int) -> None:
    """Attaching to a program that waits for its own client would start it, and end it when the page is closed."""
    workload = await services.workloads.get(actor, ref)
    replicas = await services.workloads.replicas_of(actor, workload)
    starting = any(row.index == index and row.state is ReplicaState.STARTING for row in replicas)
    if workload.program.client_bound and starting:
        raise GpupoolError(
            ErrorCode.WRONG_STATE, f"{workload.name} waits for the terminal that started it.", "Look again in a moment."
        )
