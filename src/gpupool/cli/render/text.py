"""Text, colours and tables for the terminal."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from gpupool.domain.units import format_duration

GAP = "  "
MIN_READABLE = 40  # columns of a last column with a reason, before other columns are left out
MIN_FLEXIBLE = 12
STATE_COLOURS = {
    "running": 32,
    "succeeded": 32,
    "up": 32,
    "ok": 32,
    "queued": 33,
    "pending": 33,
    "starting": 33,
    "stopping": 33,
    "suspended": 33,
    "cordoned": 33,
    "degraded": 33,
    "warning": 33,
    "failed": 31,
    "down": 31,
    "problem": 31,
    "stopped": 90,
}


class Style(NamedTuple):
    """Output style: with colours or not, and the width in columns (None: unlimited, no text is cut)."""

    colour: bool = False
    columns: int | None = None

    def bold(self, text: str) -> str:
        """Format a heading."""
        return self._sgr("1", text)

    def dim(self, text: str) -> str:
        """Format secondary text."""
        return self._sgr("2", text)

    def state(self, text: str) -> str:
        """Colour a state."""
        code = STATE_COLOURS.get(text.strip())
        return self._sgr(str(code), text) if code else text

    def _sgr(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour and text else text


def style_of(stream: Any) -> Style:
    """Return the style for an output stream: plain and unlimited unless it is a terminal.

    NO_COLOR and COLUMNS apply.
    """
    if not stream.isatty():
        return Style()
    colour = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    try:
        width = int(os.environ.get("COLUMNS") or os.get_terminal_size(stream.fileno()).columns)
    except (OSError, ValueError):
        width = 80
    return Style(colour=colour, columns=width or 80)


def clean(value: object) -> str:
    """Return any text on one line, without control characters."""
    text = value if isinstance(value, str) else str(value)
    if text.isprintable():
        return text
    text = " ".join(text.split("\n"))
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def width_of(text: str) -> int:
    """Return the columns a text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def cut(text: str, columns: int) -> str:
    """Cut a text to this many columns, with an ellipsis."""
    if width_of(text) <= columns:
        return text
    while text and width_of(text) > columns - 1:
        text = text[:-1]
    return f"{text}…" if columns > 0 else ""


def table(
    headers: Sequence[str],
    rows: Iterable[Sequence[object]],
    style: Style,
    *,
    state: int = -1,
    optional: Sequence[int] = (),
) -> list[str]:
    """Return aligned lines; the last column is cut to the terminal. ``state`` is the column with coloured cells.

    On a narrow terminal the ``optional`` columns, in this order, are left out until the last one has room. They come
    after ``state``.
    """
    cells, plain = _cells(rows)
    if optional and style.columns is not None:
        kept = _fitting(headers, cells, style.columns, optional)
        headers, cells = [headers[i] for i in kept], [[row[i] for i in kept] for row in cells]
    widths = _widths(headers, cells, plain=plain)
    if plain and style == Style():
        pad = GAP.join(f"%-{width}s" for width in widths)  # ten thousand rows at once
        return [(pad % tuple(row)).rstrip() for row in (headers, *cells)]
    if style.columns is not None:
        used = sum(widths[:-1]) + len(GAP) * (len(widths) - 1)
        widths[-1] = max(min(widths[-1], style.columns - used), MIN_FLEXIBLE)
    whole = sum(widths) + len(GAP) * len(widths) if style.columns is None else style.columns
    lines = [style.bold(cut(_line(headers, widths), whole))]
    for row in cells:
        line = cut(_line(row, widths), whole)
        if state >= 0:
            start = sum(widths[:state]) + len(GAP) * state
            end = start + len(row[state])
            line = line[:start] + style.state(line[start:end]) + line[end:]
        lines.append(line)
    return lines


def _cells(rows: Iterable[Sequence[object]]) -> tuple[list[list[str]], bool]:
    """Return all cells as clean text; the flag is True if all are printable ASCII."""
    cells, plain = [], True
    for row in rows:
        texts = [cell if isinstance(cell, str) else str(cell) for cell in row]
        together = "".join(texts)
        if not together.isprintable():
            texts = [clean(text) for text in texts]
            together = "".join(texts)
        plain = plain and together.isascii()
        cells.append(texts)
    return cells, plain


def _widths(headers: Sequence[str], cells: Sequence[Sequence[str]], *, plain: bool = False) -> list[int]:
    """Return the width of each column; ``plain``: all is ASCII."""
    return [max(map(len if plain else width_of, column)) for column in zip(headers, *cells, strict=True)]


def _fitting(
    headers: Sequence[str], cells: Sequence[Sequence[str]], columns: int, optional: Sequence[int]
) -> list[int]:
    """Return the columns to show, so that the last one has room for its longest cell or ``MIN_READABLE``."""
    widths = _widths(headers, cells)
    kept, left = list(range(len(headers))), list(optional)
    needed = min(widths[-1], MIN_READABLE)
    while left and sum(widths[i] + len(GAP) for i in kept[:-1]) + needed > columns:
        kept.remove(left.pop(0))
    return kept


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    parts = [
        cut(cell, width) if i == len(widths) - 1 else cell
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    padded = [
        part.ljust(width) if part.isascii() else part + " " * (width - width_of(part))
        for part, width in zip(parts, widths, strict=True)
    ]
    return GAP.join(padded).rstrip()


def pairs(rows: Iterable[tuple[str, object]], style: Style, indent: str = "") -> list[str]:
    """Return ``Name:   value`` lines; those with an empty value are left out."""
    wanted = [(name, clean(value)) for name, value in rows if value not in (None, "", [], {})]
    width = max((len(name) for name, _ in wanted), default=0) + 1
    return [f"{indent}{style.bold(f'{name}:'.ljust(width))} {value}" for name, value in wanted]


def since(moment: float | None, now: float) -> str:
    """Format the time since a moment: ``3m10s``; ``-`` for never."""
    return "-" if moment is None else format_duration(now - moment)


def clock(moment: float | None) -> str:
    """Format a moment in local time: ``2026-11-21 01:28:23``; ``-`` for none."""
    from datetime import UTC, datetime

    return "-" if moment is None else f"{datetime.fromtimestamp(moment, UTC).astimezone():%Y-%m-%d %H:%M:%S}"


def bar(permille: int, width: int = 10) -> str:
    """Return a bar of a slice: ``██████░░░░``; any share above 0 shows at least one full cell."""
    full = min(width, max(round(permille * width / 1000), 1 if permille else 0))
    return "█" * full + "░" * (width - full)
