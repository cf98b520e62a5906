"""A program's terminal or pipes over a WebSocket: bytes between the caller and the shepherd, unchanged."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from fastapi import APIRouter
from starlette.websockets import WebSocket, WebSocketDisconnect

from gpupool.api.deps import Index, Ref, Services, authenticate, get_closing, until_refused
from gpupool.api.errors import error_response, unexpected
from gpupool.api.server.peer import PEER_UID
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.protocol import frames
from gpupool.services.ports.fabric import AttachStream

router = APIRouter(prefix="/v1/workloads", tags=["attach"])

NORMAL = 1000
GOING_AWAY = 1001
ENDED = 1005  # the peer closed the connection without a close frame or without a status
LEFT = frozenset({NORMAL, GOING_AWAY})  # normal close codes of a client
ENDED_RETURNS_S = 10.0
"""Time to reconnect after the peer's side was closed. The kernel closes it when the client is killed, but a proxy that
restarts closes both sides, too. A live client then notices it at once and reconnects well within this time."""
UNREADABLE = 1003  # a text message where bytes are expected
CLOSE_BASE = 4000  # a refusal closes with 4000 + the HTTP status of its error
_REASON_BYTES = 120  # a close reason has at most 123 bytes
_CHUNK = 256 * 1024
Farewell = Callable[[float], bytes]


@router.websocket("/{ref}/attach")
async def attach(websocket: WebSocket, services: Services, ref: Ref, index: Index = 0) -> None:
    """Binary messages carry the bytes of ``domain.frames``; message boundaries have no meaning.

    Refusals close with 4000 + HTTP status and the reason ``CODE: sentence``; a page of another origin gets a 403.
    """

    async def connect() -> AttachStream:
        check_origin(websocket, "attach")
        return await services.workloads.output.attach(await authenticate(websocket), ref, index)

    if (stream := await accept(websocket, connect)) is not None:
        relaying = relay(websocket, stream, await get_closing(websocket), farewell=frames.gone_frame)
        await relay_while_allowed(websocket, relaying, until_refused(websocket))


class WrongOriginError(GpupoolError):
    """A page of another origin opened a WebSocket; it gets a 403 instead of a connection."""


async def accept(websocket: WebSocket, connect: Callable[[], Awaitable[AttachStream]]) -> AttachStream | None:
    """Accept a WebSocket and return the stream that ``connect`` opens; refuse it and return None if that fails."""
    try:
        stream = await connect()
    except WrongOriginError as refusal:
        await websocket.send_denial_response(error_response(refusal))
        return None
    except Exception as error:  # noqa: BLE001 - the caller gets a code, and the log has the details
        await websocket.accept()
        await refuse(websocket, error)
        return None
    await websocket.accept()
    return stream


def check_origin(websocket: WebSocket, action: str) -> None:
    """Raise ``WrongOriginError`` for a page of another origin."""
    if not same_origin(websocket):
        sentence = f"Pages of another origin may not {action}."
        raise WrongOriginError(ErrorCode.FORBIDDEN, sentence, "Use the pool's own page.")


def same_origin(websocket: WebSocket) -> bool:
    """Browsers report the origin of a page; other programs do not, and only their credentials are checked."""
    origin = websocket.headers.get("origin")
    return origin is None or is_own_origin(origin, websocket.url.scheme, websocket.headers.get("host", ""))


def is_own_origin(origin: str, scheme: str, host: str) -> bool:
    """Return whether an ``Origin`` is the address of the request itself, scheme included."""
    secure = scheme in {"https", "wss"}
    return origin.lower() == f"{'https' if secure else 'http'}://{host}".lower()


async def refuse(websocket: WebSocket, error: Exception) -> None:
    """Close an accepted connection with the code and the sentence of an error."""
    known = error if isinstance(error, GpupoolError) else unexpected(error, f"WS {websocket.url.path}")
    await websocket.close(CLOSE_BASE + known.http_status, _reason(known))


def _reason(error: GpupoolError) -> str:
    text = f"{error.code}: {error.message}"
    return text.encode(errors="replace")[:_REASON_BYTES].decode(errors="ignore")


async def relay_while_allowed(
    websocket: WebSocket, relaying: Coroutine[Any, Any, None], refusal: Coroutine[Any, Any, GpupoolError]
) -> None:
    """Relay until one side ends it, or until ``refusal`` returns why the caller is no longer allowed."""
    over, relayed = asyncio.create_task(refusal), asyncio.create_task(relaying)
    try:
        await asyncio.wait({over, relayed}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        ended = over.result() if over.done() and not relayed.done() else None
        for task in (over, relayed):
            task.cancel()
        await asyncio.gather(over, relayed, return_exceptions=True)
    if ended is not None:
        await refuse(websocket, ended)


async def relay(
    websocket: WebSocket,
    stream: AttachStream,
    closing: asyncio.Event,
    *,
    farewell: Farewell | None = None,
    half_close: bool = False,
) -> None:
    """Copy in both directions until one of them ends; the end of the program's side is the normal end.

    ``half_close``: an empty message reports that the program's side has ended, and the client's continues.

    If the client disconnects, ``farewell`` creates the last message for the program. Its argument is the number of
    seconds in which the client may reconnect, or None if it will not. A client that is only silent causes no message,
    because the network may be slow.
    """
    down = asyncio.create_task(_to_client(websocket, stream, half_close=half_close))
    up = asyncio.create_task(_to_program(websocket, stream))
    ending = asyncio.create_task(closing.wait())
    try:
        await asyncio.wait({down, up, ending}, return_when=asyncio.FIRST_COMPLETED)
        client_left = up.done() and up.exception() is None
        returns_s = _returns_s(websocket, up.result()) if client_left else None
        if farewell is not None and returns_s is not None:
            with contextlib.suppress(GpupoolError, OSError):
                await stream.write(farewell(returns_s))
    finally:
        for task in (down, up, ending):
            task.cancel()
        ends = await asyncio.gather(down, up, return_exceptions=True)
        await stream.close()
    if not client_left:
        failure = next((end for end in ends if isinstance(end, Exception)), None)
        await _hang_up(websocket, failure, GOING_AWAY if closing.is_set() else NORMAL)


def _returns_s(websocket: WebSocket, code: int) -> float | None:
    """Return in how many seconds a disconnected client may reconnect; None: unknown."""
    is_here = PEER_UID in (websocket.scope.get("extensions") or {})
    if is_here or code in LEFT:
        return 0.0
    return ENDED_RETURNS_S if code == ENDED else None


async def _hang_up(websocket: WebSocket, failure: Exception | None, code: int) -> None:
    try:
        if isinstance(failure, _NotBytes):
            await websocket.close(UNREADABLE, "INVALID_REQUEST: messages must be binary.")
        elif failure is not None and not isinstance(failure, OSError):
            await refuse(websocket, failure)
        else:
            await websocket.close(code)
    except (RuntimeError, OSError, WebSocketDisconnect):
        return  # the client disconnected meanwhile


class _NotBytes(Exception):  # noqa: N818 - it is caught in this module
    pass


async def _to_client(websocket: WebSocket, stream: AttachStream, *, half_close: bool) -> None:
    while data := await stream.read(_CHUNK):
        await websocket.send_bytes(data)
    if half_close:
        await websocket.send_bytes(b"")
        await stream.read(_CHUNK)  # returns when the connection is closed


async def _to_program(websocket: WebSocket, stream: AttachStream) -> int:
    """Wait until the client disconnects; return its close code.

    After a failed write, the client's data is discarded: the last output of a program that has ended is still on its
    way to the client, and a client that cannot send may not receive either.
    """
    is_writable = True
    while True:
        message = await websocket.receive()
        if message["type"] == "websocket.disconnect":
            return int(message.get("code") or ENDED)
        data = message.get("bytes")
        if data is None:
            raise _NotBytes
        if is_writable:
            try:
                await stream.write(data)
            except (GpupoolError, OSError):
                is_writable = False
