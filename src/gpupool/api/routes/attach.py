"""A program's terminal or pipes over a WebSocket: bytes between the caller and the shepherd, unchanged."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from fastapi import APIRouter
from starlette.websockets import WebSocket, WebSocketDisconnect

from gpupool.api.deps import Index, Ref, Services, authenticate, get_closing
from gpupool.api.errors import error_response, unexpected
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.services.ports import AttachStream

router = APIRouter(prefix="/v1/workloads", tags=["attach"])

NORMAL = 1000
GOING_AWAY = 1001
UNREADABLE = 1003  # text where bytes are expected
CLOSE_BASE = 4000  # a refusal closes with 4000 + the HTTP status of its error
_REASON_BYTES = 120  # a close reason may have 123
_CHUNK = 256 * 1024


@router.websocket("/{ref}/attach")
async def attach(websocket: WebSocket, services: Services, ref: Ref, index: Index = 0) -> None:
    """Binary messages carry the bytes of ``domain.frames``; where one message ends means nothing.

    Refusals close with 4000 + HTTP status and the reason ``CODE: sentence``; a page of another origin gets a 403.
    """
    if not _same_origin(websocket):
        refusal = GpupoolError(ErrorCode.FORBIDDEN, "Pages of another origin may not attach.", "Open the pool's own.")
        await websocket.send_denial_response(error_response(refusal))
        return
    try:
        actor = await authenticate(websocket)
        stream = await services.workloads.attach(actor, ref, index)
    except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets a code and the log the rest
        await websocket.accept()
        await _refuse(websocket, error)
        return
    await websocket.accept()
    await _relay(websocket, stream, await get_closing(websocket))


def _same_origin(websocket: WebSocket) -> bool:
    """Browsers say where a page came from; other programs say nothing and are judged by their credentials."""
    origin = websocket.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == websocket.headers.get("host", "")


async def _refuse(websocket: WebSocket, error: Exception) -> None:
    known = error if isinstance(error, GpupoolError) else unexpected(error, f"WS {websocket.url.path}")
    await websocket.close(CLOSE_BASE + known.http_status, _reason(known))


def _reason(error: GpupoolError) -> str:
    text = f"{error.code}: {error.message}"
    return text.encode(errors="replace")[:_REASON_BYTES].decode(errors="ignore")


async def _relay(websocket: WebSocket, stream: AttachStream, closing: asyncio.Event) -> None:
    """Both directions until one ends; the program's side ending is the normal end."""
    down = asyncio.create_task(_to_client(websocket, stream))
    up = asyncio.create_task(_to_program(websocket, stream))
    ending = asyncio.create_task(closing.wait())
    try:
        await asyncio.wait({down, up, ending}, return_when=asyncio.FIRST_COMPLETED)
        client_left = up.done() and up.exception() is None
    finally:
        for task in (down, up, ending):
            task.cancel()
        ends = await asyncio.gather(down, up, return_exceptions=True)
        await stream.close()
    if not client_left:
        failure = next((end for end in ends if isinstance(end, Exception)), None)
        await _hang_up(websocket, failure, GOING_AWAY if closing.is_set() else NORMAL)


async def _hang_up(websocket: WebSocket, failure: Exception | None, code: int) -> None:
    try:
        if isinstance(failure, _NotBytes):
            await websocket.close(UNREADABLE, "INVALID_REQUEST: messages must be binary.")
        elif failure is not None and not isinstance(failure, OSError):
            await _refuse(websocket, failure)
        else:
            await websocket.close(code)
    except (RuntimeError, OSError, WebSocketDisconnect):
        return  # the client went away meanwhile


class _NotBytes(Exception):  # noqa: N818 - it never leaves this module
    pass


async def _to_client(websocket: WebSocket, stream: AttachStream) -> None:
    while data := await stream.read(_CHUNK):
        await websocket.send_bytes(data)


async def _to_program(websocket: WebSocket, stream: AttachStream) -> None:
    while True:
        message = await websocket.receive()
        if message["type"] == "websocket.disconnect":
            return
        data = message.get("bytes")
        if data is None:
            raise _NotBytes
        await stream.write(data)
