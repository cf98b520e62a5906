"""Run the application in one event loop: on the unix socket, and optionally on a loopback address and over TLS."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI

from gpupool.api.server import tls
from gpupool.api.server.acceptor import HEAD_TIMEOUT_S, Acceptor
from gpupool.api.server.connections import (
    LOOPBACK_LIMITS,
    NETWORK_LIMITS,
    UNIX_LIMITS,
    ClientKind,
    ConnectionLimits,
    ConnectionPeer,
    Slot,
    Slots,
    scaled,
)
from gpupool.api.server.listeners import listen_tcp, listen_unix
from gpupool.api.server.loopback import LoopbackHttpProtocol, LoopbackWebSocketProtocol, uid_of_ends
from gpupool.api.server.protocols import KEEP_ALIVE_S, PeerHttpProtocol, PeerWebSocketProtocol, uid_of_socket
from gpupool.api.server.proxies import TrustedProxies, network_of
from gpupool.services.pool import PoolServices
from gpupool.services.refusals import RefusalReason

_GRACE_S = 3  # for requests in progress when the server stops
_TICK_S = 1.0
_OTHER_FILES = 512  # descriptors reserved for databases, logs and nodes
_WS_MESSAGE_BYTES = 2 * 1024 * 1024  # a frame carries up to 1 MiB


@dataclass(frozen=True, slots=True)
class ListenConfig:
    """The network address (port 0: any free port), the certificate, and the trusted proxies of the API."""

    host: str
    port: int
    certificate: tls.CertificateFiles
    trusted_proxies: TrustedProxies = field(default_factory=TrustedProxies)


@dataclass(frozen=True, slots=True)
class BoundAddresses:
    """The addresses of a server that is ready; ``listen`` is ``host:port``, or None without a network address."""

    socket_path: Path
    listen: str | None


async def serve(  # noqa: PLR0913 - each is an address, or a time to act
    app: FastAPI,
    *,
    socket_path: Path,
    socket_mode: int = 0o600,
    listen: ListenConfig | None = None,
    dashboard: socket.socket | None = None,
    stop: asyncio.Event | None = None,
    ready: Callable[[BoundAddresses], None] | None = None,
) -> None:
    """Serve ``app`` until ``stop`` is set or the task is cancelled; then finish the requests in progress and return.

    ``dashboard`` is a listening socket on a loopback address, for browsers of this machine; it is closed at the end.
    ``ready`` is called when the sockets listen. Signals are left to the caller. Raises ``GpupoolError``
    (PORT_TAKEN, POOL_START_FAILED, INVALID_FILE, INVALID_REQUEST) before the first request.
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
    owner = os.geteuid()
    slots = partial(_slots, _refused(app))
    servers = [_Server(_config(app), local, slots(UNIX_LIMITS), lambda sock: _local_peer(uid_of_socket(sock), owner))]
    if dashboard is not None:
        loopback = {"http": LoopbackHttpProtocol, "ws": LoopbackWebSocketProtocol}
        servers.append(
            _Server(
                _config(app, **loopback),
                dashboard,
                slots(LOOPBACK_LIMITS),
                lambda sock: _loopback_peer(sock, owner),
            )
        )
    if remote is not None:
        proxies = listen.trusted_proxies if listen is not None else TrustedProxies()
        app.state.trusted_proxies = proxies
        servers.append(
            _Server(_config(app), remote, slots(NETWORK_LIMITS), lambda sock: _remote_peer(sock, proxies), context)
        )
    try:
        await _run(
            app,
            servers,
            stop,
            lambda: ready and ready(BoundAddresses(socket_path, address_of(remote) if remote else None)),
        )
    finally:
        _remove_own(socket_path, identity)


