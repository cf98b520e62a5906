"""Notices: a message that the next page shows once, stored in a cookie."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from gpupool.domain.errors import GpupoolError

COOKIE = "gpupool_notice"
_LIFE_S = 60
_MAX_CHARACTERS = 600


@dataclass(frozen=True, slots=True)
class Notice:
    """A message; ``code`` and ``hint`` come from an error and are empty for a success."""

    text: str
    code: str = ""
    hint: str = ""

    @classmethod
    def of_error(cls, error: GpupoolError) -> Notice:
        """Return the notice of an error."""
        return cls(error.message, str(error.code), error.hint)


def put(response: Response, notice: Notice) -> None:
    """Store a notice for the next page."""
    short = [part[:_MAX_CHARACTERS] for part in (notice.text, notice.code, notice.hint)]
    value = base64.urlsafe_b64encode(json.dumps(short).encode()).decode()
    response.set_cookie(COOKIE, value, max_age=_LIFE_S, httponly=True, samesite="strict")


def take(request: Request) -> Notice | None:
    """Return the notice in the cookie, or None if there is none or it is invalid."""
    value = request.cookies.get(COOKIE)
    if value is None:
        return None
    try:
        parts = json.loads(base64.urlsafe_b64decode(value))
        text, code, hint = (str(part)[:_MAX_CHARACTERS] for part in parts)
    except (ValueError, TypeError, binascii.Error):
        return None
    return Notice(text, code, hint)


def drop(response: Response) -> None:
    """Delete the notice after it was shown."""
    response.delete_cookie(COOKIE, httponly=True, samesite="strict")
