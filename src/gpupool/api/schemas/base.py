"""Base class of all schemas."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Self

from pydantic import BaseModel, ConfigDict

MAX_PAGE = 1000
MAX_REPLICAS_SHOWN = 1000


class View(BaseModel):
    """Base of all response models; an older client ignores unknown fields of a newer server."""

    model_config = ConfigDict(frozen=True, extra="ignore", from_attributes=True)

    @classmethod
    def of(cls, source: object, **others: Any) -> Self:
        """Return the view of ``source``: its attributes with the names of the fields, and ``others``."""
        return cls(**cls._values(source, others))

    @classmethod
    def unchecked(cls, source: object, **others: Any) -> Self:
        """Return the same view without validation, for values that already have the types of the fields."""
        names, seen = _field_names(cls)
        values = {name: others[name] if name in others else getattr(source, name) for name in names}
        view = cls.__new__(cls)  # as model_construct, which looks for aliases and defaults in every view
        object.__setattr__(view, "__dict__", values)
        object.__setattr__(view, "__pydantic_fields_set__", seen)  # the same for all: views do not change
        object.__setattr__(view, "__pydantic_extra__", None)
        object.__setattr__(view, "__pydantic_private__", None)
        return view

    @classmethod
    def _values(cls, source: object, others: dict[str, Any]) -> dict[str, Any]:
        return {name: getattr(source, name) for name in cls.model_fields if name not in others} | others


@lru_cache(maxsize=256)
def _field_names(model: type[BaseModel]) -> tuple[tuple[str, ...], set[str]]:
    """Return the names of a model's fields in their order, and as a set."""
    names = tuple(model.model_fields)
    return names, set(names)


class PageView(View):
    """Base of lists with pages; ``next_cursor`` is the ``cursor`` of the next page, null on the last one."""

    next_cursor: str | None = None


class Body(BaseModel):
    """Base of all request models; an unknown field is an error, because most are misspelt."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ErrorDetail(View):
    """An error: a stable code, one sentence, and the next step (may be empty)."""

    code: str
    message: str
    hint: str = ""


class ErrorBody(View):
    """The body of every answer that is not a success: a problem document (RFC 9457) with our code and hint."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    hint: str = ""
    error: ErrorDetail
