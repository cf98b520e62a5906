"""Forward ports and Unix sockets of this machine to those of a program: each connection has its own WebSocket."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence
from typing import Protocol
from urllib.parse import quote

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, WebSocketException

from gpupool.client.transport.endpoint import Endpoint, TlsEndpoint, UnixEndpoint
from gpupool.client.transport.websocket_dialer import REFUSED, WebSocketDialer
from gpupool.domain.errors import ErrorCode, GpupoolError

HALF_CLOSED_TIMEOUT_S = 3600.0  # without data from the program after the local side has ended
LOGIN_REFUSALS = frozenset({REFUSED + 401, REFUSED + 429})
LOGIN_DELAY_FACTOR = 10  # wrong credentials of an address are counted
_PIECE = 1 << 16

Ports = tuple[int, int]
Sockets = tuple[str, str]


class Dialer(Protocol):
    """Opens WebSockets of a pool."""

    async def connect(self, target: str) -> ClientConnection:
        """Connect to a path of the API. Raises ``OSError``, ``WebSocketException``, ``TimeoutError``."""


class Forwarder:
    """Listens on loopback ports (0: any free one) and forwards to a replica's ports; ``tell`` receives errors.

    ``activity``: the bytes count as activity for the idle limit. ``delay_s``: a local connection that cannot be
    forwarded stays open this long, for clients that repeat it at once. Call ``close`` at the end.
    """

    def __init__(
        self,
        pool: Endpoint | Dialer,
        ref: str,
        index: int,
        tell: Callable[[str], None],
        *,
        activity: bool = True,
        delay_s: float = 0.0,
    ) -> None:
        self._workload = f"/v1/workloads/{quote(ref, safe='')}"
        self._query = f"index={index}&half_close=true" + ("" if activity else "&activity=false")
        self._tell = tell
        self._delay_s = delay_s
        self._dialer: Dialer = WebSocketDialer(pool) if isinstance(pool, UnixEndpoint | TlsEndpoint) else pool
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()

    async def listen(self, ports: Sequence[Ports], address: str = "127.0.0.1") -> list[tuple[int, asyncio.Server]]:
        """Start to listen; return the local port and the server of each pair. Raises ``GpupoolError(PORT_TAKEN)``."""
        found = []
        for near, far in ports:
            try:
                server = await asyncio.start_server(self._server_of(f"/ports/{far}?{self._query}"), address, near)
            except OSError as error:
                raise GpupoolError(
                    ErrorCode.PORT_TAKEN, f"Port {near} of {address} is taken.", f"Choose another: {near + 1}:{far}."
                ) from error
            self._servers.append(server)
            found.append((int(server.sockets[0].getsockname()[1]), server))
        return found

    async def listen_on_sockets(self, sockets: Sequence[Sockets]) -> None:
        """Start to listen on Unix sockets, each for a Unix socket of the program. Raises ``OSError``."""
        for near, far in sockets:
            accept = self._server_of(f"/sockets?path={quote(far, safe='')}&{self._query}")
            self._servers.append(await asyncio.start_unix_server(accept, near))

    async def close(self) -> None:
        """Stop to listen, and close all connections."""
        for server in self._servers:
            server.close()
        connections = list(self._connections)
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    def _server_of(self, target: str) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                await self._carry(target, reader, writer)
            except (OSError, WebSocketException, TimeoutError) as error:
                self._tell(_why(error))
                await asyncio.sleep(self._delay_s)
            finally:
                writer.close()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            # Not a coroutine: Python 3.11 prints a traceback for each of its own tasks that is cancelled.
            task = asyncio.create_task(serve(reader, writer))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

        return accept

    async def _carry(self, target: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with await self._dialer.connect(self._workload + target) as far:
            heard = asyncio.Event()
            up = asyncio.create_task(_upstream(reader, far, heard))
            down = asyncio.create_task(_downstream(far, writer, heard))
            try:
                await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                up.cancel()
                down.cancel()
                await asyncio.gather(up, down, return_exceptions=True)
        if far.close_code is not None and far.close_code >= REFUSED:
            self._tell((far.close_reason or "").partition(": ")[2] or "the pool rejected the connection")
            refused = far.close_code in LOGIN_REFUSALS
            await asyncio.sleep(self._delay_s * (LOGIN_DELAY_FACTOR if refused else 1))


async def until_silent(heard: asyncio.Event) -> None:
    """Return when ``heard`` has not been set for ``HALF_CLOSED_TIMEOUT_S``."""
    with contextlib.suppress(TimeoutError):
        while True:
            async with asyncio.timeout(HALF_CLOSED_TIMEOUT_S):
                await heard.wait()
            heard.clear()


async def _upstream(reader: asyncio.StreamReader, far: ClientConnection, heard: asyncio.Event) -> None:
    """Send all data and the end of it, and return when the program is silent after that, or the local side is lost."""
    with contextlib.suppress(OSError):
        with contextlib.suppress(ConnectionClosed):  # what was received before is still delivered
            while data := await reader.read(_PIECE):
                await far.send(data)
            await far.send(b"")
        await until_silent(heard)


async def _downstream(far: ClientConnection, writer: asyncio.StreamWriter, heard: asyncio.Event) -> None:
    with contextlib.suppress(OSError, ConnectionClosed):
        async for message in far:
            heard.set()
            if message:
                writer.write(message if isinstance(message, bytes) else message.encode())
                await writer.drain()
            else:
                writer.write_eof()


def _why(error: Exception) -> str:
    return f"the pool does not answer: {str(error) or type(error).__name__}"
