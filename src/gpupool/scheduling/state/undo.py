"""An undo log over NumPy arrays: try a change, inspect the result, revert it exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[Any]
_Op = tuple[Column | None, int | npt.NDArray[np.int64], Any]


def _ignore(_row: int) -> None:
    """Ignore the row: nobody needs the notification."""


class UndoLog:
    """Additions to rows of integer arrays, in order, so that they can be reverted in reverse.

    Integers make this exact. An array in the log must not be replaced before ``commit`` or ``rollback(0)``. ``on_row``
    is called with every row that a rollback restores.
    """

    __slots__ = ("_on_row", "_ops")

    def __init__(self, on_row: Callable[[int], None] = _ignore) -> None:
        self._ops: list[_Op] = []
        self._on_row = on_row

    def __len__(self) -> int:
        return len(self._ops)

    def add(self, column: Column, row: int, delta: npt.ArrayLike) -> None:
        """Add ``delta`` to ``column[row]`` and record it; ``delta`` is a number, or a vector for a 2-D column."""
        column[row] += delta
        self._ops.append((column, row, delta))

    def add_each(self, column: Column, rows: npt.NDArray[np.int64], deltas: Column) -> None:
        """Add each of ``deltas`` to its row of ``column`` and record all as one step; a row may occur repeatedly."""
        np.add.at(column, rows, deltas)
        self._ops.append((column, rows, deltas))

    def touch(self, row: int) -> None:
        """Record that ``on_row`` must be called for this row on rollback."""
        self._ops.append((None, row, 0))

    def checkpoint(self) -> int:
        """Return a position for ``rollback``."""
        return len(self._ops)

    def rollback(self, checkpoint: int) -> None:
        """Revert everything since ``checkpoint``, latest first. Raise ``ValueError`` for an unknown position."""
        if not 0 <= checkpoint <= len(self._ops):
            raise ValueError(f"checkpoint {checkpoint} is not within the {len(self._ops)} steps of the log")
        while len(self._ops) > checkpoint:
            column, row, delta = self._ops.pop()
            if column is None:
                self._on_row(int(row))
            elif isinstance(row, np.ndarray):
                np.subtract.at(column, row, delta)
            else:
                column[row] -= delta

    def commit(self) -> None:
        """Keep all changes and clear the log."""
        self._ops.clear()


def grown(column: Column, shape: tuple[int, ...], fill: int = 0) -> Column:
    """Return a copy of ``column`` in the corner of a larger array of ``shape``; the rest is ``fill``."""
    larger = np.full(shape, fill, dtype=column.dtype)
    larger[tuple(slice(0, n) for n in column.shape)] = column
    return larger
