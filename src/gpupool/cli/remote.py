"""A pool over the network, behind the same small interface as one on this machine."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Callable
from typing import Any

from gpupool.cli.fast import notice
from gpupool.cli.fast.gate import RETURNS_S
from gpupool.cli.fast.http import Answer
from gpupool.client.elsewhere import asked_elsewhere
from gpupool.client.endpoint import TlsEndpoint
from gpupool.client.locate import Remote, connect_unix
from gpupool.client.opened import opened
from gpupool.client.ways import HeadConnection, Ways, watch
from gpupool.domain.errors import GpupoolError

CONNECT_TIMEOUT_S = 15.0
ONE_OF_SEVERAL_S = 5.0
OTHER_HEAD_S = 300.0  # how long a program waits for us where the machines of a cluster have to find another head
CHUNK_BYTES = 1 << 16


class RemoteExchange:
    """One request made by a thread; its descriptor becomes readable when the answer is there."""

    def __init__(self, gate: RemoteGate, method: str, target: str, body: object) -> None:
        self._ours, self._theirs = socket.socketpair()
        self._answer: Answer | None = None
        self._error: OSError | GpupoolError | None = None
        self._thread = threading.Thread(target=self._ask, args=(gate, method, target, body), daemon=True)
        self._thread.start()

    def _ask(self, gate: RemoteGate, method: str, target: str, body: object) -> None:
        try:
            self._answer = gate.call(method, target, body, timeout_s=60.0)
        except (OSError, GpupoolError) as error:
            self._error = error
        finally:
            self._theirs.close()

    def fileno(self) -> int:
        """The descriptor to poll for reading."""
        return self._ours.fileno()

    def close(self) -> None:
        """Stop listening for the answer."""
        self._ours.close()

    def receive(self) -> Answer | None:
        """The answer; raises ``OSError``."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._answer


class RemoteGate:
    """A pool behind TLS and a token: whichever of its heads leads, where several are known."""

    direct = False

    def __init__(self, place: Remote) -> None:
        self._token = place.token
        self.ways = Ways(TlsEndpoint.of(place))

    @property
    def url(self) -> str:
        """Of the head that is used at present."""
        return self.ways.current.url

    @property
    def returns_s(self) -> float:
        """How long a program is to wait for us where the way to it breaks."""
        return OTHER_HEAD_S if self.ways.several else RETURNS_S

    def connection(self, timeout_s: float) -> HeadConnection:
        """A fresh connection, for streams. Raises ``OSError``."""
        return self.ways.reach(timeout_s, notice.say)

    @property
    def headers(self) -> dict[str, str]:
        """What every request carries."""
        return {"Authorization": f"Bearer {self._token}"}

    def call(self, method: str, target: str, body: object = None, timeout_s: float = 30.0) -> Answer:
        """Ask and wait for the answer; raises ``OSError``."""
        return asked_elsewhere(lambda: self._call(method, target, body, timeout_s))

    def _call(self, method: str, target: str, body: object, timeout_s: float) -> Answer:
        connection = self.connection(timeout_s)
        try:
            payload = None if body is None else json.dumps(body)
            connection.request(method, target, payload, self.headers | {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = Answer(response.status, _json(response.read()))
            if answer.ok and self.ways.asks:
                self.ways.learn(lambda: self.ways.list_from(connection))
        except http.client.HTTPException as error:
            raise ConnectionAbortedError(str(error)) from error
        else:
            return answer
        finally:
            connection.close()

    def open(self, method: str, target: str, body: object = None) -> RemoteExchange:
        """Ask in the background."""
        return RemoteExchange(self, method, target, body)

    def attach(self, workload: str, index: int, path: str) -> socket.socket:
        """The frames of a program through a WebSocket, given out as an ordinary socket. Raises ``OSError``."""
        del path
        return self.relay(workload, index)

    def relay(self, workload: str, index: int) -> socket.socket:
        """As ``attach``: everything goes through the pool."""
        way = self.ways.current
        try:
            return self._relay(way, workload, index)
        except OSError:
            found = self.ways.search(way) if self.ways.several else None
            if found in {None, way}:
                raise
        return self._relay(self.ways.current, workload, index)

    def _relay(self, way: TlsEndpoint, workload: str, index: int) -> socket.socket:
        from websockets.sync.client import connect

        url = f"wss{way.url.removeprefix('https')}{_target(workload, index)}"
        several = {"open_timeout": ONE_OF_SEVERAL_S} if self.ways.several else {}

        def dial(options: dict[str, Any]) -> Any:
            options |= {"ssl": self.ways.context(way), "additional_headers": self.headers, "proxy": None} | several
            made = opened(connect(url, **options))
            if several:
                watch(made.socket)
            return made

        return _carried(dial)


def relay_here(api_socket: str, workload: str, index: int) -> socket.socket:
    """The frames of a program on another machine, through the pool's socket on this one. Raises ``OSError``."""
    from websockets.sync.client import connect

    sock = socket.socket(socket.AF_UNIX)
    try:
        connect_unix(sock, api_socket)
        return _carried(
            lambda options: opened(connect(f"ws://gpupool{_target(workload, index)}", sock=sock, **options))
        )
    except OSError:
        sock.close()
        raise


def _target(workload: str, index: int) -> str:
    return f"/v1/workloads/{workload}/attach?index={index}"


def _carried(connect: Callable[[dict[str, Any]], Any]) -> socket.socket:
    """A WebSocket, given out as an ordinary socket. Raises ``OSError``."""
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
    """From the socket to the WebSocket until either ends."""
    try:
        while data := sock.recv(CHUNK_BYTES):
            connection.send(data)
    except Exception:  # noqa: BLE001, S110 - whatever ends one direction ends the attachment, and the pump says so
        pass
    finally:
        connection.close()


def _downstream(connection: Any, sock: socket.socket) -> None:
    """From the WebSocket to the socket until either ends."""
    try:
        for message in connection:
            sock.sendall(message if isinstance(message, bytes) else message.encode())
    except Exception:  # noqa: BLE001, S110 - as above
        pass
    finally:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)  # a close alone says nothing while the other thread waits in a recv
        sock.close()


def _json(data: bytes) -> Any:
    try:
        return json.loads(data) if data.strip() else None
    except ValueError as error:
        raise ConnectionAbortedError("what answered is not a gpupool API") from error
