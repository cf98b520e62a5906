"""Tables: sorted, searched, cut into pages, linkable and downloadable, all by one component.

A view says what the columns are; the request's query says what is wanted of them::

    COLUMNS = (
        Column("name", "Name", lambda row: row.name, link=lambda row: f"/workloads/{row.id}"),
        Column("state", "State", lambda row: row.state, Kind.STATE),
        Column("gpus", "GPUs", lambda row: row.permille, Kind.GPUS),
        Column("created", "Submitted", lambda row: row.created_at, Kind.TIME),
    )
    table = listing(request, COLUMNS, rows, name="workloads", default_sort="-created")
    return page(request, visitor, "workloads.html", title="Workloads", table=table)

and the template puts it in place, with a last column of buttons if it wants one::

    {{ parts.listing_table(table) }}
    {% call(row) parts.listing_table(table, empty_title="No workloads", empty_sentence="...") %}
      {{ parts.action("/workloads/" ~ row.id ~ "/stop", "Stop", confirm="Stop " ~ row.name ~ "?", danger=true) }}
    {% endcall %}

Query: ``?sort=-created&find=words&page=2&format=csv&table=workloads``. ``find`` keeps rows that contain every word;
``state:running`` looks in one column. ``page()`` answers ``format=csv`` by itself for a ``Listing`` among its values.
The second of two tables on a page takes ``prefix="..."``, which is put before ``sort``, ``find`` and ``page``.

What ``value`` gives by kind: TIME epoch seconds, DURATION seconds, PERCENT 0 to 100, GPUS thousandths, BYTES bytes,
STATE a word or an enum; None is shown as a dash and sorted last. ``note`` is a smaller second line.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from gpupool.domain.units import format_duration, format_permille

ROWS_A_PAGE = 50  # as many as a browser lays out and paints before a person would notice
MOST_PAGES = 100_000
MOST_FIND = 200

Row = TypeVar("Row")


class Kind(StrEnum):
    """How the values of a column are written, compared and aligned."""

    TEXT = "text"
    NUMBER = "number"
    TIME = "time"
    DURATION = "duration"
    PERCENT = "percent"
    GPUS = "gpus"
    STATE = "state"
    BYTES = "bytes"

    @property
    def numeric(self) -> bool:
        """Whether it is aligned to the right."""
        return self not in {Kind.TEXT, Kind.STATE, Kind.TIME}


@dataclass(frozen=True)  # without slots: ``Column[Row](...)`` could not be written
class Column(Generic[Row]):
    """One column; see the module for what ``value`` gives. ``about`` explains the heading."""

    key: str
    title: str
    value: Callable[[Row], Any]
    kind: Kind = Kind.TEXT
    link: Callable[[Row], str | None] | None = None
    note: Callable[[Row], str | None] | None = None
    about: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """One value as the template writes it."""

    kind: Kind
    value: Any
    title: str
    href: str | None
    note: str | None


@dataclass(frozen=True, slots=True)
class Line(Generic[Row]):
    """One row of the present page, with the value it was made of."""

    row: Row
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Heading:
    """A column's heading: ``href`` sorts by it, ``sorted`` is ``ascending``, ``descending`` or ``none``."""

    title: str
    kind: Kind
    href: str
    sorted: str
    about: str


@dataclass(frozen=True, slots=True)
class Listing(Generic[Row]):
    """What a template needs of a table. ``total`` rows there are, ``matching`` of them after the search."""

    name: str
    prefix: str
    headings: tuple[Heading, ...]
    lines: tuple[Line[Row], ...]
    total: int
    matching: int
    page: int
    pages: int
    find: str
    kept: tuple[tuple[str, str], ...]
    csv_url: str
    previous_url: str | None
    next_url: str | None
    download: Response | None


@dataclass(frozen=True, slots=True)
class _Query:
    """What the request wants of the table called ``name``."""

    request: Request
    name: str
    prefix: str

    def get(self, key: str, default: str = "") -> str:
        return self.request.query_params.get(self.prefix + key, default)

    @property
    def page(self) -> int:
        text = self.get("page", "1")
        return min(int(text), MOST_PAGES) if text.isascii() and text.isdigit() and len(text) < 9 else 1

    @property
    def wants_csv(self) -> bool:
        asked = self.request.query_params
        return asked.get("format") == "csv" and asked.get("table", self.name) == self.name

    def url(self, **changes: str | int | None) -> str:
        """The present address with other values; None takes one away."""
        put = {k if k in {"format", "table"} else self.prefix + k: v for k, v in changes.items()}
        kept = [(k, v) for k, v in self.request.query_params.multi_items() if k not in put]
        kept = [(k, v) for k, v in kept if k not in {"format", "table"}]
        wanted = kept + [(k, str(v)) for k, v in put.items() if v is not None]
        return f"{self.request.url.path}?{urlencode(wanted)}" if wanted else self.request.url.path

    def kept(self) -> tuple[tuple[str, str], ...]:
        """The other fields that a search form sends along."""
        own = {self.prefix + "find", self.prefix + "page", "format", "table"}
        return tuple((k, v) for k, v in self.request.query_params.multi_items() if k not in own)


