"""Options of the gateway's TCP sockets."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

READ_BYTES = 64 << 10
_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 20),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)


def set_options(transport: asyncio.BaseTransport) -> None:
    """Send small packets at once, and notice within two minutes that the peer's machine is gone.

    Streams have no other time limit. asyncio sets TCP_NODELAY only on sockets that name their protocol; without it a
    response in two parts waits 40 ms for an acknowledgement.
    """
    if hasattr(transport, "max_size"):
        transport.max_size = READ_BYTES  # asyncio would allocate 256 KiB for each read
    sock = transport.get_extra_info("socket")
    if sock is not None:
        with suppress(OSError):
            for level, option, value in _OPTIONS:
                sock.setsockopt(level, option, value)
