"""An undo log over NumPy arrays: try a move, look at the result, take it back exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[Any]
_Op = tuple[Column | None, int, Any]


def _ignore(_row: int) -> None:
    """Nobody needs to know which rows came back."""


class UndoLog:
    """Additions to rows of integer arrays, in order, so that they can be subtracted again in reverse.

    Integers make the way back exact. An array that is in the log must not be replaced by another one before
    ``commit`` or ``rollback(0)``. ``on_row`` is told of every row that a rollback changed back.
    """

    __slots__ = ("_on_row", "_ops")

    def __init__(self, on_row: Callable[[int], None] = _ignore) -> None:
        self._ops: list[_Op] = []
        self._on_row = on_row

    def __len__(self) -> int:
        return len(self._ops)

    def add(self, column: Column, row: int, delta: npt.ArrayLike) -> None:
        """Do ``column[row] += delta`` and remember it; ``delta`` is a number, or a vector for a 2-D column."""
        column[row] += delta
        self._ops.append((column, row, delta))

    def touch(self, row: int) -> None:
        """Remember that whoever follows this row must hear of it when it is changed back."""
        self._ops.append((None, row, 0))

    def checkpoint(self) -> int:
        """A place to come back to."""
        return len(self._ops)

    def rollback(self, checkpoint: int) -> None:
        """Undo everything since ``checkpoint``, latest first. Raises ``ValueError`` for a place not reached yet."""
        if not 0 <= checkpoint <= len(self._ops):
            raise ValueError(f"checkpoint {checkpoint} is not within the {len(self._ops)} steps of the log")
        while len(self._ops) > checkpoint:
            column, row, delta = self._ops.pop()
            if column is None:
                self._on_row(row)
            else:
                column[row] -= delta

    def commit(self) -> None:
        """Keep everything done so far and forget how to undo it."""
        self._ops.clear()


def grown(column: Column, shape: tuple[int, ...], fill: int = 0) -> Column:
    """A copy of ``column`` in the corner of a larger array of ``shape``, the rest filled with ``fill``."""
    larger = np.full(shape, fill, dtype=column.dtype)
    larger[tuple(slice(0, n) for n in column.shape)] = column
    return larger
