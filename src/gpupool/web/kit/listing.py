"""Tables with sorting, search, pages, links and CSV download.

A view defines the columns; the request's query selects sort order, search and page::

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

Query: ``?sort=-created&find=words&page=2&rows=100&format=csv&table=workloads``. ``find`` keeps rows that contain every
word; ``state:running`` looks in one column. ``page()`` answers ``format=csv`` by itself for a ``Listing`` among its
values. The second of two tables on a page takes ``prefix="..."``, which is put before ``sort``, ``find``, ``page`` and
``rows``.

What ``value`` gives by kind: TIME epoch seconds, DURATION seconds, PERCENT 0 to 100, GPUS thousandths, BYTES bytes,
STATE a word or an enum; None is shown as a dash and sorted last. ``note`` is a smaller second line.
"""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from gpupool.domain.units import format_duration, format_permille

PAGE_SIZES = (25, 50, 100, 200)  # a browser renders 200 rows with a short delay
DEFAULT_PAGE_SIZE = 50
MAX_PAGES = 100_000
MAX_SEARCH_LENGTH = 200
CSV_TYPE = "text/csv; charset=utf-8"

Row = TypeVar("Row")


class ColumnKind(StrEnum):
    """Format, comparison and alignment of the values of a column."""

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
        """Return True if values are aligned to the right."""
        return self not in {ColumnKind.TEXT, ColumnKind.STATE, ColumnKind.TIME}


@dataclass(frozen=True)  # without slots: ``Column[Row](...)`` could not be written
class Column(Generic[Row]):
    """One column; see the module for what ``value`` gives. ``about`` explains the heading."""

    key: str
    title: str
    value: Callable[[Row], Any]
    kind: ColumnKind = ColumnKind.TEXT
    link: Callable[[Row], str | None] | None = None
    note: Callable[[Row], str | None] | None = None
    about: str = ""
    sortable: bool = True


@dataclass(frozen=True, slots=True)
class Cell:
    """One value as the template writes it."""

    kind: ColumnKind
    value: Any
    title: str
    href: str | None
    note: str | None


@dataclass(frozen=True, slots=True)
class TableRow(Generic[Row]):
    """One row of the current page, with the value it shows."""

    row: Row
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Heading:
    """A column's heading.

    ``href`` sorts by the column; empty: it cannot. ``sorted`` is ``ascending``, ``descending`` or ``none``.
    """

    title: str
    kind: ColumnKind
    href: str
    sorted: str
    about: str


@dataclass(frozen=True, slots=True)
class Listing(Generic[Row]):
    """A table for a template: ``total`` rows, of which ``matching`` match the search.

    ``size`` is the number of rows of a page; ``size_urls`` are the other choices, empty for a short table.
    """

    name: str
    prefix: str
    headings: tuple[Heading, ...]
    lines: tuple[TableRow[Row], ...]
    total: int
    matching: int
    page: int
    pages: int
    find: str
    other_fields: tuple[tuple[str, str], ...]
    csv_url: str
    previous_url: str | None
    next_url: str | None
    size: int
    size_urls: tuple[tuple[int, str], ...]
    download: Response | None