async def _run(
    app: FastAPI,
    servers: list[_Server],
    stop: asyncio.Event | None,
    ready: Callable[[], object],
) -> None:
    runs = [asyncio.create_task(server.serve([server.listener])) for server in servers]
    stopping = asyncio.create_task((stop or asyncio.Event()).wait())
    try:
        for server in servers:
            await server.up.wait()
        ready()
        await asyncio.wait({*runs, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        app.state.closing.set()
        for server in servers:
            server.end()
        await asyncio.gather(*runs)


class _Server(uvicorn.Server):
    """A server with limits on connections; it leaves signals to its caller, and sets ``up`` when it accepts."""

    def __init__(
        self,
        config: uvicorn.Config,
        listener: socket.socket,
        slots: Slots,
        peer_of: Callable[[socket.socket], ConnectionPeer],
        context: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(config)
        self.listener = listener
        self.up = asyncio.Event()
        self._ending = asyncio.Event()
        self._slots = slots
        self._acceptor = Acceptor(listener, slots, self._make_protocol, peer_of, context, slots.note_refused)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002 - as the base has it
        """Start to accept connections; the socket already listens, so this cannot fail."""
        await self.lifespan.startup()
        self.servers = [self._acceptor]  # type: ignore[list-item]  # it has the same close and wait_closed
        self._acceptor.start()
        self.started = True
        self.up.set()

    def _make_protocol(self, slot: Slot) -> asyncio.Protocol:
        made: Any = self.config.http_protocol_class(  # type: ignore[call-arg]  # as uvicorn itself calls it
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        made.slot = slot
        protocol: asyncio.Protocol = made
        return protocol

    def end(self) -> None:
        """Accept no more connections, and return from ``serve`` after the requests in progress."""
        self.should_exit = True
        self._ending.set()

    async def main_loop(self) -> None:
        """Run periodic work once a second until the end; uvicorn's own loop wakes up ten times per second."""
        while not await self.on_tick(0):
            self._slots.close_overdue(extra_s=HEAD_TIMEOUT_S)
            self._acceptor.drop_refused()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK_S):
                    await self._ending.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _config(app: FastAPI, **protocols: type[asyncio.Protocol]) -> uvicorn.Config:
    options: dict[str, Any] = {"http": PeerHttpProtocol, "ws": PeerWebSocketProtocol, **protocols}
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
        timeout_keep_alive=int(KEEP_ALIVE_S),
        timeout_graceful_shutdown=_GRACE_S,
        **options,
    )


def _slots(refused: Callable[[str], None], limits: ConnectionLimits) -> Slots:
    """Return the slots of one listening socket, so that all sockets together leave descriptors for other uses."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return Slots(limits, time.monotonic, refused)
    every = sum(each.total for each in (UNIX_LIMITS, LOOPBACK_LIMITS, NETWORK_LIMITS))
    part = max(files - _OTHER_FILES, files // 4) * limits.total // every
    return Slots(scaled(limits, part), time.monotonic, refused)


def _refused(app: FastAPI) -> Callable[[str], None]:
    """Return the function that counts refused clients; on a standby it does nothing."""
    services: PoolServices | None = getattr(app.state, "services", None)
    if services is None:
        return lambda _client: None
    refusals = services.refusals
    return lambda client: refusals.note(RefusalReason.CONNECTIONS, client)


def _local_peer(uid: int, owner: int) -> ConnectionPeer:
    return ConnectionPeer(f"uid {uid}", ClientKind.PRIVILEGED if uid in {0, owner} else ClientKind.USER)


def _loopback_peer(sock: socket.socket, owner: int) -> ConnectionPeer:
    uid = uid_of_ends(sock.getsockname(), sock.getpeername())
    return _local_peer(-1 if uid is None else uid, owner)


def _remote_peer(sock: socket.socket, proxies: TrustedProxies) -> ConnectionPeer:
    address = sock.getpeername()[0]
    return ConnectionPeer(network_of(address), shared=address in proxies)


def address_of(sock: socket.socket) -> str:
    """Return ``host:port`` of a listening socket."""
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def _remove_own(path: Path, identity: tuple[int, int]) -> None:
    """Remove the socket file, unless another server has replaced it."""
    with contextlib.suppress(OSError):
        if _identity(path) == identity:
            path.unlink()
