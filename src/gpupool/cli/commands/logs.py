"""``logs``: what a program wrote, so far or as it comes."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from gpupool.cli.commands.common import AsJson, Index, Replica, command
from gpupool.cli.following import LogPrinter, persistent
from gpupool.cli.output import show, show_json
from gpupool.cli.pool import Pool, open_pool, reference, workload_path
from gpupool.domain.units import parse_duration_s

PAGE = 1000


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    command(
        app,
        "gpupool logs train-1",
        "gpupool logs -f --tail 20 train-1",
        "gpupool logs sweep/3 --since 10m --timestamps",
    )(logs)


def logs(  # noqa: PLR0913, PLR0917 - one parameter per option
    name: Replica,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the program ends.")] = False,
    since: Annotated[str | None, typer.Option("--since", metavar="TIME", help="Only the last 10m, 2h.")] = None,
    tail: Annotated[int | None, typer.Option("-t", "--tail", min=0, metavar="LINES", help="The last lines.")] = None,
    timestamps: Annotated[bool, typer.Option("--timestamps", help="The time before each line.")] = False,
    attempt: Annotated[int | None, typer.Option("--attempt", min=1, help="An earlier try.", metavar="N")] = None,
    index: Index = None,
    json: AsJson = False,
) -> None:
    """Print what a program wrote: its output to stdout, its errors to stderr, byte for byte."""
    workload, number = reference(name)
    begin = time.time() - parse_duration_s(since) if since else None
    query = {"index": number if index is None else index, "attempt": attempt, "tail": tail, "since": begin}
    pool = open_pool()
    path = workload_path(workload, "logs")
    printer = LogPrinter(timestamps=timestamps, since=begin)
    if follow:
        _follow(pool, path, query, printer, as_json=json)
        return
    chunks = _print_pages(pool, path, query, None if json else printer)
    if json:
        show_json({"chunks": chunks})


def _print_pages(pool: Pool, path: str, query: dict[str, Any], printer: LogPrinter | None) -> list[dict[str, Any]]:
    """All there is now, page by page; kept and returned when there is no printer."""
    kept: list[dict[str, Any]] = []
    while True:
        page = pool.get(path, {**query, "limit": PAGE})
        for chunk in page["chunks"]:
            if printer is None:
                kept.append(chunk)
            else:
                printer.chunk(chunk)
        if page["end"] or not page["chunks"] or page["cursor"] == query.get("cursor"):
            return kept
        query = {**query, "cursor": page["cursor"], "tail": None}


def _follow(pool: Pool, path: str, query: dict[str, Any], printer: LogPrinter, *, as_json: bool) -> None:
    from json import dumps

    for message in persistent(pool, path, {**query, "follow": True}):
        if message.event == "end":
            return
        if as_json:
            show([dumps(message.data)])
        else:
            printer.chunk(message.data)
