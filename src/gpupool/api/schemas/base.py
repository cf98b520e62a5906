"""What all of them share."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

MAX_PAGE = 1000
MAX_REPLICAS_SHOWN = 1000


class View(BaseModel):
    """Base of everything the API answers; unknown fields of a newer server are ignored by an older client."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Body(BaseModel):
    """Base of everything the API accepts; an unknown field is an error, since it is most often a misspelt one."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ErrorDetail(View):
    """What went wrong: a stable code, one sentence, and what to do next (may be empty)."""

    code: str
    message: str
    hint: str = ""


class ErrorBody(View):
    """The body of every answer that is not a success."""

    error: ErrorDetail
