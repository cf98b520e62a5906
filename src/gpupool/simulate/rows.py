"""Tables of text with limits: an error names its line, and too large input is refused."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Sequence

from gpupool.domain.errors import ErrorCode, GpupoolError

MAX_ROWS = 2_000_000
MAX_CHARACTERS = 200  # of a field
MAX_GPUS = 10_000  # of a job
MAX_SECONDS = 1e11
MAX_AMOUNT = 1e9


class Row:
    """One line of a table, its fields by name."""

    __slots__ = ("_fields", "_line")

    def __init__(self, fields: dict[str, str], line: int) -> None:
        self._fields, self._line = fields, line

    def text(self, name: str, default: str = "") -> str:
        """Return a field as text; ``default`` if it is empty or missing."""
        value = (self._fields.get(name) or "").strip()
        if len(value) > MAX_CHARACTERS:
            raise self.wrong(f"the field {name} is longer than {MAX_CHARACTERS} characters")
        return value or default

    def number(self, name: str, default: float | None = None, most: float = MAX_AMOUNT) -> float:
        """Return a field as a number from 0 to ``most``; without ``default`` it is required."""
        text = self.text(name)
        if not text and default is not None:
            return default
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 <= value <= most:
            raise self.wrong(f"{name} is '{text[:40]}', not a number from 0 to {most:g}")
        return value

    def whole(self, name: str, default: int | None = None, most: int = int(MAX_AMOUNT)) -> int:
        """Return a field as a whole number from 0 to ``most``."""
        value = self.number(name, default, most)
        if value != int(value):
            raise self.wrong(f"{name} is '{self.text(name)[:40]}', not a whole number")
        return int(value)

    def wrong(self, what: str) -> GpupoolError:
        """Return the error that names this line."""
        return GpupoolError(ErrorCode.INVALID_FILE, f"Line {self._line}: {what}.", "Correct the line or remove it.")


def header_of(line: str) -> tuple[str, ...]:
    """Return the names of the columns."""
    return tuple(name.strip() for name in line.lstrip("\ufeff").split(","))


def rows(lines: Iterable[str], needed: Sequence[str], most: int = MAX_ROWS) -> Iterator[Row]:
    """Yield the lines after the header; raise ``GpupoolError`` (INVALID_FILE, TOO_LARGE)."""
    reader = csv.reader(lines)
    try:
        names = header_of(",".join(next(reader, [])))
        if missing := [name for name in needed if name not in names]:
            sentence = f"The file has no column {', '.join(missing)}."
            raise GpupoolError(ErrorCode.INVALID_FILE, sentence, f"The first line must name: {','.join(needed)}.")
        for number, fields in enumerate((row for row in reader if row), 1):
            if number > most:
                raise GpupoolError(ErrorCode.TOO_LARGE, f"The file has more than {most:,} rows.", "Cut it.")
            yield _row(names, fields, reader.line_num)
    except csv.Error as error:
        sentence = f"Line {reader.line_num}: {error}."
        raise GpupoolError(ErrorCode.INVALID_FILE, sentence, "The file must be a CSV table.") from error


def _row(names: Sequence[str], fields: Sequence[str], line: int) -> Row:
    row = Row(dict(zip(names, fields, strict=False)), line)
    if len(fields) != len(names):
        raise row.wrong(f"{len(fields)} fields where the first line names {len(names)}")
    return row
