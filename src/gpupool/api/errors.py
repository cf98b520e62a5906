"""Errors in the form that callers get: one body, the HTTP status of the code, and never a traceback."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

import structlog
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from gpupool.api.deps import check_caller
from gpupool.api.problems import PROBLEM_JSON, problem_body
from gpupool.api.schemas import name_patterns
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.services.log_rate_limit import LogLimit

RETRY_AFTER_S = {ErrorCode.OVERLOADED: "5", ErrorCode.TOO_MANY_ATTEMPTS: "60", ErrorCode.RATE_LIMITED: "1"}

_log = structlog.get_logger(__name__)
_log_limit = LogLimit(time.monotonic)

_CODE_OF_STATUS = {
    400: ErrorCode.INVALID_REQUEST,
    401: ErrorCode.UNAUTHENTICATED,
    403: ErrorCode.FORBIDDEN,
    404: ErrorCode.NOT_FOUND,
    405: ErrorCode.INVALID_REQUEST,
    413: ErrorCode.TOO_LARGE,
    415: ErrorCode.INVALID_REQUEST,
}


def install(app: FastAPI) -> None:
    """Make ``app`` answer every error with the error body."""
    app.add_exception_handler(GpupoolError, _on_gpupool_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http_error)


def error_response(error: GpupoolError, status: int | None = None, headers: Any = None) -> Response:
    """Return the response of an error: a problem document."""
    return Response(problem_body(error, status), status or error.http_status, headers, media_type=PROBLEM_JSON)


def unexpected(error: Exception, what: str) -> GpupoolError:
    """Log an unexpected error under a new id, and return an error for the caller that names only the id."""
    incident = secrets.token_hex(4)
    kind = type(error).__name__
    if _log_limit.allows(kind):
        left_out = _log_limit.take_left_out(kind)
        _log.error("unexpected error", incident=incident, request=what, left_out=left_out, exc_info=error)
    return GpupoolError(
        ErrorCode.INTERNAL,
        f"Internal error (incident {incident}).",
        f"The log of the control plane has details under {incident}; report it.",
    )


async def _on_gpupool_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, GpupoolError)  # noqa: S101 - the handler is registered for this class only
    return error_response(error, headers=_headers(error))


def _headers(error: GpupoolError) -> dict[str, str]:
    if error.http_status == 401:
        return {"www-authenticate": "Bearer"}
    if error.code in RETRY_AFTER_S:
        return {"retry-after": RETRY_AFTER_S[error.code], "connection": "close"}
    return {}


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - the handler is registered for this class only
    try:
        await check_caller(request)
    except GpupoolError as refusal:
        return await _on_gpupool_error(request, refusal)
    return error_response(invalid(error.errors()))


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - the handler is registered for this class only
    if error.status_code == 404 and b"%2f" in request.scope.get("raw_path", b"").lower():
        return error_response(GpupoolError(ErrorCode.NOT_FOUND, "No name has a '/'.", "Check the name."))
    code = _CODE_OF_STATUS.get(error.status_code, ErrorCode.INVALID_REQUEST)
    said = GpupoolError(code, _sentence(error), _hint(error.status_code))
    return error_response(said, error.status_code, error.headers)


def _sentence(error: HTTPException) -> str:
    if error.status_code == 404:
        return "This path does not exist."
    if error.status_code == 405:
        return "This path does not support that method."
    return f"{str(error.detail).rstrip('.')}."


def _hint(status: int) -> str:
    return "All paths are listed in /v1/openapi.json." if status in {404, 405} else "See /v1/openapi.json."


def invalid(problems: Sequence[Any]) -> GpupoolError:
    """Return the error of the first invalid field of a request."""
    if not problems:
        return GpupoolError(ErrorCode.INVALID_REQUEST, "The request is not valid.", "See /v1/openapi.json.")
    first = problems[0]
    where = ".".join(str(part) for part in first.get("loc", ()) if part not in {"body", "query", "path"})
    hint = name_patterns.HINTS.get(first.get("ctx", {}).get("pattern", ""))
    if hint is not None:
        sentence = f"{where[:200]}: '{str(first.get('input'))[:80]}' cannot be used."
        return GpupoolError(ErrorCode.INVALID_REQUEST, sentence, hint)
    message = str(first.get("msg", "is not valid")).removeprefix("Value error, ")
    message = message[:300].rstrip(".")
    sentence = f"{where[:200]}: {message}" if where else message
    more = f" ({len(problems) - 1} more)" if len(problems) > 1 else ""
    return GpupoolError(ErrorCode.INVALID_REQUEST, f"{sentence}{more}.", "The fields are in /v1/openapi.json.")
