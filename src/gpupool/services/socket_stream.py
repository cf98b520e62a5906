"""Both directions of a connected socket, each until its own end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from typing import cast


class SocketStream:
    """A connected stream socket.

    A program may end while it is still sent input: writing fails, and its last output can still be read. A transport of
    asyncio closes the connection when a write fails, and unread data is lost.
    """

    def __init__(self, connected: socket.socket, received: bytes = b"") -> None:
        """``received``: data that was read from the socket before."""
        connected.settimeout(0)
        self._socket = connected
        self._received = received
        self._sending = asyncio.Lock()
        self._calls = 0
        self._closed = False

    @classmethod
    async def take_over(cls, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> SocketStream:
        """Continue a connection of asyncio's streams, which are closed. Raises OSError."""
        transport = cast("asyncio.Transport", writer.transport)
        transport.set_write_buffer_limits(high=0)
        await writer.drain()  # until all was sent
        reader.feed_eof()
        received = await reader.read()
        transport.pause_reading()  # now, because reading may have resumed it
        duplicate = socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno()))
        writer.close()
        return cls(duplicate, received)

    async def read(self, limit: int) -> bytes:
        """Return the next bytes, at most ``limit``; empty at the end, also that of a lost connection."""
        if self._received:
            data, self._received = self._received[:limit], self._received[limit:]
            return data
        if self._closed:
            return b""
        with self._in_use(), contextlib.suppress(OSError):
            return await asyncio.get_running_loop().sock_recv(self._socket, limit)
        return b""

    async def write(self, data: bytes) -> None:
        """Write all data, waiting for a slow receiver. Raises OSError if it is gone; reading is still possible."""
        async with self._sending:
            if self._closed:
                raise BrokenPipeError
            with self._in_use():
                await asyncio.get_running_loop().sock_sendall(self._socket, data)

    def end_writing(self) -> None:
        """Tell the other side that no more data follows."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the connection; pending calls end."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._close_if_unused()

    @contextlib.contextmanager
    def _in_use(self) -> Iterator[None]:
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._closed and not self._calls:  # the event loop cannot wait for a closed descriptor
            self._socket.close()
