"""A sentence for the next page: what was done, or why not. It travels in a cookie and is shown once."""

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
_MOST_CHARACTERS = 600


@dataclass(frozen=True, slots=True)
class Notice:
    """What to say; ``code`` and ``hint`` are those of an error, empty for good news."""

    text: str
    code: str = ""
    hint: str = ""

    @classmethod
    def of_error(cls, error: GpupoolError) -> Notice:
        """The error's sentence, code and hint."""
        return cls(error.message, str(error.code), error.hint)


def put(response: Response, notice: Notice) -> None:
    """Have the next page say it."""
    short = [part[:_MOST_CHARACTERS] for part in (notice.text, notice.code, notice.hint)]
    value = base64.urlsafe_b64encode(json.dumps(short).encode()).decode()
    response.set_cookie(COOKIE, value, max_age=_LIFE_S, httponly=True, samesite="strict")


def take(request: Request) -> Notice | None:
    """What the page before wanted said; whatever else is in the cookie is nothing."""
    value = request.cookies.get(COOKIE)
    if value is None:
        return None
    try:
        parts = json.loads(base64.urlsafe_b64decode(value))
        text, code, hint = (str(part)[:_MOST_CHARACTERS] for part in parts)
    except (ValueError, TypeError, binascii.Error):
        return None
    return Notice(text, code, hint)


def drop(response: Response) -> None:
    """It has been said."""
    response.delete_cookie(COOKIE, httponly=True, samesite="strict")
