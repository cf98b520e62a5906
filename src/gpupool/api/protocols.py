"""uvicorn's protocols, made to say who is at the other end of a unix socket and to bound request heads."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from gpupool.api.deps import PEER_UID

MAX_HEAD_BYTES = 64 * 1024
_UCRED = struct.Struct("3i")  # pid, uid, gid as SO_PEERCRED gives them


def uid_of_peer(transport: asyncio.BaseTransport) -> int | None:
    """The uid that connected to a unix socket, from the kernel (SO_PEERCRED); None for any other transport."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family != socket.AF_UNIX:
        return None
    _pid, uid, _gid = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return int(uid) & 0xFFFFFFFF


class PeerHttpProtocol(HttpToolsProtocol):
    """HTTP whose scope carries the peer's uid, and whose heads are at most ``MAX_HEAD_BYTES``."""

    peer: int | None = None
    head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the base has it
        """Called by the loop for a new connection."""
        self.peer = uid_of_peer(transport)
        super().connection_made(transport)

    def on_message_begin(self) -> None:
        """The parser's callback at the beginning of a request."""
        super().on_message_begin()
        self.head_bytes = 0
        if self.peer is not None:
            cast("dict[str, Any]", self.scope)["extensions"] = {PEER_UID: self.peer}

    def on_url(self, url: bytes) -> None:
        """The parser's callback for a piece of the address; raising makes the parser answer 400."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """The parser's callback for a header."""
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def _count(self, size: int) -> None:
        self.head_bytes += size
        if self.head_bytes > MAX_HEAD_BYTES:
            raise ValueError("the request's head is too large")


class PeerWebSocketProtocol(WebSocketsSansIOProtocol):
    """WebSocket whose scope carries the peer's uid; silence and an end at the other side are told apart."""

    def handle_connect(self, event: Any) -> None:
        """The handshake; the application's task is only made here and reads the scope later."""
        super().handle_connect(event)
        peer = uid_of_peer(self.transport)
        scope = getattr(self, "scope", None)
        if peer is not None and scope is not None:
            cast("dict[str, Any]", scope)["extensions"][PEER_UID] = peer

    def keepalive_timeout(self) -> None:
        """Nothing came back: the application hears 1006 for it, where 1005 says that the other end closed."""
        self.queue.put_nowait({"type": "websocket.disconnect", "code": 1006})
        super().keepalive_timeout()
