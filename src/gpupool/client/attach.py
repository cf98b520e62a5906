"""A program's terminal or pipes over the network: frames over a WebSocket."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection, connect, unix_connect

from gpupool.client.endpoint import Endpoint, TlsEndpoint
from gpupool.client.opened import opened
from gpupool.domain import frames
from gpupool.domain.errors import ErrorCode, GpupoolError

_CONNECT_S = 10.0
_CLOSE_BASE = 4000  # the server refuses with 4000 + the HTTP status


class Attachment:
    """An open stream of frames to a running program. One thread may send while another receives."""

    def __init__(self, dialled: AbstractContextManager[ClientConnection]) -> None:
        self._exit = ExitStack()
        self._connection = self._exit.enter_context(dialled)

    def send(self, kind: int, payload: bytes = b"") -> None:
        """Send one frame (kinds are in ``gpupool.domain.frames``). Raises ``GpupoolError`` when it is over."""
        try:
            self._connection.send(frames.encode(kind, payload))
        except ConnectionClosed as closed:
            raise _closed(closed) from closed

    def hello(self, *, rows: int = 24, columns: int = 80, stdin: bool = True) -> None:
        """The first frame: who is there; a client-bound program starts now."""
        said = {"version": frames.VERSION, "rows": rows, "columns": columns, "stdin": stdin}
        self.send(frames.HELLO, json.dumps(said).encode())

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """Frames ``(kind, payload)`` until the program's end. Raises ``GpupoolError`` when the pool refuses."""
        buffer = bytearray()
        while True:
            try:
                message = self._connection.recv(decode=False)
            except ConnectionClosed as closed:
                if closed.rcvd is not None and closed.rcvd.code >= _CLOSE_BASE:
                    raise _closed(closed) from closed
                return
            buffer += message
            yield from frames.decode(buffer)

    def close(self) -> None:
        """Hang up; a client-bound program is stopped unless DETACH was sent."""
        self._exit.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def attach(endpoint: Endpoint, ref: str, index: int = 0) -> Attachment:
    """Attach to a replica. Raises ``GpupoolError`` (POOL_UNREACHABLE, or, from the first frame on, what it refuses)."""
    target = f"/v1/workloads/{quote(ref, safe='')}/attach?index={index}"
    try:
        return _connect(endpoint, target)
    except InvalidStatus as error:
        raise _refused(error.response.body or b"", error.response.status_code) from error
    except (OSError, WebSocketException) as error:
        raise GpupoolError(
            ErrorCode.POOL_UNREACHABLE, f"The pool does not answer: {error}.", "Look with 'gpupool status'."
        ) from error


def _connect(endpoint: Endpoint, target: str) -> Attachment:
    options: dict[str, Any] = {"open_timeout": _CONNECT_S, "max_size": 2 * frames.LIMIT, "compression": None}
    if isinstance(endpoint, TlsEndpoint):
        url = "wss" + endpoint.url.removeprefix("https") + target
        headers = {"authorization": f"Bearer {endpoint.token}"}
        options |= {"ssl": endpoint.context(), "additional_headers": headers, "proxy": None}
        return Attachment(opened(connect(url, **options)))
    path, folder = endpoint.connectable()
    try:
        return Attachment(opened(unix_connect(path, f"ws://gpupool{target}", **options)))
    finally:
        if folder is not None:
            os.close(folder)


def _refused(body: bytes | bytearray, status: int) -> GpupoolError:
    try:
        return GpupoolError.from_dict(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return GpupoolError(ErrorCode.POOL_UNREACHABLE, f"The server answered {status}.", "Is it a pool?")


def _closed(closed: ConnectionClosed) -> GpupoolError:
    reason = closed.rcvd.reason if closed.rcvd is not None else ""
    code, _, message = reason.partition(": ")
    if code in ErrorCode.__members__:
        return GpupoolError(ErrorCode(code), message)
    return GpupoolError(ErrorCode.POOL_UNREACHABLE, "The connection to the program is over.", "Attach again.")
