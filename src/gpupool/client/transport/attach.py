"""Attach to a program's terminal or pipes over the network, with frames in a WebSocket."""

from __future__ import annotations

import contextlib
import json
import select
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection, connect, unix_connect

from gpupool.client.transport.endpoint import Endpoint, TlsEndpoint
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.protocol import frames
from gpupool.unix_sockets import ShortPath

_CONNECT_TIMEOUT_S = 10.0
_PIECE_BYTES = 16 << 10  # a writable socket takes this at once: a third of its buffer is free then
_CLOSE_BASE = 4000  # the server refuses with 4000 + the HTTP status


class Attachment:
    """An open stream of frames to a running program. One thread may send while another receives."""

    def __init__(self, dialled: AbstractContextManager[ClientConnection]) -> None:
        self._exit = ExitStack()
        self._connection = self._exit.enter_context(dialled)

    def send(self, kind: int, payload: bytes = b"") -> None:
        """Send one frame (kinds are in ``gpupool.domain.protocol.frames``). Raises ``GpupoolError`` after the end."""
        data = memoryview(frames.encode(kind, payload))
        try:
            for at in range(0, len(data), _PIECE_BYTES):  # a frame may be split over messages
                self._wait_until_writable()
                self._connection.send(data[at : at + _PIECE_BYTES])
        except ConnectionClosed as closed:
            raise _closed(closed) from closed

    def _wait_until_writable(self) -> None:
        """Wait until the socket takes a piece at once.

        The connection receives nothing while it waits in ``send``, because it holds its lock. A program that echoes its
        input would then wait for its output to be read, and both sides would wait for ever.
        """
        poll = select.poll()
        with contextlib.suppress(ValueError):  # it is closed: ``send`` reports that
            poll.register(self._connection.socket.fileno(), select.POLLOUT)
            poll.poll()

    def hello(self, *, rows: int = 24, columns: int = 80, stdin: bool = True) -> None:
        """Send the first frame with the terminal's size; a client-bound program starts now."""
        hello = {"version": frames.VERSION, "rows": rows, "columns": columns, "stdin": stdin}
        self.send(frames.HELLO, json.dumps(hello).encode())

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """Yield frames ``(kind, payload)`` until the program's end. Raises ``GpupoolError`` if the pool rejects it."""
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
        """Close the connection; a client-bound program is stopped unless DETACH was sent."""
        self._exit.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def attach(endpoint: Endpoint, ref: str, index: int = 0) -> Attachment:
    """Attach to a replica.

    Raises ``GpupoolError``: POOL_UNREACHABLE, or from the first frame on the pool's error.
    """
    target = f"/v1/workloads/{quote(ref, safe='')}/attach?index={index}"
    try:
        return _connect(endpoint, target)
    except InvalidStatus as error:
        raise _refused(error.response.body or b"", error.response.status_code) from error
    except (OSError, WebSocketException) as error:
        raise GpupoolError(
            ErrorCode.POOL_UNREACHABLE, f"The pool does not answer: {error}.", "See 'gpupool status'."
        ) from error


def _connect(endpoint: Endpoint, target: str) -> Attachment:
    options: dict[str, Any] = {
        "open_timeout": _CONNECT_TIMEOUT_S,
        "max_size": 2 * frames.MAX_PAYLOAD_BYTES,
        "compression": None,
    }
    if isinstance(endpoint, TlsEndpoint):
        url = "wss" + endpoint.url.removeprefix("https") + target
        headers = {"authorization": f"Bearer {endpoint.token}"}
        options |= {"ssl": endpoint.context(), "additional_headers": headers, "proxy": None}
        return Attachment(connect(url, **options))
    with ShortPath(endpoint.path) as path:
        return Attachment(unix_connect(path, f"ws://gpupool{target}", **options))


def _refused(body: bytes | bytearray, status: int) -> GpupoolError:
    try:
        return GpupoolError.from_dict(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return GpupoolError(
            ErrorCode.POOL_UNREACHABLE, f"The server answered {status}.", "Check that the address is that of a pool."
        )


def _closed(closed: ConnectionClosed) -> GpupoolError:
    reason = closed.rcvd.reason if closed.rcvd is not None else ""
    code, _, message = reason.partition(": ")
    if code in ErrorCode.__members__:
        return GpupoolError(ErrorCode(code), message)
    return GpupoolError(ErrorCode.POOL_UNREACHABLE, "The connection to the program is closed.", "Attach again.")
