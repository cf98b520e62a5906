"""Requests and streams over connections of the standard library. Not on the fast path of the command line."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gpupool import unix_sockets
from gpupool.client.transport.http import Answer
from gpupool.domain.errors import ErrorCode, GpupoolError

OCTETS = "application/octet-stream"
MAX_LINE_BYTES = 4 << 20
PIECE_BYTES = 1 << 18


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("gpupool", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket. Raises ``OSError`` when no process listens."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        unix_sockets.connect(self.sock, self._path)


class StreamEvent(NamedTuple):
    """One server-sent event; ``data`` is its JSON."""

    id: str
    event: str
    data: Any


def ask(
    connection: http.client.HTTPConnection,
    method: str,
    target: str,
    body: object = None,
    headers: Mapping[str, str] | None = None,
    *,
    limit: int | None = None,
) -> Answer:
    """Send a request and return its answer. A body that is not bytes is sent as JSON.

    ``limit`` is the most bytes to read. The connection can be used again unless it is closed. Raises ``OSError`` when
    there is no answer, or a successful one that is not JSON.
    """
    payload = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    response = open_response(
        connection, method, target, payload, {"Content-Type": "application/json"} | dict(headers or {})
    )
    try:
        return read_answer(response, limit)
    except http.client.HTTPException as error:
        raise ConnectionAbortedError(str(error)) from error


def open_response(
    connection: http.client.HTTPConnection,
    method: str,
    target: str,
    payload: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> http.client.HTTPResponse:
    """Send a request and return its response, whose body is not read yet. Raises ``OSError``."""
    try:
        connection.request(method, target, payload, dict(headers or {}))
        return connection.getresponse()
    except http.client.HTTPException as error:
        if isinstance(error, OSError):
            raise
        raise ConnectionAbortedError(str(error)) from error


def read_answer(response: http.client.HTTPResponse, limit: int | None = None) -> Answer:
    """Read a whole response. Raises ``OSError`` and ``HTTPException``."""
    data = response.read(limit)
    try:
        return Answer(response.status, json.loads(data) if data.strip() else None)
    except ValueError as error:
        if response.status < http.client.BAD_REQUEST:
            raise ConnectionAbortedError("the answer is not from a gpupool API") from error
        return Answer(response.status, None)


def read_events(response: http.client.HTTPResponse) -> Iterator[StreamEvent]:
    """Yield the events of a stream until it ends. Raises ``OSError`` and ``HTTPException`` when it breaks."""
    fields: dict[str, str] = {}
    while line := response.readline(MAX_LINE_BYTES):
        text = line.decode(errors="replace").rstrip("\r\n")
        if not text:
            if "data" in fields:
                yield StreamEvent(fields.get("id", ""), fields.get("event", ""), json.loads(fields["data"]))
            fields = {}
            continue
        name, _, value = text.partition(":")
        value = value.removeprefix(" ")
        fields[name] = f"{fields[name]}\n{value}" if name == "data" and name in fields else value
    if response.chunked and getattr(response, "chunk_left", None) is not None:
        raise ConnectionAbortedError("the stream was cut off")  # the final empty chunk did not arrive


def read_octets(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """Yield the body as it arrives. Raises ``GpupoolError(UNSUPPORTED)`` for another content type."""
    if response.headers.get_content_type() != OCTETS:
        raise GpupoolError(
            ErrorCode.UNSUPPORTED, "The pool is older than this client.", "Install the same version on both."
        )
    while piece := response.read1(PIECE_BYTES):
        yield piece
