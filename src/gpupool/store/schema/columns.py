"""Helpers for the conversion of values to rows and back."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

Columns = dict[str, Any]
T = TypeVar("T")

_FIELDS: dict[type, tuple[str, ...]] = {}


def shallow(value: Any) -> Columns:
    """Return the fields of a slotted dataclass; ``asdict`` copies deeply, at fifty times the cost."""
    return {name: getattr(value, name) for name in field_names(type(value))}


def field_names(cls: type) -> tuple[str, ...]:
    """Return the names of a dataclass's fields."""
    if cls not in _FIELDS:
        _FIELDS[cls] = tuple(f.name for f in fields(cls))
    return _FIELDS[cls]


def build(cls: type[T], document: Columns, **read: Any) -> T:
    """Build a dataclass from a document without unknown keys, missing ones by default; ``read`` overrides it."""
    known = {name: document[name] for name in field_names(cls) if name in document}
    return cls(**{**known, **read})


def plain_text(text: str) -> str:
    """Return the text without lone surrogates and NUL, which no database accepts: for sentences, not for names."""
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    if not text.isascii():
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
