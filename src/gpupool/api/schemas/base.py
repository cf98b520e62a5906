"""Base class of all schemas."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict

MAX_PAGE = 1000
MAX_REPLICAS_SHOWN = 1000


class View(BaseModel):
    """Base of everything the API answers; unknown fields of a newer server are ignored by an older client."""

    model_config = ConfigDict(frozen=True, extra="ignore", from_attributes=True)

    @classmethod
    def of(cls, source: object, **others: Any) -> Self:
        """Return the view of ``source``: its attributes with the names of the fields, and ``others``."""
        return cls(**cls._values(source, others))

    @classmethod
    def unchecked(cls, source: object, **others: Any) -> Self:
        """Do the same without validation, for values that have the types of the fields already."""
        return cls.model_construct(**cls._values(source, others))

    @classmethod
    def _values(cls, source: object, others: dict[str, Any]) -> dict[str, Any]:
        return {name: getattr(source, name) for name in cls.model_fields if name not in others} | others


class Body(BaseModel):
    """Base of everything the API accepts; an unknown field is an error, since it is most often a misspelt one."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ErrorDetail(View):
    """An error: a stable code, one sentence, and the next step (may be empty)."""

    code: str
    message: str
    hint: str = ""


class ErrorBody(View):
    """The body of every answer that is not a success."""

    error: ErrorDetail