@dataclass(frozen=True, slots=True)
class _Query:
    """Query parameters of the table called ``name``."""

    request: Request
    name: str
    prefix: str

    def get(self, key: str, default: str = "") -> str:
        return self.request.query_params.get(self.prefix + key, default)

    @property
    def page(self) -> int:
        text = self.get("page", "1")
        return max(1, min(int(text), MAX_PAGES)) if text.isascii() and text.isdigit() and len(text) < 9 else 1

    @property
    def size(self) -> int:
        text = self.get("rows")
        return next((size for size in PAGE_SIZES if str(size) == text), DEFAULT_PAGE_SIZE)

    @property
    def wants_csv(self) -> bool:
        asked = self.request.query_params
        return asked.get("format") == "csv" and asked.get("table", self.name) == self.name

    def url(self, **changes: str | int | None) -> str:
        """Return the current address with changed parameters; None removes one."""
        put = {k if k in {"format", "table"} else self.prefix + k: v for k, v in changes.items()}
        kept = [(k, v) for k, v in self.request.query_params.multi_items() if k not in put]
        kept = [(k, v) for k, v in kept if k not in {"format", "table"}]
        wanted = kept + [(k, str(v)) for k, v in put.items() if v is not None]
        return f"{self.request.url.path}?{urlencode(wanted)}" if wanted else self.request.url.path

    def other_fields(self) -> tuple[tuple[str, str], ...]:
        """Return the other query parameters, which a search form keeps."""
        own = {self.prefix + "find", self.prefix + "page", "format", "table"}
        return tuple((k, v) for k, v in self.request.query_params.multi_items() if k not in own)


def table_names(prefix: str = "") -> tuple[str, ...]:
    """Return the query parameters of a table, for ``reads`` of its route."""
    return (*(prefix + name for name in ("find", "sort", "page", "rows")), "format", "table")


