"""Listener of the dashboard for browsers on this machine: plain HTTP on a loopback address, with the client's account.

All accounts of the machine can connect to such a port. A browser sends a cookie of 127.0.0.1 to every port there, also
to a port of another user's program. Therefore the pool asks the kernel for the account of the client's process, so that
other accounts cannot use a stolen one-time link or cookie.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import struct
from typing import Any, cast

from gpupool.api.server.listeners import listen_tcp
from gpupool.api.server.peer import LOOPBACK_UID
from gpupool.api.server.protocols import PeerHttpProtocol, PeerWebSocketProtocol
from gpupool.domain.errors import GpupoolError

_NEXT_PORTS = 20  # tried when the port is in use, for example by another user's pool

_SOCK_DIAG = 4  # NETLINK_SOCK_DIAG
_BY_FAMILY = 20  # SOCK_DIAG_BY_FAMILY
_REQUEST = 1  # NLM_F_REQUEST, without NLM_F_DUMP: ask for exactly one socket
_HEADER = struct.Struct("=IHHII")
_ASKED = struct.Struct("=BBBxI")
_ANY_COOKIE = b"\xff" * 8
_UID_AT = 16 + 4 + 48 + 12  # after the header: 4 bytes of state, the socket's id, expires, rqueue, wqueue


def listen_loopback(host: str, port: int) -> socket.socket:
    """Listen on a loopback address; if the port is in use, on one of the next ports or any free one."""
    for candidate in (*range(port, min(port + _NEXT_PORTS, 65536)), 0) if port else (0,):
        with contextlib.suppress(GpupoolError):
            return listen_tcp(host, candidate)
    return listen_tcp(host, 0)


def uid_of_loopback_peer(transport: asyncio.BaseTransport) -> int | None:
    """Return the uid that owns the other end of a local TCP connection; None if unknown."""
    return uid_of_ends(transport.get_extra_info("sockname"), transport.get_extra_info("peername"))


def uid_of_ends(here: Any, there: Any) -> int | None:
    """Return the uid for the addresses of both ends."""
    with contextlib.suppress(OSError, TypeError, struct.error):
        family = socket.AF_INET6 if ":" in here[0] else socket.AF_INET
        found = _owner(family, (there[0], there[1]), (here[0], here[1]))
        if found is None and family is socket.AF_INET:  # the client may use an IPv6 socket for IPv4
            found = _owner(socket.AF_INET6, (f"::ffff:{there[0]}", there[1]), (f"::ffff:{here[0]}", here[1]))
        return found
    return None


def _owner(family: int, own: tuple[str, int], other: tuple[str, int]) -> int | None:
    """Return the owner of the socket with these two ends (sock_diag(7))."""
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
    """HTTP with the account of the client's process in the scope."""

    account: int | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the base has it
        """Handle a new connection (called by the event loop)."""
        self.account = uid_of_loopback_peer(transport)
        super().connection_made(transport)

    def on_message_begin(self) -> None:
        """Handle the start of a request (parser callback)."""
        super().on_message_begin()
        scope = cast("dict[str, Any]", self.scope)
        scope["extensions"] = {**scope.get("extensions", {}), LOOPBACK_UID: self.account}


class LoopbackWebSocketProtocol(PeerWebSocketProtocol):
    """WebSocket with the account of the client's process in the scope."""

    def handle_connect(self, event: Any) -> None:
        """Handle the handshake; it only creates the application's task, which reads the scope later."""
        super().handle_connect(event)
        scope = getattr(self, "scope", None)
        if scope is not None:
            cast("dict[str, Any]", scope)["extensions"][LOOPBACK_UID] = uid_of_loopback_peer(self.transport)
