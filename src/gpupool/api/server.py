"""Running the application in one event loop: on the unix socket, on a loopback address, and over TLS when asked."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI

from gpupool.api import tls
from gpupool.api.listeners import listen_tcp, listen_unix
from gpupool.api.loopback import LoopbackHttpProtocol, LoopbackWebSocketProtocol
from gpupool.api.protocols import PeerHttpProtocol, PeerWebSocketProtocol

_GRACE_S = 3  # for answers under way when the server stops
_MOST_CONNECTIONS = 4096
_MOST_REMOTE_CONNECTIONS = 1024
_WS_MESSAGE_BYTES = 2 * 1024 * 1024  # a frame carries up to 1 MiB


@dataclass(frozen=True, slots=True)
class ListenConfig:
    """Where to listen on the network (port 0: any free one) and with which certificate."""

    host: str
    port: int
    certificate: tls.CertificateFiles


@dataclass(frozen=True, slots=True)
class Bound:
    """What is listened on once the server is ready; ``listen`` is ``host:port`` or None."""

    socket_path: Path
    listen: str | None


async def serve(  # noqa: PLR0913 - each is a way to be reached, or when
    app: FastAPI,
    *,
    socket_path: Path,
    socket_mode: int = 0o600,
    listen: ListenConfig | None = None,
    dashboard: socket.socket | None = None,
    stop: asyncio.Event | None = None,
    ready: Callable[[Bound], None] | None = None,
) -> None:
    """Serve ``app`` until ``stop`` is set or the task is cancelled; then finish what is under way and return.

    ``dashboard`` is a listening socket on a loopback address, for browsers of this machine; it is closed at the end.
    ``ready`` is called once the sockets listen. Signals are left to the caller. Raises ``GpupoolError``
    (PORT_TAKEN, POOL_START_FAILED, INVALID_FILE) before anything is served.
    """
    context = tls.server_context(listen.certificate) if listen else None
    remote = listen_tcp(listen.host, listen.port) if listen else None
    try:
        local = listen_unix(socket_path, socket_mode)
    except BaseException:
        if remote is not None:
            remote.close()
        raise
    identity = _identity(socket_path)
    servers = [(_Server(_config(app, None, _MOST_CONNECTIONS)), local)]
    if dashboard is not None:
        loopback = {"http": LoopbackHttpProtocol, "ws": LoopbackWebSocketProtocol}
        servers.append((_Server(_config(app, None, _MOST_REMOTE_CONNECTIONS, **loopback)), dashboard))
    if remote is not None:
        servers.append((_Server(_config(app, context, _MOST_REMOTE_CONNECTIONS)), remote))
    try:
        await _run(
            app, servers, stop, lambda: ready and ready(Bound(socket_path, address_of(remote) if remote else None))
        )
    finally:
        _remove_own(socket_path, identity)


async def _run(
    app: FastAPI,
    servers: list[tuple[_Server, socket.socket]],
    stop: asyncio.Event | None,
    ready: Callable[[], object],
) -> None:
    runs = [asyncio.create_task(server.serve([sock])) for server, sock in servers]
    stopping = asyncio.create_task((stop or asyncio.Event()).wait())
    try:
        for server, _ in servers:
            await server.up.wait()
        ready()
        await asyncio.wait({*runs, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        app.state.closing.set()
        for server, _ in servers:
            server.should_exit = True
        await asyncio.gather(*runs)


class _Server(uvicorn.Server):
    """A server that leaves signals to whoever runs it, and says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept; the sockets listen already, so nothing can fail here."""
        await super().startup(sockets)
        self.up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _config(
    app: FastAPI, context: ssl.SSLContext | None, most_connections: int, **protocols: type[asyncio.Protocol]
) -> uvicorn.Config:
    options: dict[str, Any] = {"http": PeerHttpProtocol, "ws": PeerWebSocketProtocol, **protocols}
    if context is not None:
        options["ssl_context_factory"] = lambda _config, _default: context
    return uvicorn.Config(
        app,
        ws_max_size=_WS_MESSAGE_BYTES,
        ws_per_message_deflate=False,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        limit_concurrency=most_connections,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=_GRACE_S,
        **options,
    )


def address_of(sock: socket.socket) -> str:
    """``host:port`` of a listening socket."""
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def _remove_own(path: Path, identity: tuple[int, int]) -> None:
    """Remove the socket unless a successor has put its own there."""
    with contextlib.suppress(OSError):
        if _identity(path) == identity:
            path.unlink()
