"""Pages of lists that are in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

from fastapi import Depends

from gpupool.api.deps import Cursor, Limit, decode_offset, encode_offset

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page:
    """The wanted part of a list; without ``limit`` everything from the cursor on."""

    limit: Limit | None = None
    cursor: Cursor | None = None

    def cut(self, rows: Sequence[T]) -> tuple[Sequence[T], str | None]:
        """Return the rows of this page, and the cursor of the next one."""
        start = decode_offset(self.cursor) if self.cursor else 0
        if self.limit is None:
            return rows[start:], None
        end = start + self.limit
        return rows[start:end], encode_offset(end) if end < len(rows) else None


Paged = Annotated[Page, Depends()]


def matches(wanted: object, value: object) -> bool:
    """Return whether a filter that may be omitted (None) accepts a value."""
    return wanted is None or value == wanted


def contains(wanted: str | None, text: str) -> bool:
    """Return whether a text has a part, without regard to case."""
    return wanted is None or wanted.casefold() in text.casefold()
