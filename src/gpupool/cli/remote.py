"""A pool over the network, behind the same small interface as one on this machine."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from typing import Any

from gpupool.cli.connections import remote_connection, tls_context
from gpupool.cli.fast.http import Answer
from gpupool.client.locate import Remote

CONNECT_TIMEOUT_S = 15.0
CHUNK_BYTES = 1 << 16


class RemoteExchange:
    """One request made by a thread; its descriptor becomes readable when the answer is there."""

    def __init__(self, gate: RemoteGate, method: str, target: str, body: object) -> None:
        self._ours, self._theirs = socket.socketpair()
        self._answer: Answer | None = None
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._ask, args=(gate, method, target, body), daemon=True)
        self._thread.start()

    def _ask(self, gate: RemoteGate, method: str, target: str, body: object) -> None:
        try:
            self._answer = gate.call(method, target, body, timeout_s=60.0)
        except OSError as error:
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
    """A pool behind TLS and a token."""

    direct = False

    def __init__(self, place: Remote) -> None:
        self._place = place

    def connection(self, timeout_s: float) -> http.client.HTTPConnection:
        """A fresh connection, for streams."""
        return remote_connection(self._place, timeout_s)

    @property
    def headers(self) -> dict[str, str]:
        """What every request carries."""
        return {"Authorization": f"Bearer {self._place.token}"}

    def call(self, method: str, target: str, body: object = None, timeout_s: float = 30.0) -> Answer:
        """Ask and wait for the answer; raises ``OSError``."""
        connection = self.connection(timeout_s)
        try:
            payload = None if body is None else json.dumps(body)
            connection.request(method, target, payload, self.headers | {"Content-Type": "application/json"})
            response = connection.getresponse()
            return Answer(response.status, _json(response.read()))
        except http.client.HTTPException as error:
            raise ConnectionAbortedError(str(error)) from error
        finally:
            connection.close()

    def open(self, method: str, target: str, body: object = None) -> RemoteExchange:
        """Ask in the background."""
        return RemoteExchange(self, method, target, body)

    def attach(self, workload: str, index: int, path: str) -> socket.socket:
        """The frames of a program through a WebSocket, given out as an ordinary socket. Raises ``OSError``."""
        del path
        from websockets.exceptions import WebSocketException
        from websockets.sync.client import connect

        url = f"wss{self._place.url.removeprefix('https')}/v1/workloads/{workload}/attach?index={index}"
        try:
            connection = connect(
                url,
                ssl=tls_context(self._place),
                additional_headers=self.headers,
                open_timeout=CONNECT_TIMEOUT_S,
                max_size=None,
                compression=None,
            )
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
        sock.close()


def _json(data: bytes) -> Any:
    try:
        return json.loads(data) if data.strip() else None
    except ValueError as error:
        raise ConnectionAbortedError("what answered is not a gpupool API") from error
