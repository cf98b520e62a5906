"""ASGI middleware before every page: it refuses cross-origin requests and adds security headers.

Pages of other origins can make a browser send requests with our cookie, and can use another host name for our
address (DNS rebinding). Both are refused here before any route, in addition to the token in every form.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from gpupool.api.errors import error_response
from gpupool.api.routes.work.attach import is_own_origin
from gpupool.api.server.peer import LOOPBACK_UID, PEER_UID
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.web.headers import CONTENT_SECURITY_POLICY, PAGE_HEADERS

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_SOCKET_NAMES = _OWN_NAMES | {"gpupool", "pool"}  # host names that clients use at a unix socket


class Guard:
    """Refuse requests from pages of other origins, and add security headers to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request (ASGI entry point)."""
        if scope["type"] not in {"http", "websocket"}:
            await self.app(scope, receive, send)
            return
        refusal = _refusal(scope, Headers(scope=scope))
        if refusal is None:
            await self.app(scope, receive, _with_headers(scope, send))
        elif scope["type"] == "websocket":
            await WebSocket(scope, receive, send).send_denial_response(error_response(refusal))
        else:
            await error_response(refusal)(scope, receive, _with_headers(scope, send))


def _refusal(scope: Scope, headers: Headers) -> GpupoolError | None:
    extensions = scope.get("extensions") or {}
    api = str(scope["path"]).startswith("/v1/")
    if LOOPBACK_UID in extensions and api:
        return GpupoolError(
            ErrorCode.NOT_FOUND, "The API is not served here.", "Use the pool's unix socket, or --listen with a token."
        )
    if not _called_by_its_name(extensions, headers, api=api):
        return GpupoolError(ErrorCode.FORBIDDEN, "This is not an address of the dashboard.", "Open it by 127.0.0.1.")
    if _from_elsewhere(scope, headers, api=api):
        return GpupoolError(
            ErrorCode.FORBIDDEN, "The request came from a page of another site.", "Use the pages of the dashboard."
        )
    return None


def _called_by_its_name(extensions: Scope, headers: Headers, *, api: bool) -> bool:
    """Return True if the Host header names this server. With TLS, certificate and ``__Host-`` cookie ensure it."""
    name = _name(headers.get("host", ""))
    if LOOPBACK_UID in extensions:
        return name in _OWN_NAMES
    if PEER_UID not in extensions or (api and not _is_browser(headers)):
        return True
    return name in _SOCKET_NAMES  # a browser at a unix socket: it is forwarded


def _is_browser(headers: Headers) -> bool:
    return headers.get("user-agent", "").startswith("Mozilla/") or "origin" in headers or "sec-fetch-mode" in headers


def _name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _from_elsewhere(scope: Scope, headers: Headers, *, api: bool) -> bool:
    """Return True if a page of another origin sent a request that only our pages may send.

    Browsers send the origin of the page; other programs send none and are checked by their credentials.
    """
    socket = scope["type"] == "websocket"
    if not socket and scope["method"] in _SAFE:
        return False
    origin = headers.get("origin")
    if origin is None and socket:
        return not api
    if origin is None:
        return headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}
    if api and socket:
        return False  # the route checks the origin itself
    return not is_own_origin(origin, scope["scheme"], headers.get("host", ""))


def _with_headers(scope: Scope, send: Send) -> Send:
    if scope["type"] != "http":
        return send

    async def watched(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _EVERYWHERE.items():
                headers.setdefault(name, value)
        await send(message)

    return watched


_EVERYWHERE = {
    **PAGE_HEADERS,
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
