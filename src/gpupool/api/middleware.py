"""ASGI middleware for all requests: limits on bodies and rates, the methods HEAD and OPTIONS, unexpected errors."""

from __future__ import annotations

import asyncio

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from gpupool.api.deps import identify
from gpupool.api.errors import error_response, unexpected
from gpupool.api.server.acceptor import overloaded
from gpupool.api.server.connections import ClientKind, Slot
from gpupool.api.server.peer import RATE_COUNTED, is_stranger, peer_name, slot_of
from gpupool.api.server.proxies import network_of
from gpupool.api.server.request_rate import RETRY_AFTER_S, request_rates
from gpupool.domain.errors import ErrorCode, GpupoolError

MAX_BODY_BYTES = 8 * 1024 * 1024
UNCHECKED_BODY_BYTES = 64 * 1024  # larger bodies are read only after their credential was checked
STATIC_COST = 0.1  # cost of a file of the dashboard; a page has many, and they are cheap
REFUSAL_DELAY_S = 0.5  # slows down clients that retry at once
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")  # that routes declare
_EXEMPT = ("/v1/members/", "/v1/join")  # for requests of nodes of the cluster, which copy whole folders
_DRAIN_BYTES = 64 * 1024 * 1024  # bytes that are read and dropped, so that a client that still sends gets the answer


class BodyLimit:
    """Refuses request bodies above ``limit`` bytes, by their announced size or while they are read."""

    def __init__(self, app: ASGIApp, limit: int = MAX_BODY_BYTES) -> None:
        self.app = app
        self.limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request (ASGI entry point)."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if _announced(scope) > self.limit:
            await _drain(receive)
            await error_response(self._error(), headers=_CLOSE)(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        try:
            if _is_large(scope) and _can_be_identified(connection):
                await identify(connection)
        except GpupoolError as error:
            await _drain(receive)
            await error_response(error, headers=_CLOSE)(scope, receive, send)
            return
        await self.app(scope, self._counted(receive, slot_of(connection)), send)

    def _counted(self, receive: Receive, slot: Slot | None) -> Receive:
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            size = len(message.get("body", b""))
            seen += size
            if slot is not None and size and not slot.hold(size):
                raise overloaded("The pool is overloaded: too many large requests are being sent.")
            if seen > self.limit:
                if message.get("more_body", False):
                    await _drain(receive)
                raise HTTPException(413, self._error().message, _CLOSE)
            return message

        return counted

    def _error(self) -> GpupoolError:
        return GpupoolError(
            ErrorCode.TOO_LARGE,
            f"The request is larger than {self.limit // (1024 * 1024)} MiB.",
            "Put large data in files that the program reads.",
        )


_CLOSE = {"connection": "close"}


def _can_be_identified(connection: HTTPConnection) -> bool:
    """Return True if an unknown client sends a token; always False on a standby, which knows no tokens."""
    shown = is_stranger(connection) and "authorization" in connection.headers
    return shown and hasattr(connection.app.state, "services")


def _is_large(scope: Scope) -> bool:
    chunked = any(name == b"transfer-encoding" for name, _ in scope["headers"])
    return chunked or _announced(scope) > UNCHECKED_BODY_BYTES


def _announced(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and len(value) < 20:
            return int(value)
    return 0


async def _drain(receive: Receive) -> None:
    dropped = 0
    while dropped < _DRAIN_BYTES:
        message = await receive()
        dropped += len(message.get("body", b""))
        if message["type"] != "http.request" or not message.get("more_body", False):
            return


class InternalErrors:
    """Answers an unexpected error with INTERNAL and an id, and writes the traceback to the log under the same id.

    A client that disconnects during its request causes no error and gets no answer. ``app.state.error_page`` of a
    dashboard renders the errors of its pages.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request (ASGI entry point)."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self.app(scope, receive, watched)
        except ClientDisconnect:
            return
        except Exception as error:
            said = unexpected(error, f"{scope['method']} {scope['path']}")
            if started:
                raise  # a part of the answer was sent, so the server must close the connection
            page = getattr(scope["app"].state, "error_page", None)
            response = None if page is None else page(scope, said)
            await (response or error_response(said))(scope, receive, send)


class RequestLimit:
    """Counts each request for its client before the request is handled.

    Requests from the network with a credential are counted after its check (``deps.count_for``).
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request (ASGI entry point)."""
        if scope["type"] in {"http", "websocket"} and not str(scope["path"]).startswith(_EXEMPT):
            try:
                _count(HTTPConnection(scope))
            except GpupoolError as error:
                await asyncio.sleep(REFUSAL_DELAY_S)
                answer = error_response(error, headers={"retry-after": str(RETRY_AFTER_S)})
                if scope["type"] == "websocket":
                    await WebSocket(scope, receive, send).send_denial_response(answer)
                else:
                    await answer(scope, receive, send)
                return
        await self.app(scope, receive, send)


def _count(connection: HTTPConnection) -> None:
    slot = slot_of(connection)
    rates = request_rates(connection)
    if slot is None or rates is None:
        return
    if slot.kind is not ClientKind.STRANGER and not slot.peer.shared:
        client, privileged = slot.group, slot.kind is ClientKind.PRIVILEGED
    elif "authorization" in connection.headers or "cookie" in connection.headers:
        return
    else:
        client, privileged = network_of(peer_name(connection)), False
    connection.scope["extensions"][RATE_COUNTED] = True
    cost = STATIC_COST if str(connection.scope["path"]).startswith("/static/") else 1.0
    rates.take(client, privileged=privileged, cost=cost)


class HeadRequests:
    """Answers HEAD as GET without the body; a stream ends with its headers."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request (ASGI entry point)."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return

        async def without_body(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b""})  # the next receive() reports a disconnection

        await self.app({**scope, "method": "GET"}, receive, without_body)


class OptionsRequests:
    """Answers OPTIONS with the methods of the path, and completes ``Allow`` of refused methods.

    There are no CORS headers: pages of other origins get no access.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request (ASGI entry point)."""
        if scope["type"] != "http" or scope["method"] in {"GET", "HEAD"}:
            await self.app(scope, receive, send)
            return
        if scope["method"] == "OPTIONS" and (allowed := _allowed_methods(scope)):
            await Response(status_code=204, headers={"allow": allowed})(scope, receive, send)
            return

        async def with_all_methods(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 405:
                kept = [(name, value) for name, value in message["headers"] if name.lower() != b"allow"]
                message = {**message, "headers": [*kept, (b"allow", _allowed_methods(scope).encode())]}
            await send(message)

        await self.app(scope, receive, with_all_methods)


def _allowed_methods(scope: Scope) -> str:
    """Return the value of ``Allow`` for the path of a request; empty if the path does not exist."""
    routes = scope["app"].routes
    found = [m for m in METHODS if any(one.matches({**scope, "method": m})[0] is Match.FULL for one in routes)]
    return ", ".join([*found, *(["HEAD"] if "GET" in found else []), "OPTIONS"]) if found else ""
