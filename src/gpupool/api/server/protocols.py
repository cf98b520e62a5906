"""Protocols of uvicorn with the client's uid, a limit on request heads, and deadlines for the client."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from gpupool.api.problems import raw_problem
from gpupool.api.server.connections import ClientKind, Slot
from gpupool.api.server.peer import PEER_UID, SLOT
from gpupool.domain.errors import ErrorCode, GpupoolError

MAX_HEAD_BYTES = 64 * 1024
MAX_PIPELINED = 16  # requests that wait for an earlier one on the same connection
HEAD_TIMEOUT_S = 10.0
BODY_TIMEOUT_S = 30.0  # plus a second for every MIN_BODY_RATE bytes received
MIN_BODY_RATE = 16 * 1024  # bytes per second
KEEP_ALIVE_S = 75.0
FLUSH_TIMEOUT_S = 60.0  # for the client to read the last answer of a connection
_UCRED = struct.Struct("3i")  # pid, uid, gid as SO_PEERCRED gives them


def uid_of_peer(transport: asyncio.BaseTransport) -> int | None:
    """Return the uid of a unix socket's peer (SO_PEERCRED); None for any other transport."""
    sock = transport.get_extra_info("socket")
    return None if sock is None or sock.family != socket.AF_UNIX else uid_of_socket(sock)


def uid_of_socket(sock: socket.socket) -> int:
    """Return the uid of a unix socket's peer; raises ``OSError``."""
    _pid, uid, _gid = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return int(uid) & 0xFFFFFFFF


class PeerHttpProtocol(HttpToolsProtocol):
    """HTTP with the peer's uid in the scope, and with request heads of at most ``MAX_HEAD_BYTES``."""

    peer: int | None = None
    slot: Slot | None = None
    head_bytes = 0
    unparsed_bytes = 0  # of a head; the parser reports a header only when it is complete
    in_head = False
    in_message = False  # True from the first byte of a request to the last one

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the base has it
        """Handle a new connection (called by the event loop)."""
        self.peer = uid_of_peer(transport)
        super().connection_made(transport)
        if self.slot is not None:
            self.slot.close, self.slot.paused = transport.abort, lambda: self.flow.read_paused
            if self.slot.released:  # it was closed to make room while it was being opened
                transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of a connection (called by the event loop)."""
        super().connection_lost(exc)
        if self.slot is not None:
            self.slot.release()

    def pause_writing(self) -> None:
        """Handle a client that does not read; an unauthenticated one must read within a time limit."""
        super().pause_writing()
        if self.slot is not None and self.slot.kind is ClientKind.STRANGER:
            self.slot.wait(FLUSH_TIMEOUT_S)

    def resume_writing(self) -> None:
        """Handle a client that reads again."""
        super().resume_writing()
        if self.slot is not None and self._answering():
            self.slot.work()

    def data_received(self, data: bytes) -> None:
        """Handle received bytes; a request head above the limit is answered with 400."""
        before = self.unparsed_bytes if self.in_head else 0
        super().data_received(data)
        self.unparsed_bytes = before + len(data) if self.in_head else 0
        if self.unparsed_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The request headers are too large.")

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is not HTTP and close the connection."""
        self.transport.write(raw_problem(GpupoolError(ErrorCode.MALFORMED_REQUEST, msg, "Send HTTP/1.1."), {}))
        self.transport.close()

    def on_message_begin(self) -> None:
        """Handle the start of a request (parser callback)."""
        super().on_message_begin()
        self.head_bytes, self.in_head, self.in_message = 0, True, True
        extensions: dict[str, Any] = {} if self.peer is None else {PEER_UID: self.peer}
        if self.slot is not None:
            extensions[SLOT] = self.slot
            if not self._answering():
                self.slot.wait(HEAD_TIMEOUT_S)
        if extensions:
            cast("dict[str, Any]", self.scope)["extensions"] = extensions

    def on_headers_complete(self) -> None:
        """Handle the end of a request's head (parser callback); an exception is answered with 400."""
        if len(self.pipeline) >= MAX_PIPELINED:
            raise ValueError("too many requests without waiting for an answer")
        self.in_head, waiting = False, not self._answering()
        super().on_headers_complete()
        if self.slot is not None and waiting:
            self.slot.wait(BODY_TIMEOUT_S)

    def on_body(self, body: bytes) -> None:
        """Handle a part of a request's body (parser callback)."""
        super().on_body(body)
        if self.slot is not None:
            self.slot.extend(len(body) / MIN_BODY_RATE)

    def on_message_complete(self) -> None:
        """Handle the end of a request (parser callback)."""
        super().on_message_complete()
        self.in_message = False
        if self.slot is not None and self._answering():
            self.slot.work()

    def on_response_complete(self) -> None:
        """Start the client's deadline after a response, unless it has already sent the next request."""
        super().on_response_complete()
        if self.slot is None:
            return
        self.slot.drop_body()
        if self.transport.is_closing():
            self.slot.wait(FLUSH_TIMEOUT_S)
        elif not self._answering():
            self.slot.wait(HEAD_TIMEOUT_S if self.in_message else KEEP_ALIVE_S)

    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def on_url(self, url: bytes) -> None:
        """Handle a part of the address (parser callback); an exception is answered with 400."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Handle a header (parser callback)."""
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def _count(self, size: int) -> None:
        self.head_bytes += size
        if self.head_bytes > MAX_HEAD_BYTES:
            raise ValueError("the request's head is too large")


class PeerWebSocketProtocol(WebSocketsSansIOProtocol):
    """WebSocket with the peer's uid in the scope; a client that stops answering is reported with code 1006."""

    slot: Slot | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over the connection and its slot from the previous protocol."""
        super().connection_made(transport)
        self.slot = getattr(cast("asyncio.Transport", transport).get_protocol(), "slot", None)
        if self.slot is not None:
            self.slot.work()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of a connection (called by the event loop)."""
        super().connection_lost(exc)
        if self.slot is not None:
            self.slot.release()

    def handle_connect(self, event: Any) -> None:
        """Handle the handshake; it only creates the application's task, which reads the scope later."""
        super().handle_connect(event)
        peer = uid_of_peer(self.transport)
        scope = getattr(self, "scope", None)
        if scope is None:
            return
        if peer is not None:
            cast("dict[str, Any]", scope)["extensions"][PEER_UID] = peer
        if self.slot is not None:
            cast("dict[str, Any]", scope)["extensions"][SLOT] = self.slot

    def keepalive_timeout(self) -> None:
        """Report a client that does not answer with code 1006; 1005 would mean that it closed the connection."""
        self.queue.put_nowait({"type": "websocket.disconnect", "code": 1006})
        super().keepalive_timeout()
