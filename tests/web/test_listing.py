"""Tables: order, search, pages, links, and CSV that no spreadsheet takes for formulas."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from gpupool.domain.work.workload import WorkloadState
from gpupool.web.kit.listing import (
    DEFAULT_PAGE_SIZE,
    PAGE_SIZES,
    Column,
    ColumnKind,
    Listing,
    csv_value,
    listing,
    with_columns,
)
from gpupool.web.rendering import rows


@dataclass(frozen=True, slots=True)
class Job:
    name: str
    state: WorkloadState = WorkloadState.RUNNING
    permille: int | None = 500
    created: float | None = 1_800_000_000.0


COLUMNS = (
    Column[Job]("name", "Name", lambda job: job.name, link=lambda job: f"/workloads/{job.name}"),
    Column[Job]("state", "State", lambda job: job.state, ColumnKind.STATE, note=lambda job: f"note of {job.name}"),
    Column[Job]("gpus", "GPUs", lambda job: job.permille, ColumnKind.GPUS),
    Column[Job]("created", "Submitted", lambda job: job.created, ColumnKind.TIME),
)


def ask(query: str, rows: list[Job], **options: Any) -> Listing[Job]:
    scope = {"type": "http", "method": "GET", "path": "/jobs", "query_string": query.encode(), "headers": []}
    return listing(Request(scope), COLUMNS, rows, name="jobs", **{"default_sort": "name", **options})


def names(table: Listing[Job]) -> list[str]:
    return [line.row.name for line in table.lines]


JOBS = [Job("beta", permille=1000), Job("Alpha", WorkloadState.QUEUED, None), Job("gamma", permille=250)]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ["Alpha", "beta", "gamma"]),
        ("sort=-name", ["gamma", "beta", "Alpha"]),
        ("sort=gpus", ["gamma", "beta", "Alpha"]),
        ("sort=-gpus", ["beta", "gamma", "Alpha"]),
        ("sort=nonsense", ["Alpha", "beta", "gamma"]),
        ("find=ALP", ["Alpha"]),
        ("find=note+beta", ["beta"]),
        ("find=state:running&sort=-name", ["gamma", "beta"]),
        ("find=state:queued+gamma", []),
        ("find=name:run", []),
        ("find=0.25", ["gamma"]),
        ("find=2027-01", ["Alpha", "beta", "gamma"]),
        ("page=99", ["Alpha", "beta", "gamma"]),
        ("page=-1&find=", ["Alpha", "beta", "gamma"]),
    ],
)
def test_url_parameters_filter_the_page(query: str, expected: list[str]) -> None:
    assert names(ask(query, JOBS)) == expected


def test_heading_toggles_sort_direction() -> None:
    first, _, gpus, created = ask("find=a&page=3", JOBS).headings
    assert first.href == "/jobs?find=a&sort=-name"
    assert gpus.href == "/jobs?find=a&sort=-gpus", "numbers begin with the largest"
    assert created.href == "/jobs?find=a&sort=-created"
    assert ask("sort=-gpus", JOBS).headings[2].href == "/jobs?sort=gpus"


@pytest.mark.parametrize(
    ("query", "sorted_"),
    [("", "ascending"), ("sort=-name", "descending"), ("sort=gpus", "none"), ("sort=x", "ascending")],
)
def test_heading_shows_sort_direction(query: str, sorted_: str) -> None:
    assert ask(query, JOBS).headings[0].sorted == sorted_


def test_long_tables_are_paginated() -> None:
    many = [Job(f"job-{n:03d}") for n in range(2 * DEFAULT_PAGE_SIZE + 1)]
    first, last = ask("sort=name", many), ask("sort=name&page=3", many)
    assert (len(first.lines), first.pages, first.previous_url) == (DEFAULT_PAGE_SIZE, 3, None)
    assert first.next_url == "/jobs?sort=name&page=2"
    assert (names(last), last.next_url) == ([f"job-{2 * DEFAULT_PAGE_SIZE:03d}"], None)
    assert (first.total, first.matching) == (len(many), len(many))


@pytest.mark.parametrize("size", PAGE_SIZES)
def test_url_chooses_the_rows_of_a_page(size: int) -> None:
    many = [Job(f"job-{n:03d}") for n in range(max(PAGE_SIZES) + 1)]
    first = ask(f"rows={size}&sort=name", many)
    assert (len(first.lines), first.size, first.pages) == (size, size, -(-len(many) // size))
    assert first.next_url == f"/jobs?rows={size}&sort=name&page=2"
    assert f"rows={size}" in first.headings[0].href
    assert ("rows", str(size)) in first.other_fields
    last = ask(f"rows={size}&sort=name&page=99", many)
    assert (names(last)[-1], last.page) == (many[-1].name, first.pages)
    assert dict(last.size_urls)[25] == "/jobs?sort=name&rows=25"


@pytest.mark.parametrize("text", ["", "0", "-25", "26", "1000000000", "25x", "²"])
def test_other_numbers_of_rows_are_not_accepted(text: str) -> None:
    table = ask(f"rows={text}", [Job(f"job-{n:03d}") for n in range(300)])
    assert (len(table.lines), table.size) == (DEFAULT_PAGE_SIZE, DEFAULT_PAGE_SIZE)


def test_short_tables_have_no_choice_of_rows() -> None:
    assert ask("", [Job(f"job-{n}") for n in range(25)]).size_urls == ()
    assert len(ask("", [Job(f"job-{n}") for n in range(26)]).size_urls) == len(PAGE_SIZES)


def test_rows_of_dense_tables_take_the_focus() -> None:
    """Rows without a link or a button are stops of the keyboard, because they too may have cut texts."""
    linked, plain = ask("", JOBS), with_columns(ask("", JOBS), COLUMNS[1:])
    assert "tabindex" not in rows(linked)
    assert rows(linked, dense=True).count('<tr role="row" tabindex="-1">') == len(JOBS)
    assert rows(plain, dense=True).count('<tr role="row" tabindex="0">') == len(JOBS)
    assert rows(plain, lambda job: job.name, dense=True).count('tabindex="-1"') == len(JOBS)


def test_two_tables_of_a_page_have_separate_parameters() -> None:
    table = ask("sort=-name&second-sort=gpus&second-find=a&keep=1", JOBS, prefix="second-")
    assert names(table) == ["gamma", "beta", "Alpha"]
    assert table.find == "a"
    assert table.headings[0].href == "/jobs?sort=-name&second-find=a&keep=1&second-sort=name"
    assert ("keep", "1") in table.other_fields
    assert ask("format=csv&table=other", JOBS).download is None
    assert ask("format=csv&table=jobs", JOBS).download is not None
    assert ask("format=csv", JOBS).download is not None


def test_csv_has_all_matching_rows_with_plain_values() -> None:
    rows = [*JOBS, Job("=cmd()"), Job('new\nline, "quoted" = yes')]
    download = ask("format=csv&sort=-gpus&find=running", rows).download
    assert download is not None
    read = list(csv.DictReader(io.StringIO(bytes(download.body).decode(), newline="")))
    assert read[0] == {"name": "beta", "state": "running", "gpus": "1.0", "created": "2027-01-15T08:00:00Z"}
    assert [row["gpus"] for row in read] == ["1.0", "0.5", "0.5", "0.25"]
    assert [row["name"] for row in read][1:3] == ["'=cmd()", 'new\nline, "quoted" = yes']


@given(st.text(max_size=30))
def test_texts_are_escaped_against_formulas(text: str) -> None:
    value = csv_value(ColumnKind.TEXT, text)
    assert isinstance(value, str)
    assert not value.startswith(("=", "+", "-", "@", "\t", "\r"))
    assert value in {text, f"'{text}"}


@given(st.text(max_size=300), st.text(max_size=30), st.text(max_size=12))
def test_any_query_shows_a_table(find: str, sort: str, page: str) -> None:
    from urllib.parse import urlencode

    table = ask(urlencode({"find": find, "sort": sort, "page": page}), JOBS)
    assert table.page == 1
    assert table.matching <= table.total == 3
