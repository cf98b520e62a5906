"""Output of a replica: in pages, or live."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from starlette.requests import Request
from starlette.responses import Response

from gpupool.api import streams
from gpupool.api.deps import Caller, Closing, Cursor, Index, Moment, Ref, Services, answer, end_when_refused
from gpupool.api.schemas.work.workloads import LogPage
from gpupool.api.views.mapping import chunk_view
from gpupool.domain.people.access import Actor
from gpupool.services.pool import PoolServices
from gpupool.services.workloads.output import OutputPage

router = APIRouter(prefix="/v1/workloads", tags=["logs"])

Attempt = Annotated[int, Query(ge=1, le=10_000_000, description="The attempt; default: the current one.")]
Tail = Annotated[int, Query(ge=0, le=1_000_000, description="Start about this number of lines before the end.")]
PageKib = Annotated[int, Query(ge=1, le=1024, description="Approximate KiB of output in one page.")]
WHOLE_KIB = 1024  # read at a time for an answer with a complete log
STREAMED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": (
            "A page of output; with follow a stream of server-sent events: chunk (a LogChunkView), end. With"
            " Accept: application/octet-stream, all output so far as records (docs/api.md)."
        ),
        "content": {
            "text/event-stream": {"schema": {"type": "string"}},
            streams.OCTETS: {"schema": {"type": "string", "format": "binary"}},
        },
    }
}


@dataclass(frozen=True, slots=True)
class LogReader:
    """Reads one attempt's output for one caller."""

    services: PoolServices
    actor: Actor
    ref: str
    index: int
    attempt: int | None
    limit_kib: int
    since: float

    async def page(self, cursor: str) -> LogPage:
        """Return the output from a cursor (empty: the start); empty if there is no more now."""
        read = await self.records(cursor)
        views = [chunk_view(chunk) for batch in read.batches for chunk in batch.chunks()]
        return LogPage(chunks=views, cursor=read.cursor, end=read.end, dropped=read.dropped)

    async def records(self, cursor: str) -> OutputPage:
        """Return the output from a cursor that is not older than ``since``."""
        while True:
            found = await self.services.workloads.output.read(
                self.actor, self.ref, index=self.index, attempt=self.attempt, cursor=cursor, limit=self.limit_kib * 1024
            )
            if not self.since or not found.batches:
                return found
            recent = [part for batch in found.batches for part in batch.since(self.since)]
            if recent:
                dropped = found.dropped and next(found.batches[0].chunks()).at >= self.since
                return found._replace(batches=recent, dropped=dropped)
            cursor = found.cursor

    async def changed(self, timeout_s: float) -> None:
        """Sleep until there may be more output, at most ``timeout_s``."""
        await self.services.workloads.output.wait_for_more(timeout_s)

    async def start(self, cursor: str | None, tail: int | None) -> str:
        """Return the cursor to start at."""
        if cursor or tail is None:
            return cursor or ""
        return await self.services.workloads.output.tail_cursor(
            self.actor, self.ref, index=self.index, attempt=self.attempt, lines=tail
        )


@router.get("/{ref}/logs", response_model=LogPage, responses=STREAMED)
async def read_logs(  # noqa: PLR0913 - each is a query parameter of the route
    *,
    request: Request,
    services: Services,
    caller: Caller,
    closing: Closing,
    ref: Ref,
    index: Index = 0,
    attempt: Attempt | None = None,
    tail: Tail | None = None,
    since: Moment = 0.0,
    cursor: Cursor | None = None,
    follow: Annotated[bool, Query(description="Stream new output until the attempt ends.")] = False,
    limit: PageKib = 256,
    last_event_id: Annotated[str | None, Header(max_length=200, pattern=r"^[\x20-\x7e]*$")] = None,
) -> Response:
    """Return a replica's output from ``cursor`` or its last ``tail`` lines: a page, live (``follow``) or all."""
    reader = LogReader(services, caller, ref, index, attempt, limit, since)
    begin = await reader.start(last_event_id or cursor, tail)
    if streams.OCTETS in request.headers.get("accept", "") and not follow:
        whole = LogReader(services, caller, ref, index, attempt, WHOLE_KIB, since)
        return await streams.octets(streams.whole_log(begin, whole.records, closing))
    first = await reader.page(begin)
    if follow:
        followed = streams.follow_log(first, reader.page, reader.changed, closing)
        return streams.sse(end_when_refused(request, followed))
    return answer(first)
