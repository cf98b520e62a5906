"""Ports of this machine that lead to ports of a program: each connection is carried over a WebSocket of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

from websockets.asyncio.client import ClientConnection, connect, unix_connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from gpupool.client.endpoint import Endpoint, TlsEndpoint, UnixEndpoint
from gpupool.client.ways import Ways
from gpupool.domain.errors import ErrorCode, GpupoolError

OPEN_S = 15.0
LINGER_S = 30.0  # for what is still to come after the near side has said all it had to say
_PIECE = 1 << 16
_REFUSED = 4000  # and more: the server closes with 4000 + the HTTP status of its error

OPTIONS: dict[str, Any] = {"open_timeout": OPEN_S, "max_size": None, "compression": None}
Ports = tuple[int, int]


class Forwarder:
    """Listens on loopback ports (0: any free one) and leads to a replica's ports; ``tell`` hears what goes wrong."""

    def __init__(self, endpoint: Endpoint, ref: str, index: int, tell: Callable[[str], None]) -> None:
        self._endpoint = endpoint
        self._target = f"/v1/workloads/{quote(ref, safe='')}/ports/{{port}}?index={index}"
        self._tell = tell
        self._ways = Ways(endpoint) if isinstance(endpoint, TlsEndpoint) else None

    async def listen(self, ports: Sequence[Ports], address: str = "127.0.0.1") -> list[tuple[int, asyncio.Server]]:
        """Begin; the near port of each pair and its server. Raises ``GpupoolError(PORT_TAKEN)``."""
        found = []
        for near, far in ports:
            try:
                server = await asyncio.start_server(self._server_of(far), address, near)
            except OSError as error:
                raise GpupoolError(
                    ErrorCode.PORT_TAKEN, f"Port {near} of {address} is taken.", f"Choose another: {near + 1}:{far}."
                ) from error
            found.append((int(server.sockets[0].getsockname()[1]), server))
        return found

    def _server_of(self, port: int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                await self._carry(port, reader, writer)
            except (OSError, WebSocketException, TimeoutError) as error:
                self._tell(_why(error))
            finally:
                writer.close()

        return serve

    async def _carry(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with await self._connect(self._target.format(port=port)) as far:
            up = asyncio.create_task(_upstream(reader, far))
            down = asyncio.create_task(_downstream(far, writer))
            try:
                await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
                if not down.done():
                    await asyncio.wait({down}, timeout=LINGER_S)
            finally:
                up.cancel()
                down.cancel()
                await asyncio.gather(up, down, return_exceptions=True)
        if far.close_code is not None and far.close_code >= _REFUSED:
            self._tell((far.close_reason or "").partition(": ")[2] or "the pool refuses")

    async def _connect(self, target: str) -> ClientConnection:
        if self._ways is None:
            return await self._connect_here(target)
        way = self._ways.current
        try:
            return await _connect_to(self._ways, way, target)
        except (OSError, WebSocketException, TimeoutError):
            found = await asyncio.to_thread(self._ways.search, way) if self._ways.several else None
            if found is None or found == way:
                raise
        return await _connect_to(self._ways, found, target)

    async def _connect_here(self, target: str) -> ClientConnection:
        assert isinstance(self._endpoint, UnixEndpoint)  # noqa: S101 - there are ways to all others
        path, folder = self._endpoint.connectable()
        try:
            return await unix_connect(path, f"ws://gpupool{target}", **OPTIONS)
        finally:
            if folder is not None:
                os.close(folder)


async def _connect_to(ways: Ways, way: TlsEndpoint, target: str) -> ClientConnection:
    headers = {"authorization": f"Bearer {way.token}"}
    url = "wss" + way.url.removeprefix("https") + target
    return await connect(url, ssl=ways.context(way), additional_headers=headers, proxy=None, **OPTIONS)


async def _upstream(reader: asyncio.StreamReader, far: ClientConnection) -> None:
    with contextlib.suppress(OSError, ConnectionClosed):
        while data := await reader.read(_PIECE):
            await far.send(data)


async def _downstream(far: ClientConnection, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, ConnectionClosed):
        async for message in far:
            writer.write(message if isinstance(message, bytes) else message.encode())
            await writer.drain()


def _why(error: Exception) -> str:
    return f"the pool does not answer: {str(error) or type(error).__name__}"
