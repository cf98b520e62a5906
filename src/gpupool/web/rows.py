"""The rows of a table as markup.

They are written as text and not by the template: a page has hundreds of cells, and who looks at them must not keep the
scheduler waiting. Whatever is a text goes through ``escape``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from markupsafe import Markup, escape

from gpupool.domain.units import format_duration
from gpupool.web import filters
from gpupool.web.listing import Cell, Kind, Line, Listing, iso

NOTHING = '<span class="quiet">–</span>'  # noqa: RUF001 - a dash is meant


def rows(listing: Listing[Any], actions: Callable[[Any], str] | None = None) -> Markup:
    """All rows of the present page; ``actions`` gives the markup of a last cell of buttons."""
    return Markup("".join(_row(line, actions) for line in listing.lines))  # noqa: S704 - cells are escaped


def _row(line: Line[Any], actions: Callable[[Any], str] | None) -> str:
    cells = "".join(map(_cell, line.cells))
    buttons = "" if actions is None else f'<td role="cell" class="row-actions">{actions(line.row)}</td>'
    return f'<tr role="row">{cells}{buttons}</tr>\n'


def _cell(cell: Cell) -> str:
    shown = NOTHING if cell.value is None else _SHOWN[cell.kind](cell.value)
    if cell.href:
        shown = f'<a href="{escape(cell.href)}">{shown}</a>'
    note = f'<span class="note">{escape(cell.note)}</span>' if cell.note else ""
    kind = ' class="number"' if cell.kind.numeric else ""
    return f'<td role="cell" data-label="{escape(cell.title)}"{kind}>{shown}{note}</td>'


def when(epoch_s: float) -> str:
    """A moment, which the page's script puts into the viewer's zone."""
    text = iso(epoch_s)
    return f'<time datetime="{text}" data-when="{round(epoch_s, 3)}">{text[:10]} {text[11:16]} UTC</time>'


def state(value: object) -> str:
    """A state as sign, colour and word."""
    sign, word = filters.shape(value), escape(filters.word(value))
    return f'<span class="state state-{filters.tone(value)}"><span aria-hidden="true">{sign}</span> {word}</span>'


_SHOWN: dict[Kind, Callable[[Any], str]] = {
    Kind.TEXT: escape,
    Kind.NUMBER: lambda value: escape(filters.number(value)),
    Kind.TIME: when,
    Kind.DURATION: format_duration,
    Kind.PERCENT: filters.percent,
    Kind.GPUS: filters.gpus,
    Kind.STATE: state,
    Kind.BYTES: filters.size,
}
