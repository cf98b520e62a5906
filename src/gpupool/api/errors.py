"""Errors as every caller sees them: one body, the code's own HTTP status, and never a traceback."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Any

import structlog
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from gpupool.domain.errors import ErrorCode, GpupoolError

_log = structlog.get_logger(__name__)

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
    """The answer that carries an error, in ASCII: a message may quote text that is not Unicode."""
    body = json.dumps({"error": error.to_dict()})
    return Response(body, status or error.http_status, headers, media_type="application/json")


def unexpected(error: Exception, what: str) -> GpupoolError:
    """Log an error nobody foresaw under a new id, and give the caller's version of it, which names only the id."""
    incident = secrets.token_hex(4)
    _log.error("unexpected error", incident=incident, request=what, exc_info=error)
    return GpupoolError(
        ErrorCode.INTERNAL,
        f"The pool made a mistake (incident {incident}).",
        f"The control plane's log says more under {incident}; please report it.",
    )


async def _on_gpupool_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, GpupoolError)  # noqa: S101 - it is registered for this class alone
    return error_response(error, headers={"www-authenticate": "Bearer"} if error.http_status == 401 else None)


async def _on_invalid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - likewise
    return error_response(invalid(error.errors()))


async def _on_http_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - likewise
    code = _CODE_OF_STATUS.get(error.status_code, ErrorCode.INVALID_REQUEST)
    said = GpupoolError(code, _sentence(error), _hint(error.status_code))
    return error_response(said, error.status_code, error.headers)


def _sentence(error: HTTPException) -> str:
    if error.status_code == 404:
        return "There is nothing at this address."
    if error.status_code == 405:
        return "This address does not answer to that method."
    return f"{str(error.detail).rstrip('.')}."


def _hint(status: int) -> str:
    return "All addresses are listed in /v1/openapi.json." if status in {404, 405} else "See /v1/openapi.json."


def invalid(problems: Sequence[Any]) -> GpupoolError:
    """What is wrong with a request, the first problem in words: it names the field."""
    if not problems:
        return GpupoolError(ErrorCode.INVALID_REQUEST, "The request is not valid.", "See /v1/openapi.json.")
    first = problems[0]
    where = ".".join(str(part) for part in first.get("loc", ()) if part not in {"body", "query", "path"})
    message = str(first.get("msg", "is not valid")).removeprefix("Value error, ")
    sentence = f"{where[:200]}: {message[:300]}" if where else message[:300]
    more = f" ({len(problems) - 1} more)" if len(problems) > 1 else ""
    return GpupoolError(ErrorCode.INVALID_REQUEST, f"{sentence}{more}.", "See /v1/openapi.json for what is accepted.")
