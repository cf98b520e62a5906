"""Problem documents (RFC 9457): the body of every answer of the API that is not a success."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from gpupool.domain.errors import GpupoolError

PROBLEM_JSON = "application/problem+json"
TYPE_PREFIX = "/reference#"  # the reference page of the dashboard describes each code


def problem_document(error: GpupoolError, status: int) -> dict[str, Any]:
    """Return the document of an error; ``error`` repeats the code for clients that do not know RFC 9457."""
    return {
        "type": f"{TYPE_PREFIX}{error.code}",
        "title": str(error.code).replace("_", " ").capitalize(),
        "status": status,
        "detail": error.message,
        "code": str(error.code),
        "hint": error.hint,
        "error": error.to_dict(),
    }


def problem_body(error: GpupoolError, status: int | None = None) -> bytes:
    """Return the document in ASCII, because a message can quote text that is not Unicode."""
    return json.dumps(problem_document(error, status or error.http_status)).encode("ascii")


def raw_problem(error: GpupoolError, headers: Mapping[str, str]) -> bytes:
    """Return a whole HTTP/1.1 response, for connections that never reach the application."""
    status, body = error.http_status, problem_body(error)
    fields = {"content-type": PROBLEM_JSON, "content-length": str(len(body)), **headers, "connection": "close"}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{head}\r\n".encode("ascii") + body
