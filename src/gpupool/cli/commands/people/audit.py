"""``audit``: search the audit record."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

from gpupool.cli import lazy_typer as typer
from gpupool.cli.commands.common import AsJson, command
from gpupool.cli.output import out_style, show, show_json, write_out
from gpupool.cli.render.workloads import event_lines
from gpupool.cli.transport.pool import PoolClient, open_pool

PAGE = 1000
COLUMNS = ("at", "actor", "reason", "workload", "index", "target", "message", "id")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet treats such cells as formulas


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    command(
        app,
        "gpupool audit --actor ada --since 7d",
        "gpupool audit --target 'node gpu1' --reason CORDONED",
        "gpupool audit --since 2026-11-01 --all --csv > november.csv",
    )(audit)


def audit(  # noqa: PLR0913, PLR0917 - one parameter per option
    actor: Annotated[
        str | None, typer.Option("--actor", metavar="USER", help="Show actions of this user; pool: of the pool itself.")
    ] = None,
    reason: Annotated[
        list[str] | None, typer.Option("--reason", metavar="REASON", help="Show events with this reason; repeatable.")
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", metavar="WHAT", help="Show events of this object, such as 'node gpu1'.")
    ] = None,
    workload: Annotated[
        str | None, typer.Option("--workload", metavar="NAME", help="Show events of this workload.")
    ] = None,
    since: Annotated[str | None, typer.Option("--since", metavar="WHEN", help="Start 7d ago, or at a date.")] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="WHEN", help="End 1d ago, or at a date; default: now.")
    ] = None,
    limit: Annotated[
        int, typer.Option("-n", "--limit", min=1, max=PAGE, help="Show at most this number, the newest ones.")
    ] = 50,
    every: Annotated[bool, typer.Option("--all", help="Show all matching records.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values; times are UTC.")] = False,
    json: AsJson = False,
) -> None:
    """Show audit records: who did what to which object, and why, newest first."""
    from gpupool.cli.commands.people.report import moment

    if as_csv and json:
        raise typer.BadParameter("choose one of --csv and --json")
    query: dict[str, Any] = {"actor": actor, "reason": reason, "target": target, "workload": workload}
    query |= {name: moment(text) for name, text in (("since", since), ("until", until)) if text}
    query = {name: value for name, value in query.items() if value} | {"limit": PAGE if every else limit}
    pages = _pages(open_pool(), query, every=every)
    if json:
        show_json({"events": [event for page in pages for event in page]})
    elif as_csv:
        write_out(_lines([COLUMNS]))
        for page in pages:
            write_out(_lines([tuple(_cell(event, column) for column in COLUMNS) for event in page]))
    else:
        for page in pages:
            show(event_lines(page, out_style()))


def _pages(pool: PoolClient, query: dict[str, Any], *, every: bool) -> Iterator[list[dict[str, Any]]]:
    while True:
        found = pool.get("audit", query)
        yield found["events"]
        if not every or found["next"] is None:
            return
        query["before"] = found["next"]


def _cell(event: dict[str, Any], column: str) -> str:
    value = event[column]
    if value is None:
        return ""
    if column == "at":
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    text = str(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


def _lines(rows: list[tuple[str, ...]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
