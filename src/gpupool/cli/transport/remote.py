"""Connections to a pool over the network, with the interface of ``LocalTransport``."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any

from gpupool import unix_sockets
from gpupool.cli.terminal import say
from gpupool.client.discovery import Remote
from gpupool.client.transport.endpoint import TlsEndpoint
from gpupool.client.transport.failover import HeadConnection, HeadSelector, enable_keepalive
from gpupool.client.transport.http import REATTACH_TIMEOUT_S, Answer
from gpupool.client.transport.requests import ask
from gpupool.client.transport.retries import retry_on_leader
from gpupool.domain.errors import GpupoolError

CONNECT_TIMEOUT_S = 15.0
CONNECT_WITH_FAILOVER_TIMEOUT_S = 5.0  # for the head that led last; the leader that is found has the longer one
FAILOVER_TIMEOUT_S = 300.0  # for programs in a cluster with several heads
CHUNK_BYTES = 1 << 16


class RemoteExchange:
    """One request in a thread; its descriptor becomes readable when the answer is there."""

    def __init__(self, transport: RemoteTransport, method: str, target: str, body: object) -> None:
        self._ours, self._theirs = socket.socketpair()
        self._answer: Answer | None = None
        self._error: OSError | GpupoolError | None = None
        self._thread = threading.Thread(target=self._ask, args=(transport, method, target, body), daemon=True)
        self._thread.start()

    def _ask(self, transport: RemoteTransport, method: str, target: str, body: object) -> None:
        try:
            self._answer = transport.call(method, target, body, timeout_s=60.0)
        except (OSError, GpupoolError) as error:
            self._error = error
        finally:
            self._theirs.close()

    def fileno(self) -> int:
        """Return the descriptor to poll for reading."""
        return self._ours.fileno()

    def close(self) -> None:
        """Stop waiting for the answer."""
        self._ours.close()

    def receive(self) -> Answer | None:
        """Return the answer. Raises ``OSError``."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._answer


class RemoteTransport:
    """A pool behind TLS and a token. Of several known heads it uses the one that leads."""

    direct = False

    def __init__(self, place: Remote) -> None:
        self._token = place.token
        self.heads = HeadSelector(TlsEndpoint.from_remote(place))

    @property
    def url(self) -> str:
        """Return the URL of the head in use."""
        return self.heads.current.url

    @property
    def reattach_timeout_s(self) -> float:
        """Return how long a program waits for its client after the connection breaks."""
        return FAILOVER_TIMEOUT_S if self.heads.has_alternatives else REATTACH_TIMEOUT_S

    def watch(self) -> None:
        """Return None: the pool's processes cannot be watched from here."""

    def connection(self, timeout_s: float) -> HeadConnection:
        """Return a new connection, for streams. Raises ``OSError``."""
        return self.heads.connect_to_leader(timeout_s, say)

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers of every request."""
        return {"Authorization": f"Bearer {self._token}"}

    def call(self, method: str, target: str, body: object = None, timeout_s: float = 30.0) -> Answer:
        """Send a request and wait for the answer. Raises ``OSError``."""
        return retry_on_leader(lambda: self._call(method, target, body, timeout_s))

    def _call(self, method: str, target: str, body: object, timeout_s: float) -> Answer:
        connection = self.connection(timeout_s)
        try:
            answer = ask(connection, method, target, body, self.headers)
            if answer.ok and self.heads.needs_refresh:
                self.heads.refresh_heads(lambda: self.heads.fetch_heads(connection))
            return answer
        finally:
            connection.close()

    def open(self, method: str, target: str, body: object = None) -> RemoteExchange:
        """Send a request in the background."""
        return RemoteExchange(self, method, target, body)

    def attach(self, workload: str, index: int, path: str) -> socket.socket:
        """Return a program's frames from a WebSocket as an ordinary socket. Raises ``OSError``."""
        del path
        return self.relay(workload, index)

    def relay(self, workload: str, index: int) -> socket.socket:
        """Return the same as ``attach``: all frames go through the pool."""
        endpoint = self.heads.current
        try:
            timeout_s = CONNECT_WITH_FAILOVER_TIMEOUT_S if self.heads.has_alternatives else CONNECT_TIMEOUT_S
            return self._relay(endpoint, workload, index, timeout_s)
        except OSError:
            found = self.heads.find_leader(endpoint) if self.heads.has_alternatives else None
            if found in {None, endpoint}:
                raise
        return self._relay(self.heads.current, workload, index, CONNECT_TIMEOUT_S)

    def _relay(self, endpoint: TlsEndpoint, workload: str, index: int, timeout_s: float) -> socket.socket:
        from websockets.sync.client import connect

        url = f"wss{endpoint.url.removeprefix('https')}{_target(workload, index)}"

        def dial(options: dict[str, Any]) -> Any:
            options |= {
                "ssl": self.heads.context(endpoint),
                "additional_headers": self.headers,
                "proxy": None,
                "open_timeout": timeout_s,
            }
            made = contextlib.ExitStack().enter_context(connect(url, **options))
            if self.heads.has_alternatives:
                enable_keepalive(made.socket)
            return made

        return _as_socket(dial)


def relay_local(api_socket: str, workload: str, index: int) -> socket.socket:
    """Return the frames of a program on another machine, through the local pool's socket. Raises ``OSError``."""
    from websockets.sync.client import connect

    sock = socket.socket(socket.AF_UNIX)
    try:
        unix_sockets.connect(sock, api_socket)
        return _as_socket(
            lambda options: contextlib.ExitStack().enter_context(
                connect(f"ws://gpupool{_target(workload, index)}", sock=sock, **options)
            )
        )
    except OSError:
        sock.close()
        raise


def _target(workload: str, index: int) -> str:
    return f"/v1/workloads/{workload}/attach?index={index}"


def _as_socket(connect: Callable[[dict[str, Any]], Any]) -> socket.socket:
    """Return a WebSocket as an ordinary socket. Raises ``OSError``."""
    from websockets.exceptions import WebSocketException

    try:
        connection = connect({"open_timeout": CONNECT_TIMEOUT_S, "max_size": None, "compression": None})
    except WebSocketException as error:
        raise ConnectionRefusedError(str(error)) from error
    ours, theirs = socket.socketpair()
    for work in (_upstream, _downstream):
        threading.Thread(target=work, args=(connection, theirs), daemon=True).start()
    return ours


def _upstream(connection: Any, sock: socket.socket) -> None:
    """Copy from the socket to the WebSocket until either ends."""
    try:
        while data := sock.recv(CHUNK_BYTES):
            connection.send(data)
    except Exception:  # noqa: BLE001, S110 - ends the attachment, which reports it
        pass
    finally:
        connection.close()


def _downstream(connection: Any, sock: socket.socket) -> None:
    """Copy from the WebSocket to the socket until either ends."""
    try:
        for message in connection:
            sock.sendall(message if isinstance(message, bytes) else message.encode())
    except Exception:  # noqa: BLE001, S110 - as above
        pass
    finally:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)  # close alone does not wake the other thread's recv
        sock.close()
