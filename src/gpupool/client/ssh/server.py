"""The SSH server of one connection, on standard input and output."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
import weakref
from collections.abc import Coroutine
from typing import Any

import asyncssh
from websockets.exceptions import WebSocketException

from gpupool.client.client import Client
from gpupool.client.ssh.ports import LOCAL_HOSTS, PortSession
from gpupool.client.ssh.sessions import ProgramSession
from gpupool.client.ssh.target import NO_TIMES, SessionTimes, SshTarget, find_target
from gpupool.client.transport.endpoint import resolve_endpoint
from gpupool.client.transport.websocket_dialer import WebSocketDialer

KEEPALIVE_S = 30
LAST_OUTPUT_TIMEOUT_S = 10.0
_PIECE = 256 << 10


class WorkloadServer(asyncssh.SSHServer):
    """Sessions and ports of one workload, for the user at the other end of the pipe."""

    def __init__(self, client: Client, dialer: WebSocketDialer, target: SshTarget, times: SessionTimes) -> None:
        self._client = client
        self._dialer = dialer
        self._target = target
        self._times = times
        self.lost = asyncio.Event()
        self._ports: weakref.WeakSet[PortSession] = weakref.WeakSet()

    def begin_auth(self, username: str) -> bool:  # noqa: ARG002 - of asyncssh
        """Require nothing: only the user who started this process can write to the pipe."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - of asyncssh
        """Report the end of the connection."""
        self.lost.set()

    def session_requested(self) -> ProgramSession:
        """Open a session."""
        return ProgramSession(self._client, self._dialer, self._target, self._times)

    def connection_requested(
        self,
        dest_host: str,
        dest_port: int,
        orig_host: str,  # noqa: ARG002 - of asyncssh
        orig_port: int,  # noqa: ARG002 - of asyncssh
    ) -> Coroutine[Any, Any, PortSession]:
        """Open a connection to a port of the workload."""
        if dest_host not in LOCAL_HOSTS or not 0 < dest_port < 65536:
            say(f"{dest_host}:{dest_port} cannot be reached: only localhost of the workload can be forwarded.")
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED, "only localhost can be reached")
        return self._connect(dest_port)

    async def _connect(self, port: int) -> PortSession:
        try:
            stream = await self._dialer.connect(self._target.path(f"ports/{port}") + "&half_close=true")
        except (OSError, WebSocketException, TimeoutError) as error:
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, str(error)) from error
        session = PortSession(stream, say)
        self._ports.add(session)
        return session

    async def finished(self) -> None:
        """Wait until the last bytes to ports are sent."""
        await asyncio.gather(*(session.finished() for session in self._ports))

    def server_requested(self, listen_host: str, listen_port: int) -> bool:  # noqa: ARG002 - of asyncssh
        """Refuse remote forwarding."""
        say("Remote forwarding (-R) is not supported; forward a port of the workload with -L.")
        return False


def say(sentence: str) -> None:
    """Print a message to standard error, which ssh shows."""
    with contextlib.suppress(OSError):
        os.write(2, f"gpupool: {sentence}\r\n".encode())


def serve(host: str, key_file: str, times: SessionTimes = NO_TIMES) -> None:
    """Serve one SSH connection on standard input and output. Raises ``GpupoolError`` if the workload cannot be used."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for ssh, whose end closes our input
    endpoint = resolve_endpoint()
    with Client() as client:
        server = WorkloadServer(client, WebSocketDialer(endpoint), find_target(client, host), times)
        near, far = socket.socketpair()
        writer = _copy_standard_streams(near)
        asyncio.run(_serve(server, far, key_file))
        far.close()
        writer.join(LAST_OUTPUT_TIMEOUT_S)


async def _serve(server: WorkloadServer, sock: socket.socket, key_file: str) -> None:
    try:
        connection = await asyncssh.run_server(
            sock,
            server_factory=lambda: server,
            server_host_keys=[key_file],
            encoding=None,
            line_editor=False,
            agent_forwarding=False,
            x11_forwarding=False,
            gss_host=None,
            keepalive_interval=KEEPALIVE_S,
            login_timeout=0,
        )
    except (OSError, asyncssh.Error) as error:
        say(f"The SSH client did not connect: {error}.")
        return
    await server.lost.wait()
    await server.finished()
    await connection.wait_closed()


def _copy_standard_streams(near: socket.socket) -> threading.Thread:
    """Copy between the standard streams, which may be of any kind, and a socket, in threads that end with us.

    Return the thread that writes.
    """

    def read() -> None:
        with contextlib.suppress(OSError):
            while data := os.read(sys.stdin.fileno(), _PIECE):
                near.sendall(data)
        with contextlib.suppress(OSError):
            near.shutdown(socket.SHUT_WR)

    def write() -> None:
        with contextlib.suppress(OSError):
            while data := near.recv(_PIECE):
                view = memoryview(data)
                while view:
                    view = view[os.write(sys.stdout.fileno(), view) :]
        with contextlib.suppress(OSError):
            near.shutdown(socket.SHUT_RDWR)

    threading.Thread(target=read, daemon=True).start()
    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    return writer
