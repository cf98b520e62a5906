"""A few questions to a pool's API over its unix socket, with the standard library alone."""

from __future__ import annotations

import http.client
import json
from typing import Any

from gpupool.client.locate import Location
from gpupool.client.unixhttp import UnixConnection
from gpupool.domain.errors import ErrorCode, GpupoolError

WAITING = "waiting"
_ANSWER_LIMIT_BYTES = 16 << 20


def ask(
    location: Location, method: str, path: str, body: dict[str, Any] | None = None, timeout_s: float = 5.0
) -> dict[str, Any]:
    """The JSON answer to one request.

    Raises ``OSError`` or ``http.client.HTTPException`` when nobody answers, ``GpupoolError`` for the API's own errors.
    """
    connection = UnixConnection(location.api_socket, timeout_s)
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
    """Whether the pool's API answers that it is well, or that it waits for its turn to lead."""
    return health(location, timeout_s).get("status") in {"ok", WAITING}


def health(location: Location, timeout_s: float = 2.0) -> dict[str, Any]:
    """What the pool's API says of its health; empty when it does not answer."""
    try:
        return ask(location, "GET", "/v1/health", timeout_s=timeout_s)
    except (OSError, http.client.HTTPException, GpupoolError):
        return {}


def _json(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data or b"{}")
    except ValueError as error:
        raise GpupoolError(ErrorCode.INTERNAL, "The pool's answer is not JSON.", "Run 'gpupool doctor'.") from error
    return value if isinstance(value, dict) else {}
