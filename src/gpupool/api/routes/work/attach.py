"""A program's terminal or pipes over a WebSocket: bytes between the caller and the shepherd, unchanged."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from fastapi import APIRouter
from starlette.websockets import WebSocket, WebSocketDisconnect

from gpupool.api.deps import Index, Ref, Services, authenticate, get_closing
from gpupool.api.errors import error_response, unexpected
from gpupool.api.server.peer import PEER_UID
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.protocol import frames
from gpupool.services.ports.fabric import AttachStream

router = APIRouter(prefix="/v1/workloads", tags=["attach"])

NORMAL = 1000
GOING_AWAY = 1001
ENDED = 1005  # the connection was ended at the other end, without a word or without a reason
LEFT = frozenset({NORMAL, GOING_AWAY})  # closed by the client itself, with one of these
ENDED_RETURNS_S = 10.0
"""For whom the connection was ended. A kernel does so for a program that was killed, but a proxy that restarts does it
as well, to both sides: a client that lives hears of it as soon as we do, and is back long before this is over."""
UNREADABLE = 1003  # text where bytes are expected
CLOSE_BASE = 4000  # a refusal closes with 4000 + the HTTP status of its error
_REASON_BYTES = 120  # a close reason may have 123
_CHUNK = 256 * 1024
Farewell = Callable[[float], bytes]


@router.websocket("/{ref}/attach")
async def attach(websocket: WebSocket, services: Services, ref: Ref, index: Index = 0) -> None:
    """Binary messages carry the bytes of ``domain.frames``; where one message ends means nothing.

    Refusals close with 4000 + HTTP status and the reason ``CODE: sentence``; a page of another origin gets a 403.
    """

    async def connect() -> AttachStream:
        check_origin(websocket, "attach")
        return await services.workloads.output.attach(await authenticate(websocket), ref, index)

    if (stream := await accept(websocket, connect)) is not None:
        await relay(websocket, stream, await get_closing(websocket), farewell=frames.gone_frame)


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
    """Browsers say where a page came from; other programs say nothing and are judged by their credentials."""
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


async def relay(
    websocket: WebSocket,
    stream: AttachStream,
    closing: asyncio.Event,
    *,
    farewell: Farewell | None = None,
    half_close: bool = False,
) -> None:
    """Both directions until one ends; the program's side ending is the normal end.

    ``half_close``: an empty message reports that the program's side has ended, and the client's continues.

    ``farewell`` makes the last word to the program's side for a client that will not be back, or not later than in so
    many seconds. Of one that just falls silent nothing is said: the network may take its time.
    """
    down = asyncio.create_task(_to_client(websocket, stream, half_close=half_close))
    up = asyncio.create_task(_to_program(websocket, stream))
    ending = asyncio.create_task(closing.wait())
    try:
        await asyncio.wait({down, up, ending}, return_when=asyncio.FIRST_COMPLETED)
        client_left = up.done() and up.exception() is None
        returns_s = _returns_s(websocket, up.result()) if client_left else None
        if farewell is not None and returns_s is not None:
            with contextlib.suppress(OSError):
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
    """Within how many seconds a client whose connection ended so will be back, if at all; None: nobody knows."""
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
        return  # the client went away meanwhile


class _NotBytes(Exception):  # noqa: N818 - it never leaves this module
    pass


async def _to_client(websocket: WebSocket, stream: AttachStream, *, half_close: bool) -> None:
    while data := await stream.read(_CHUNK):
        await websocket.send_bytes(data)
    if half_close:
        await websocket.send_bytes(b"")
        await stream.read(_CHUNK)  # returns when the connection is closed


async def _to_program(websocket: WebSocket, stream: AttachStream) -> int:
    """Until the client hangs up; the code with which it did."""
    while True:
        message = await websocket.receive()
        if message["type"] == "websocket.disconnect":
            return int(message.get("code") or ENDED)
        data = message.get("bytes")
        if data is None:
            raise _NotBytes
        await stream.write(data)