@dataclass(frozen=True, slots=True)
class TableQuery:
    """Search, sort order and page of a table; ``sort`` is a column's key, with ``-`` for descending.

    ``size`` is the number of rows of a page.
    """

    find: str
    sort: str
    page: int
    size: int
    csv: bool

    @property
    def offset(self) -> int:
        """Return the number of rows before the page."""
        return (self.page - 1) * self.size

    def pages(self, rows: int) -> int:
        """Return the number of pages that have this number of rows together."""
        return max(1, -(-rows // self.size))


def read_table_query(
    request: Request, columns: Sequence[Column[Row]], *, name: str, default_sort: str = "", prefix: str = ""
) -> TableQuery:
    """Read search, sort order and page of the table called ``name`` from the request."""
    query = _Query(request, name, prefix)
    sort = query.get("sort", default_sort)
    known = sort.lstrip("-") in {column.key for column in columns if column.sortable}
    find = query.get("find")[:MAX_SEARCH_LENGTH].strip()
    return TableQuery(find, sort if known else default_sort, query.page, query.size, query.wants_csv)


def listing(
    request: Request,
    columns: Sequence[Column[Row]],
    rows: Iterable[Row],
    *,
    name: str,
    default_sort: str = "",
    prefix: str = "",
) -> Listing[Row]:
    """Return the page of a table that the request's query selects; see the module."""
    asked = read_table_query(request, columns, name=name, default_sort=default_sort, prefix=prefix)
    every = list(rows)
    matching = _search(every, columns, asked.find) if asked.find else every
    ordered = _sort(matching, columns, asked.sort)
    asked = replace(asked, page=min(asked.page, asked.pages(len(ordered))))
    shown = RowPage(ordered[asked.offset : asked.offset + asked.size], len(every), len(matching))
    table = listing_of_page(request, columns, shown, asked, name=name, prefix=prefix)
    return replace(table, download=_csv(name, columns, ordered)) if asked.csv else table


@dataclass(frozen=True)  # without slots: it is generic
class RowPage(Generic[Row]):
    """One page of rows that the store has found and sorted: of ``matching`` rows, and of ``total`` without a search."""

    rows: Sequence[Row]
    total: int
    matching: int


def listing_of_page(
    request: Request,
    columns: Sequence[Column[Row]],
    window: RowPage[Row],
    asked: TableQuery,
    *,
    name: str,
    prefix: str = "",
) -> Listing[Row]:
    """Return the page of a table from rows that are already searched, sorted and cut as ``asked`` says."""
    query = _Query(request, name, prefix)
    pages = asked.pages(window.matching)
    number = min(asked.page, pages)
    return Listing(
        name=name,
        prefix=prefix,
        headings=tuple(_heading(column, asked.sort, query) for column in columns),
        lines=tuple(_line(columns, row) for row in window.rows),
        total=window.total,
        matching=window.matching,
        page=number,
        pages=pages,
        find=asked.find,
        other_fields=query.other_fields(),
        csv_url=query.url(format="csv", table=name, page=None),
        previous_url=query.url(page=number - 1) if number > 1 else None,
        next_url=query.url(page=number + 1) if number < pages else None,
        size=asked.size,
        size_urls=tuple(
            (size, query.url(rows=size, page=None)) for size in PAGE_SIZES if window.matching > PAGE_SIZES[0]
        ),
        download=None,
    )


def with_columns(table: Listing[Row], columns: Sequence[Column[Row]]) -> Listing[Row]:
    """Return the same rows with cells of other ``columns``, for values that are computed only for visible rows."""
    return replace(table, lines=tuple(_line(columns, line.row) for line in table.lines))


def _line(columns: Sequence[Column[Row]], row: Row) -> TableRow[Row]:
    return TableRow(row, tuple(_cell(column, row) for column in columns))


def _heading(column: Column[Row], sort: str, query: _Query) -> Heading:
    descending, key = sort.startswith("-"), sort.lstrip("-")
    now = ("descending" if descending else "ascending") if key == column.key else "none"
    first = f"-{column.key}" if column.kind.numeric or column.kind is ColumnKind.TIME else column.key
    second = column.key if first.startswith("-") else f"-{column.key}"
    href = query.url(sort=second if sort == first else first, page=None) if column.sortable else ""
    return Heading(column.title, column.kind, href, now, column.about)


def _cell(column: Column[Row], row: Row) -> Cell:
    href = column.link(row) if column.link else None
    return Cell(column.kind, column.value(row), column.title, href, column.note(row) if column.note else None)


# Search and sort


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


def plain(kind: ColumnKind, value: Any) -> str:
    """Return a value as text for the search."""
    if value is None:
        return ""
    match kind:
        case ColumnKind.TIME:
            return iso(value)
        case ColumnKind.DURATION:
            return format_duration(value)
        case ColumnKind.GPUS:
            return format_permille(value)
        case _:
            return str(value)


def iso(epoch_s: float) -> str:
    """Format a time as ISO 8601 in UTC, to the second."""
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _csv(name: str, columns: Sequence[Column[Row]], rows: Iterable[Row]) -> Response:
    return Response(csv_text(columns, rows, heading=True), headers=_csv_headers(name), media_type=CSV_TYPE)


def csv_stream(name: str, columns: Sequence[Column[Row]], pages: AsyncIterable[Iterable[Row]]) -> Response:
    """Return a table as CSV that is written page by page, so that any number of rows takes little memory."""

    async def written() -> AsyncIterator[bytes]:
        yield csv_text(columns, (), heading=True)
        async for rows in pages:
            yield csv_text(columns, rows)

    return StreamingResponse(written(), headers=_csv_headers(name), media_type=CSV_TYPE)


def _csv_headers(name: str) -> dict[str, str]:
    return {"content-disposition": f'attachment; filename="{name}.csv"', "cache-control": "no-store"}


def csv_text(columns: Sequence[Column[Row]], rows: Iterable[Row], *, heading: bool = False) -> bytes:
    """Return rows as lines of CSV, after a line of column names if ``heading``."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    if heading:
        writer.writerow([column.key for column in columns])
    for row in rows:
        writer.writerow([csv_value(column.kind, column.value(row)) for column in columns])
    return text.getvalue().encode()


def csv_value(kind: ColumnKind, value: Any) -> str | int | float:
    """Return a value for CSV: plain numbers and ISO times; text that looks like a formula is quoted."""
    if value is None:
        return ""
    match kind:
        case ColumnKind.TIME:
            return iso(value)
        case ColumnKind.GPUS:
            return float(value) / 1000
        case _ if isinstance(value, int | float) and not isinstance(value, bool):
            return round(value, 6)
    text = str(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
