"""Answers without a length: live logs and live events as server-sent events, with pings; whole logs as records."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from pydantic import BaseModel
from starlette.responses import StreamingResponse

from gpupool.api.schemas.work.workloads import EventView, LogPage
from gpupool.domain.errors import GpupoolError
from gpupool.domain.protocol.log_records import WHOLE
from gpupool.services.workloads.output import OutputPage

PING_S = 15.0
PING = b": ping\n\n"
_OPENING = b": ok\n\n"  # sends the headers at once, so that the client knows that it is connected
_LOOK_EVERY_S = 2.0  # for events whose writer sends no notification
_QUIET_S = 1.0  # longest sleep between two reads of a quiet log

OCTETS = "application/octet-stream"

ReadLog = Callable[[str], Awaitable[LogPage]]
ReadRecords = Callable[[str], Awaitable[OutputPage]]
ReadEvents = Callable[[int], Awaitable[list[EventView]]]


def sse(stream: AsyncIterator[bytes]) -> StreamingResponse:
    """Return a response that streams messages."""
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(stream, media_type="text/event-stream", headers=headers)


def message(event: str, model: BaseModel | None = None, message_id: str | int = "") -> bytes:
    """Format one message; a client sends ``message_id`` back to resume."""
    head = f"id: {message_id}\n" if message_id != "" else ""
    data = model.model_dump_json() if model is not None else "{}"
    return f"{head}event: {event}\ndata: {data}\n\n".encode()


@dataclass(slots=True)
class _Silence:
    """Return the time since which nothing has been sent (the loop's seconds)."""

    since: float

    @classmethod
    def begin(cls) -> _Silence:
        return cls(asyncio.get_running_loop().time())

    def broken(self) -> None:
        self.since = asyncio.get_running_loop().time()

    @property
    def too_long(self) -> bool:
        return asyncio.get_running_loop().time() - self.since >= PING_S


async def follow_log(
    first: LogPage, read: ReadLog, changed: Callable[[float], Awaitable[None]], closing: asyncio.Event
) -> AsyncIterator[bytes]:
    """Yield pages of a log as messages, from ``first`` on, until the attempt has ended."""
    yield _OPENING
    page, silence = first, _Silence.begin()
    while True:
        for chunk in page.chunks:
            yield message("chunk", chunk, chunk.cursor)
        if page.chunks:
            silence.broken()
        if page.end:
            yield message("end", None, page.cursor)
            return
        if closing.is_set():
            return
        if not page.chunks:
            await changed(_QUIET_S)
        if silence.too_long:
            silence.broken()
            yield PING
        page = await read(page.cursor)


async def octets(stream: AsyncIterator[bytes]) -> StreamingResponse:
    """Return a response that streams bytes; errors are raised before it starts."""
    first = await anext(stream, b"")

    async def whole() -> AsyncIterator[bytes]:
        yield first
        async for piece in stream:
            yield piece

    return StreamingResponse(whole(), headers={"cache-control": "no-store"}, media_type=OCTETS)


async def whole_log(cursor: str, read: ReadRecords, closing: asyncio.Event) -> AsyncIterator[bytes]:
    """Yield all output so far from a cursor, as ``domain.log_records``; without the end record if reading fails.

    It ends at a page that is not full: a program may write all the time.
    """
    page = await read(cursor)
    while page.batches:
        for batch in page.batches:
            yield batch.encode()
        if not page.full:
            break
        if closing.is_set():
            return
        try:
            page = await read(page.cursor)
        except GpupoolError:
            return  # a client that resumes here gets the reason
    yield WHOLE


async def follow_events(
    after_id: int, read: ReadEvents, news: AsyncIterator[object], closing: asyncio.Event
) -> AsyncIterator[bytes]:
    """Yield events above ``after_id`` as messages, without end; ``news`` only signals that a new read is useful."""
    bell = asyncio.Event()
    ringer = asyncio.create_task(_ring(news, bell))
    closer = asyncio.create_task(_ring_at_end(closing, bell))
    try:
        await asyncio.sleep(0)  # lets the notifier subscribe before the first read
        yield _OPENING
        silence = _Silence.begin()
        while not closing.is_set():
            bell.clear()
            events = await read(after_id)
            for event in events:
                yield message("event", event, event.id)
                after_id = event.id
            if events:
                silence.broken()
            else:
                await _rings_within(bell, _LOOK_EVERY_S)
            if silence.too_long:
                silence.broken()
                yield PING
    finally:
        for task in (ringer, closer):
            task.cancel()
        await asyncio.gather(ringer, closer, return_exceptions=True)


async def _ring(news: AsyncIterator[object], bell: asyncio.Event) -> None:
    async for _ in news:
        bell.set()


async def _ring_at_end(closing: asyncio.Event, bell: asyncio.Event) -> None:
    await closing.wait()
    bell.set()


async def _rings_within(bell: asyncio.Event, timeout_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await bell.wait()
