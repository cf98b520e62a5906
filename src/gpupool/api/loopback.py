"""The dashboard's listener for browsers of this machine: plain HTTP on a loopback address, with the peer's account.

Every account of the machine reaches such a port, and a browser sends a cookie of 127.0.0.1 to every port there, also to
one that somebody else's program listens on. So the kernel is asked whose process is at the other end: a one-time link
or a cookie is of no use to anybody else.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import struct
from typing import Any, cast

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from gpupool.api.deps import LOOPBACK_UID
from gpupool.api.listeners import listen_tcp
from gpupool.api.protocols import PeerHttpProtocol
from gpupool.domain.errors import GpupoolError

_NEXT_PORTS = 20  # tried when the port is taken: another user's pool has it

_SOCK_DIAG = 4  # NETLINK_SOCK_DIAG
_BY_FAMILY = 20  # SOCK_DIAG_BY_FAMILY
_REQUEST = 1  # NLM_F_REQUEST: exactly one socket is asked for
_HEADER = struct.Struct("=IHHII")
_ASKED = struct.Struct("=BBBxI")
_ANY_COOKIE = b"\xff" * 8
_UID_AT = 16 + 4 + 48 + 12  # behind the header: 4 bytes of state, the socket's id, then expires, rqueue, wqueue, uid


def listen_loopback(host: str, port: int) -> socket.socket:
    """A socket on a loopback address; a taken port makes way for one of the next, or for any that is free."""
    for candidate in (*range(port, min(port + _NEXT_PORTS, 65536)), 0) if port else (0,):
        with contextlib.suppress(GpupoolError):
            return listen_tcp(host, candidate)
    return listen_tcp(host, 0)


def uid_of_loopback_peer(transport: asyncio.BaseTransport) -> int | None:
    """The account that owns the other end of a TCP connection on this machine; None when the kernel does not say."""
    here, there = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
    with contextlib.suppress(OSError, TypeError, struct.error):
        family = socket.AF_INET6 if ":" in here[0] else socket.AF_INET
        found = _owner(family, (there[0], there[1]), (here[0], here[1]))
        if found is None and family is socket.AF_INET:  # a client that speaks both kinds of IP on one socket
            found = _owner(socket.AF_INET6, (f"::ffff:{there[0]}", there[1]), (f"::ffff:{here[0]}", here[1]))
        return found
    return None


def _owner(family: int, own: tuple[str, int], other: tuple[str, int]) -> int | None:
    """Who owns the socket with these two ends (sock_diag(7))."""
    ends = struct.pack("!HH", own[1], other[1]) + _padded(family, own[0]) + _padded(family, other[0])
    asked = _ASKED.pack(family, socket.IPPROTO_TCP, 0, 0xFFFFFFFF) + ends + struct.pack("=I", 0) + _ANY_COOKIE
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as kernel:
        kernel.settimeout(1.0)
        kernel.send(_HEADER.pack(_HEADER.size + len(asked), _BY_FAMILY, _REQUEST, 1, 0) + asked)
        answer = kernel.recv(8192)
    _, kind, *_ = _HEADER.unpack_from(answer)
    if kind == _BY_FAMILY:
        return int(struct.unpack_from("=I", answer, _UID_AT)[0])
    (number,) = struct.unpack_from("=i", answer, _HEADER.size)
    if number != -errno.ENOENT:
        raise OSError(-number, "sock_diag")
    return None


def _padded(family: int, address: str) -> bytes:
    return socket.inet_pton(family, address).ljust(16, b"\0")


class LoopbackHttpProtocol(PeerHttpProtocol):
    """HTTP whose scope says whose process is at the other end."""

    account: int | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the base has it
        """Called by the loop for a new connection."""
        self.account = uid_of_loopback_peer(transport)
        super().connection_made(transport)

    def on_message_begin(self) -> None:
        """The parser's callback at the beginning of a request."""
        super().on_message_begin()
        cast("dict[str, Any]", self.scope)["extensions"] = {LOOPBACK_UID: self.account}


class LoopbackWebSocketProtocol(WebSocketsSansIOProtocol):
    """WebSocket whose scope says the same."""

    def handle_connect(self, event: Any) -> None:
        """The handshake; the application's task is only made here and reads the scope later."""
        super().handle_connect(event)
        scope = getattr(self, "scope", None)
        if scope is not None:
            cast("dict[str, Any]", scope)["extensions"][LOOPBACK_UID] = uid_of_loopback_peer(self.transport)
