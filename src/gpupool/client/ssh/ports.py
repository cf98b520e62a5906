"""Forwarded ports (``ssh -L``, ``-D``): each connection is a port connection of the pool."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import asyncssh
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, WebSocketException

from gpupool.client.files.port_forward import until_silent
from gpupool.client.transport.websocket_dialer import REFUSED

LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1", "ip6-localhost"})
MAX_PENDING_BYTES = 1 << 20
LAST_INPUT_TIMEOUT_S = 30.0  # for the bytes that a client has sent before it closed the connection


class PortSession(asyncssh.SSHTCPSession[bytes]):
    """One connection to a port of the workload. ``tell`` receives errors."""

    def __init__(self, stream: ClientConnection, tell: Callable[[str], None]) -> None:
        self._stream = stream
        self._tell = tell
        self._pending: asyncio.Queue[bytes | None] = asyncio.Queue()  # None: the connection is closed
        self._pending_bytes = 0
        self._writable = asyncio.Event()
        self._writable.set()
        self._task: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._received = asyncio.Event()
        self._closed = False  # by the client

    def connection_made(self, chan: asyncssh.SSHTCPChannel[bytes]) -> None:
        """Store the channel."""
        self._chan = chan

    def session_started(self) -> None:
        """Carry bytes in both directions."""
        self._task = asyncio.create_task(self._run())

    def data_received(self, data: bytes, datatype: object) -> None:  # noqa: ARG002 - of asyncssh
        """Queue bytes for the port."""
        self._pending.put_nowait(data)
        self._pending_bytes += len(data)
        if self._pending_bytes > MAX_PENDING_BYTES:
            self._chan.pause_reading()

    def eof_received(self) -> bool:
        """End the direction to the port, and keep the channel open for its answer."""
        self._pending.put_nowait(b"")
        self._closing = asyncio.create_task(self._close_when_silent())
        return True

    async def _close_when_silent(self) -> None:
        await until_silent(self._received)
        self._chan.close()

    def pause_writing(self) -> None:
        """Stop reading from the port until the SSH client has taken some."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Continue to read from the port."""
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the connection to the port, after the bytes that were received before if the client has closed it."""
        self._closed = True
        if self._closing is not None:
            self._closing.cancel()
        self._pending.put_nowait(None)
        self._writable.set()
        if self._task is not None:
            asyncio.get_running_loop().call_later(LAST_INPUT_TIMEOUT_S if exc is None else 0, self._task.cancel)

    async def finished(self) -> None:
        """Wait until the bytes of a closed connection are sent."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        up = asyncio.create_task(self._send())
        try:
            async for message in self._stream:
                self._received.set()
                if self._closed:
                    continue
                if not message:
                    self._chan.write_eof()
                    continue
                self._chan.write(message if isinstance(message, bytes) else message.encode())
                await self._writable.wait()
            if (self._stream.close_code or 0) >= REFUSED:
                self._tell((self._stream.close_reason or "").partition(": ")[2])
        except (OSError, WebSocketException) as error:
            self._tell(f"The connection to the pool was lost: {str(error) or type(error).__name__}.")
        finally:
            up.cancel()
            self._chan.close()
            await asyncio.gather(up, self._stream.close(), return_exceptions=True)

    async def _send(self) -> None:
        try:
            while True:
                data = await self._pending.get()
                if data is None:
                    await self._stream.close()
                    return
                await self._stream.send(data)
                self._pending_bytes -= len(data)
                if self._pending_bytes <= MAX_PENDING_BYTES // 2:
                    self._chan.resume_reading()
        except ConnectionClosed:
            return
