"""``report``: who used what, how long they waited, and what it costs."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from gpupool.cli.commands.common import AsJson, command, help_text, takes
from gpupool.cli.options import Kind, Option
from gpupool.cli.output import out_style, show, show_json, tell, write_out
from gpupool.cli.pool import Pool, open_pool
from gpupool.cli.render.reports import rates_lines, report_lines
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.units import parse_duration_s
from gpupool.domain.usage import By, Period

DEFAULT_SPAN = "30d"
STDOUT = "-"
WAIT_S = 120.0  # a year by workload takes a while
NO_RATE = "none"
FORMS = frozenset({"csv", "json", "html"})
EXAMPLES = (
    "gpupool report --since 30d --by project",
    "gpupool report --since 2026-10-01 --until 2026-11-01 --by user --csv",
    "gpupool report --since 90d --by department --html use.html",
    "gpupool report rates set --default 0.80 --currency EUR --model a100=2.50",
)
_PANEL = "Report"
OPTIONS = (
    Option("since", "--since", Kind.TEXT, "30d ago, or a date (2026-11-01); 30d.", _PANEL, "WHEN"),
    Option("until", "--until", Kind.TEXT, "1d ago, or a date; now.", _PANEL, "WHEN"),
    Option("by", "--by", Kind.TEXT, f"Told apart by {', '.join(By)}; project.", _PANEL, "WHAT"),
    Option("step", "--step", Kind.TEXT, "Figures of each hour, day, week or month; what suits.", _PANEL, "STEP"),
    Option("zone", "--zone", Kind.TEXT, "Whose days, as Europe/Berlin; the pool's.", _PANEL, "ZONE"),
    Option("project", "--project", Kind.TEXT, "Only this project.", _PANEL, "NAME"),
    Option("user", "--user", Kind.TEXT, "Only this user.", _PANEL, "NAME"),
    Option("node", "--node", Kind.TEXT, "Only on this node.", _PANEL, "NAME"),
    Option("model", "--model", Kind.TEXT, "Only on GPUs of this model (its full name).", _PANEL, "NAME"),
    Option("csv", "--csv", Kind.FLAG, "Print comma-separated values with exact numbers.", _PANEL),
    Option("json", "--json", Kind.FLAG, "Print JSON, as the API gives it.", _PANEL),
    Option("html", "--html", Kind.TEXT, "Write a page with figures; - prints it.", _PANEL, "FILE"),
)


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer()
    group.callback(invoke_without_command=True, help=help_text(report.__doc__ or "", EXAMPLES))(report)
    rates = typer.Typer(no_args_is_help=True, help=help_text("What GPU hours cost.", ["gpupool report rates show"]))
    command(rates, "gpupool report rates show", name="show")(show_rates)
    command(
        rates,
        "gpupool report rates set --default 0.80 --currency EUR",
        "gpupool report rates set --model a100=2.50 --model t4=none",
        name="set",
    )(set_rates)
    group.add_typer(rates, name="rates")
    app.add_typer(group, name="report")


@takes(OPTIONS)
def report(context: typer.Context, **values: Any) -> None:
    """Who used what: GPU hours held, asked for, used and idle; waiting times; costs. See docs/reports.md."""
    if context.invoked_subcommand is not None:
        return
    if len(FORMS & set(values)) > 1:
        raise typer.BadParameter("choose one of --csv, --json and --html")
    query = _query(values)
    _write(open_pool(), query, values)


def _query(values: dict[str, Any]) -> dict[str, Any]:
    query = {name: value for name, value in values.items() if name not in FORMS}
    for name, words in (("by", By), ("step", Period)):
        if name in query and query[name] not in {word.value for word in words}:
            raise typer.BadParameter(f"--{name} is one of {', '.join(words)}")
    query["since"] = moment(query.get("since", DEFAULT_SPAN))
    if "until" in query:
        query["until"] = moment(query["until"])
    return query


def _write(pool: Pool, query: dict[str, Any], values: dict[str, Any]) -> None:
    if "csv" in values:
        write_out(pool.text("usage/report", {**query, "format": "csv"}, WAIT_S))
    elif "html" in values:
        _save(values["html"], pool.text("usage/report", {**query, "format": "html"}, WAIT_S))
    else:
        found = pool.get("usage/report", query, WAIT_S)
        if "json" in values:
            show_json(found)
        else:
            show(report_lines(found, out_style()))


def _save(name: str, page: bytes) -> None:
    if name == STDOUT:
        write_out(page)
        return
    try:
        Path(name).write_bytes(page)
    except OSError as error:
        sentence = f"{name} cannot be written ({error.strerror})."
        raise GpupoolError(ErrorCode.INVALID_FILE, sentence, "Name a file in a folder of yours.") from error
    tell(f"the report is in {name}")


def moment(text: str) -> float:
    """Seconds since the epoch: of ``30d`` ago, or of a local date or time (``2026-11-01``, ``2026-11-01T08:00``)."""
    if "-" not in text:
        return time.time() - parse_duration_s(text)
    try:
        return datetime.fromisoformat(text).astimezone().timestamp()
    except (ValueError, OverflowError) as error:
        sentence = f"'{text[:40]}' is neither a duration nor a date."
        raise GpupoolError(ErrorCode.INVALID_REQUEST, sentence, "Write 30d, or 2026-11-01.") from error


def show_rates(json: AsJson = False) -> None:
    """Show what an hour of a GPU costs."""
    found = open_pool().get("usage/rates")
    if json:
        show_json(found)
    else:
        show(rates_lines(found, out_style()))


def set_rates(
    default: Annotated[str | None, typer.Option("--default", metavar="RATE", help="Of any other GPU; none.")] = None,
    currency: Annotated[str | None, typer.Option("--currency", metavar="CODE", help="What rates are in.")] = None,
    model: Annotated[
        list[str] | None, typer.Option("--model", metavar="NAME=RATE", help="Of a model: a100=2.50, t4=none.")
    ] = None,
) -> None:
    """Say what an hour of a whole GPU costs, for the past as well; what is not named stays. For administrators."""
    body: dict[str, Any] = {} if currency is None else {"currency": currency}
    if default is not None:
        body["default"] = _rate(default)
    if model:
        body["models"] = dict(_named_rate(text) for text in model)
    if not body:
        raise typer.BadParameter("name what to change, for example --default 0.80")
    show(rates_lines(open_pool().patch("usage/rates", body), out_style()))


def _named_rate(text: str) -> tuple[str, float | None]:
    name, equals, rate = text.rpartition("=")
    if not equals or not name:
        raise GpupoolError(ErrorCode.INVALID_REQUEST, f"'{text[:40]}' is not MODEL=RATE.", "Write a100=2.50.")
    return name, _rate(rate)


def _rate(text: str) -> float | None:
    if text == NO_RATE:
        return None
    try:
        return float(text)
    except ValueError as error:
        raise GpupoolError(ErrorCode.INVALID_REQUEST, f"'{text[:40]}' is no rate.", "Write 2.50 or none.") from error
