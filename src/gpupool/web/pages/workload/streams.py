"""A program's output and terminal in a browser: live, and the output as a file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import APIRouter, Header
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.websockets import WebSocket

from gpupool.api import streams
from gpupool.api.deps import Closing, Cursor, Index, Ref, get_closing
from gpupool.api.routes.work.attach import WrongOriginError, accept, relay, relay_while_allowed
from gpupool.api.routes.work.logs import Attempt, LogReader, Tail
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.people.access import Actor
from gpupool.domain.work.workload import ReplicaState
from gpupool.services.access.permissions import forbidden
from gpupool.services.pool import PoolServices
from gpupool.services.ports.fabric import AttachStream
from gpupool.web.deps import Services, Visitor, visitor, while_allowed

router = APIRouter(prefix="/ui/workloads/{ref}")

PAGE_KIB = 256


@router.get("/output")
async def follow(  # noqa: PLR0913 - each is an input of the route
    *,
    request: Request,
    services: Services,
    visitor: Visitor,
    closing: Closing,
    ref: Ref,
    index: Index = 0,
    attempt: Attempt | None = None,
    tail: Tail | None = None,
    cursor: Cursor | None = None,
    last_event_id: Annotated[str | None, Header(max_length=200, pattern=r"^[\x20-\x7e]*$")] = None,
) -> Response:
    """Stream the output of a replica as server-sent events until its attempt ends; a browser can resume."""
    reader = LogReader(services, visitor, ref, index, attempt, PAGE_KIB, 0.0)
    first = await reader.page(await reader.start(last_event_id or cursor, tail))
    return streams.sse(_while_signed_in(request, streams.follow_log(first, reader.page, reader.changed, closing)))


async def _while_signed_in(request: Request, stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield a stream until the visitor's session ends; permissions are checked with every page."""
    over = asyncio.create_task(while_allowed(request))
    try:
        async for message in stream:
            if over.done():
                return
            yield message
    finally:
        over.cancel()
        await asyncio.gather(over, return_exceptions=True)


@router.get("/output.txt")
async def download(
    services: Services, visitor: Visitor, ref: Ref, index: Index = 0, attempt: Attempt | None = None
) -> Response:
    """Return the stored output of a replica as a file."""
    workload = await services.workloads.get(visitor, ref)
    pages = _pages(services, visitor, workload.id, index, attempt)
    first = await anext(pages, b"")  # errors are raised before the response starts
    name = f"{workload.name}-{index}.txt"
    headers = {
        "content-disposition": f'attachment; filename="{name}"',
        "cache-control": "no-store",
        "x-content-type-options": "nosniff",
    }
    return StreamingResponse(_all(first, pages), headers=headers, media_type="text/plain; charset=utf-8")


async def _pages(
    services: PoolServices, visitor: Actor, ref: str, index: int, attempt: int | None
) -> AsyncIterator[bytes]:
    cursor = ""
    while True:
        page = await services.workloads.output.read(
            visitor, ref, index=index, attempt=attempt, cursor=cursor, limit=PAGE_KIB * 1024
        )
        if not page.batches:
            return
        cursor = page.cursor
        yield b"".join([batch.output() for batch in page.batches])


async def _all(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for page in rest:
        yield page


@router.websocket("/terminal")
async def terminal(websocket: WebSocket, services: Services, ref: Ref, index: Index = 0) -> None:
    """Connect a page to a program; binary messages carry frames. Pages of other addresses get a 403.

    Later refusals close with 4000 + HTTP status and the reason ``CODE: sentence``, as the API's attach does.
    """

    async def connect() -> AttachStream:
        if not from_our_page(websocket):
            sentence = "Only pages of this dashboard can open terminals."
            raise WrongOriginError(ErrorCode.FORBIDDEN, sentence, "Open it there.")
        actor = await visitor(websocket)
        await _check(services, actor, ref, index)
        return await services.workloads.output.attach(actor, ref, index)

    if (stream := await accept(websocket, connect)) is not None:
        await _relay_while_allowed(websocket, services, stream, (ref, index))


async def _relay_while_allowed(
    websocket: WebSocket, services: PoolServices, stream: AttachStream, which: tuple[str, int]
) -> None:
    """Relay until one side ends it, the visitor is signed out, or may no longer attach."""

    async def may_attach(actor: Actor) -> None:
        if not services.workloads.can_manage(actor, await services.workloads.get(actor, which[0])):
            raise forbidden("You may no longer attach to it.")

    relaying = relay(websocket, stream, await get_closing(websocket))
    await relay_while_allowed(websocket, relaying, while_allowed(websocket, may_attach))


def from_our_page(websocket: WebSocket) -> bool:
    """Return True if the Origin header names this server. Pages cannot forge it; a missing one is refused."""
    origin, host = urlsplit(websocket.headers.get("origin", "")), websocket.headers.get("host", "")
    return origin.scheme in {"http", "https"} and bool(host) and origin.netloc == host


async def _check(services: PoolServices, actor: Actor, ref: str, index: int) -> None:
    """Refuse a program that waits for its own client: to attach would start it and bind it to the page."""
    workload = await services.workloads.get(actor, ref)
    replicas = await services.workloads.replicas_of(workload)
    starting = any(row.index == index and row.state is ReplicaState.STARTING for row in replicas)
    if workload.program.client_bound and starting:
        raise GpupoolError(
            ErrorCode.WRONG_STATE, f"{workload.name} waits for the terminal that started it.", "Look again in a moment."
        )
