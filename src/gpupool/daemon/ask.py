"""A few questions to a pool's API over its unix socket, with the standard library alone."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any

from gpupool.client.locate import Location, connect_unix
from gpupool.domain.errors import ErrorCode, GpupoolError

_ANSWER_LIMIT_BYTES = 16 << 20


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        connect_unix(self.sock, self._path)


def ask(
    location: Location, method: str, path: str, body: dict[str, Any] | None = None, timeout_s: float = 5.0
) -> dict[str, Any]:
    """The JSON answer to one request.

    Raises ``OSError`` or ``http.client.HTTPException`` when nobody answers, ``GpupoolError`` for the API's own errors.
    """
    connection = _UnixConnection(location.api_socket, timeout_s)
    try:
        text = None if body is None else json.dumps(body)
        connection.request(method, path, text, {"Content-Type": "application/json"} if text else {})
        response = connection.getresponse()
        data = _json(response.read(_ANSWER_LIMIT_BYTES))
    finally:
        connection.close()
    if response.status >= http.client.BAD_REQUEST:
        raise GpupoolError.from_dict(data.get("error", {}))
    return data


def healthy(location: Location, timeout_s: float = 2.0) -> bool:
    """Whether the pool's API answers that it is well."""
    try:
        return ask(location, "GET", "/v1/health", timeout_s=timeout_s).get("status") == "ok"
    except (OSError, http.client.HTTPException, GpupoolError):
        return False


def _json(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data or b"{}")
    except ValueError as error:
        raise GpupoolError(ErrorCode.INTERNAL, "The pool's answer is not JSON.", "Run 'gpupool doctor'.") from error
    return value if isinstance(value, dict) else {}
