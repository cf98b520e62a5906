"""The output of programs for browsers: live, and as a file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from gpupool.api import streams
from gpupool.api.deps import Closing, Cursor, Index, Ref
from gpupool.api.routes.logs import Attempt, Reader, Tail
from gpupool.domain.access import Actor
from gpupool.services.pool import PoolServices
from gpupool.web.deps import Services, Visitor, while_allowed

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
    """What a replica writes, as server-sent events, until its attempt ends; a browser resumes where it was."""
    reader = Reader(services, visitor, ref, index, attempt, PAGE_KIB, 0.0)
    first = await reader.page(await reader.start(last_event_id or cursor, tail))
    return streams.sse(_while_signed_in(request, streams.follow_log(first, reader.page, reader.changed, closing)))


async def _while_signed_in(request: Request, stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """A stream that ends with the visitor's session; what may be read is checked with every page of it."""
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
    """All that is kept of what a replica has written so far, as a file."""
    workload = await services.workloads.get(visitor, ref)
    pages = _pages(services, visitor, workload.id, index, attempt)
    first = await anext(pages, b"")  # a refusal comes before the answer begins
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
        stretches, cursor, _ = await services.workloads.read_log(
            visitor, ref, index=index, attempt=attempt, cursor=cursor, limit=PAGE_KIB * 1024
        )
        if not stretches:
            return
        yield b"".join([stretch.output() for stretch in stretches])


async def _all(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for page in rest:
        yield page
