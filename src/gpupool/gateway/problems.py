"""Error answers of the gateway: problem documents (RFC 9457) with a stable code. Pure.

The member ``error`` repeats the message in the form that clients of OpenAI's API read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from gpupool.domain.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class Problem:
    """An error answer. ``retry_after_s`` becomes the field Retry-After."""

    status: HTTPStatus
    code: ErrorCode
    detail: str
    hint: str = ""
    retry_after_s: int | None = None

    def document(self) -> dict[str, Any]:
        """Return plain JSON values."""
        code = "model_not_found" if self.code is ErrorCode.UNKNOWN_MODEL else self.code.lower()
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        document = {
            "type": "about:blank",
            "title": self.status.phrase,
            "status": int(self.status),
            "code": str(self.code),
            "detail": self.detail,
            "hint": self.hint,
            "error": {"message": f"{self.detail} {self.hint}".strip(), "type": kind, "param": None, "code": code},
        }
        return document | ({"retry_after_s": self.retry_after_s} if self.retry_after_s is not None else {})

    def response(self, *, keep_alive: bool, head_only: bool = False) -> bytes:
        """Return the whole response; ``head_only`` for the method HEAD."""
        extra = []
        if self.retry_after_s is not None:
            extra.append(f"Retry-After: {self.retry_after_s}")
        if self.status is HTTPStatus.UNAUTHORIZED:
            extra.append("WWW-Authenticate: Bearer")
        body = json.dumps(self.document()).encode()
        return plain_response(
            self.status, body, "application/problem+json", extra, keep_alive=keep_alive, head_only=head_only
        )

    def event(self) -> bytes:
        """Return the problem as an event of a stream that has already begun."""
        return b"event: error\ndata: " + json.dumps(self.document()).encode() + b"\n\n"


def plain_response(
    status: HTTPStatus,
    body: bytes,
    media_type: str,
    extra: list[str],
    *,
    keep_alive: bool,
    head_only: bool = False,
) -> bytes:
    """Return a response of the gateway itself."""
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"Content-Type: {media_type}",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        *extra,
        *([] if keep_alive else ["Connection: close"]),
    ]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + (b"" if head_only else body)


def not_admitted(*, known: bool) -> Problem:
    """Return the answer to a request without a valid token; ``known``: its token is valid for other services."""
    if known:
        return Problem(
            HTTPStatus.FORBIDDEN,
            ErrorCode.FORBIDDEN,
            "This token may not use the service.",
            "Ask the owner of the service for access.",
        )
    return Problem(
        HTTPStatus.UNAUTHORIZED,
        ErrorCode.UNAUTHENTICATED,
        "This service needs a token.",
        "Send 'Authorization: Bearer TOKEN'; 'gpupool service token NAME' creates a token of the service.",
    )


def malformed(reason: str, status: HTTPStatus) -> Problem:
    """Return the answer to a request that is no valid HTTP."""
    return Problem(
        status, ErrorCode.MALFORMED_REQUEST, f"The request is not accepted: {reason}.", "Send valid HTTP/1.1."
    )


def unknown_service() -> Problem:
    """Return the answer for an address without a service."""
    return Problem(
        HTTPStatus.NOT_FOUND,
        ErrorCode.UNKNOWN_SERVICE,
        "There is no service at this address.",
        "'gpupool service list' shows the services that you may use.",
    )


def closed_port() -> Problem:
    """Return the answer for a port of a workload without a ticket."""
    return Problem(
        HTTPStatus.NOT_FOUND,
        ErrorCode.NOT_FOUND,
        "This port of a workload is not open.",
        "Open it again on the page of the workload, or with 'gpupool open'.",
    )


def foreign_origin() -> Problem:
    """Return the answer to a request that a page of another origin caused."""
    return Problem(
        HTTPStatus.FORBIDDEN,
        ErrorCode.FORBIDDEN,
        "The request came from a page of another origin.",
        "Open the address itself.",
    )


def unknown_path() -> Problem:
    """Return the answer for any other address."""
    return Problem(
        HTTPStatus.NOT_FOUND,
        ErrorCode.NOT_FOUND,
        "There is nothing at this address.",
        "Services are at /s/PROJECT/NAME/, and models at /v1/models.",
    )


def unknown_model(model: str) -> Problem:
    """Return the answer for a model that no usable service has."""
    return Problem(
        HTTPStatus.NOT_FOUND,
        ErrorCode.UNKNOWN_MODEL,
        f"No service that you may use has the model '{model[:100]}'.",
        "GET /v1/models lists them.",
    )


def no_model() -> Problem:
    """Return the answer to a call without the name of a model."""
    return Problem(
        HTTPStatus.BAD_REQUEST,
        ErrorCode.INVALID_REQUEST,
        "The body is not a JSON object with the text 'model'.",
        "GET /v1/models lists the models.",
    )


def method_not_allowed(method: bytes) -> Problem:
    """Return the answer to another method than ``method``."""
    return Problem(
        HTTPStatus.METHOD_NOT_ALLOWED,
        ErrorCode.INVALID_REQUEST,
        "This method is not possible here.",
        f"Use {method.decode()}.",
    )


def too_large(limit: int) -> Problem:
    """Return the answer to a body above the limit in bytes."""
    return Problem(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        ErrorCode.TOO_LARGE,
        f"The body has more than {limit} bytes.",
        "Send less; the owner of the service can raise its limit.",
    )


def overloaded(reason: str) -> Problem:
    """Return the answer while a limit of the gateway is reached."""
    return Problem(
        HTTPStatus.SERVICE_UNAVAILABLE,
        ErrorCode.OVERLOADED,
        f"The gateway cannot take the request: {reason}.",
        "Try again later.",
        5,
    )
