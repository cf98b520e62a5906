"""What all values have in common on their way to rows and back."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

Columns = dict[str, Any]
T = TypeVar("T")

_FIELDS: dict[type, tuple[str, ...]] = {}


def shallow(value: Any) -> Columns:
    """The fields of a slotted dataclass; ``asdict`` would copy deeply, at fifty times the cost."""
    return {name: getattr(value, name) for name in field_names(type(value))}


def field_names(cls: type) -> tuple[str, ...]:
    """The names of a dataclass's fields."""
    if cls not in _FIELDS:
        _FIELDS[cls] = tuple(f.name for f in fields(cls))
    return _FIELDS[cls]


def build(cls: type[T], document: Columns, **read: Any) -> T:
    """A dataclass from a document, strange keys left out and missing ones by default; ``read`` goes before it."""
    known = {name: document[name] for name in field_names(cls) if name in document}
    return cls(**{**known, **read})


def plain_text(text: str) -> str:
    """The text with what no database takes (half of a surrogate pair, NUL) replaced: for sentences, not for names."""
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    if not text.isascii():
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