def listing(
    request: Request,
    columns: Sequence[Column[Row]],
    rows: Iterable[Row],
    *,
    name: str,
    default_sort: str = "",
    prefix: str = "",
) -> Listing[Row]:
    """The page of a table that the request's query asks for; see the module."""
    query = _Query(request, name, prefix)
    every = list(rows)
    find = query.get("find")[:MOST_FIND].strip()
    matching = _search(every, columns, find) if find else every
    asked = query.get("sort", default_sort)
    sort = asked if asked.lstrip("-") in {column.key for column in columns} else default_sort
    ordered = _sort(matching, columns, sort)
    pages = max(1, -(-len(ordered) // ROWS_A_PAGE))
    number = max(1, min(query.page, pages))
    shown = ordered[(number - 1) * ROWS_A_PAGE : number * ROWS_A_PAGE]
    return Listing(
        name=name,
        prefix=prefix,
        headings=tuple(_heading(column, sort, query) for column in columns),
        lines=tuple(_line(columns, row) for row in shown),
        total=len(every),
        matching=len(matching),
        page=number,
        pages=pages,
        find=find,
        kept=query.kept(),
        csv_url=query.url(format="csv", table=name, page=None),
        previous_url=query.url(page=number - 1) if number > 1 else None,
        next_url=query.url(page=number + 1) if number < pages else None,
        download=_csv(name, columns, ordered) if query.wants_csv else None,
    )


def written_again(table: Listing[Row], columns: Sequence[Column[Row]]) -> Listing[Row]:
    """The same rows with cells of other ``columns``, for values that are found for those shown alone."""
    return replace(table, lines=tuple(_line(columns, line.row) for line in table.lines))


def _line(columns: Sequence[Column[Row]], row: Row) -> Line[Row]:
    return Line(row, tuple(_cell(column, row) for column in columns))


def _heading(column: Column[Row], sort: str, query: _Query) -> Heading:
    descending, key = sort.startswith("-"), sort.lstrip("-")
    now = ("descending" if descending else "ascending") if key == column.key else "none"
    first = f"-{column.key}" if column.kind.numeric or column.kind is Kind.TIME else column.key
    second = column.key if first.startswith("-") else f"-{column.key}"
    return Heading(
        column.title, column.kind, query.url(sort=second if sort == first else first, page=None), now, column.about
    )


def _cell(column: Column[Row], row: Row) -> Cell:
    href = column.link(row) if column.link else None
    return Cell(column.kind, column.value(row), column.title, href, column.note(row) if column.note else None)


# Search and order


def _search(rows: Iterable[Row], columns: Sequence[Column[Row]], find: str) -> list[Row]:
    wanted = [_word(word, {column.key: column for column in columns}) for word in find.casefold().split()]
    return [row for row in rows if all(_has(row, word, within or columns) for word, within in wanted)]


def _word(word: str, by_key: dict[str, Column[Row]]) -> tuple[str, Sequence[Column[Row]]]:
    key, colon, rest = word.partition(":")
    return (rest, (by_key[key],)) if colon and key in by_key else (word, ())


def _has(row: Row, word: str, columns: Sequence[Column[Row]]) -> bool:
    for column in columns:
        if word in plain(column.kind, column.value(row)).casefold():
            return True
        if column.note is not None and word in (column.note(row) or "").casefold():
            return True
    return False


def _sort(rows: list[Row], columns: Sequence[Column[Row]], sort: str) -> list[Row]:
    by = next((column for column in columns if column.key == sort.lstrip("-")), None)
    if by is None:
        return rows
    keyed = [(by.value(row), row) for row in rows]
    known = [pair for pair in keyed if pair[0] is not None]
    known.sort(key=lambda pair: _order(pair[0]), reverse=sort.startswith("-"))
    return [row for _, row in known] + [row for value, row in keyed if value is None]


def _order(value: Any) -> Any:
    return value.casefold() if isinstance(value, str) else value


# As text


def plain(kind: Kind, value: Any) -> str:
    """A value as people would search for it."""
    if value is None:
        return ""
    match kind:
        case Kind.TIME:
            return iso(value)
        case Kind.DURATION:
            return format_duration(value)
        case Kind.GPUS:
            return format_permille(value)
        case _:
            return str(value)


def iso(epoch_s: float) -> str:
    """A moment as ISO 8601 in UTC, to the second."""
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _csv(name: str, columns: Sequence[Column[Row]], rows: Iterable[Row]) -> Response:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow([column.key for column in columns])
    for row in rows:
        writer.writerow([csv_value(column.kind, column.value(row)) for column in columns])
    headers = {"content-disposition": f'attachment; filename="{name}.csv"', "cache-control": "no-store"}
    return Response(text.getvalue().encode(), headers=headers, media_type="text/csv; charset=utf-8")


def csv_value(kind: Kind, value: Any) -> str | int | float:
    """A value for a spreadsheet: plain numbers and ISO times; text that would be taken for a formula is quoted."""
    if value is None:
        return ""
    match kind:
        case Kind.TIME:
            return iso(value)
        case Kind.GPUS:
            return float(value) / 1000
        case _ if isinstance(value, int | float) and not isinstance(value, bool):
            return round(value, 6)
    text = str(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
