"""``report``: GPU use, waiting times and costs."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from gpupool.cli import lazy_typer as typer
from gpupool.cli.commands.common import AsJson, add_group, command, with_options
from gpupool.cli.output import notify, out_style, show, show_json, write_out
from gpupool.cli.render.people import rates_lines, report_lines
from gpupool.cli.transport.pool import PoolClient, open_pool
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.units import parse_duration_s
from gpupool.domain.usage import GroupBy, Period
from gpupool.specs.job_options import Option, OptionKind

DEFAULT_SPAN = "30d"
STDOUT = "-"
REPORT_TIMEOUT_S = 120.0  # for a year by workload
NO_RATE = "none"
FORMS = frozenset({"csv", "json", "html"})
EXAMPLES = (
    "gpupool report --since 30d --by project",
    "gpupool report --since 2026-10-01 --until 2026-11-01 --by user --csv",
    "gpupool report --since 90d --by department --html use.html",
    "gpupool report rates set --default 0.80 --currency EUR --gpu-model a100=2.50",
)
_PANEL = "Report"
OPTIONS = (
    Option("since", "--since", OptionKind.TEXT, "Start 30d ago, or at a date (2026-11-01); 30d.", _PANEL, "WHEN"),
    Option("until", "--until", OptionKind.TEXT, "End 1d ago, or at a date; default: now.", _PANEL, "WHEN"),
    Option("by", "--by", OptionKind.TEXT, f"Group by {', '.join(GroupBy)}; project.", _PANEL, "WHAT"),
    Option("step", "--step", OptionKind.TEXT, "Group by hour, day, week or month; default: automatic.", _PANEL, "STEP"),
    Option(
        "zone", "--zone", OptionKind.TEXT, "Use this time zone: Europe/Berlin; default: the pool's.", _PANEL, "ZONE"
    ),
    Option("project", "--project", OptionKind.TEXT, "Report only this project.", _PANEL, "NAME"),
    Option("user", "--user", OptionKind.TEXT, "Report only this user.", _PANEL, "NAME"),
    Option("node", "--node", OptionKind.TEXT, "Report only this node.", _PANEL, "NAME"),
    Option("model", "--gpu-model --model", OptionKind.TEXT, "Report only this GPU model (full name).", _PANEL, "NAME"),
    Option("csv", "--csv", OptionKind.FLAG, "Print comma-separated values with exact numbers.", _PANEL),
    Option("json", "--json", OptionKind.FLAG, "Print the JSON of the API.", _PANEL),
    Option("html", "--html", OptionKind.TEXT, "Write an HTML page; -: print it.", _PANEL, "FILE"),
)


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer()
    group.callback(invoke_without_command=True, examples=EXAMPLES)(report)
    rates = add_group(group, "rates", "Show and set the rates of GPU hours.", "gpupool report rates show")
    command(rates, "gpupool report rates show", name="show")(show_rates)
    command(
        rates,
        "gpupool report rates set --default 0.80 --currency EUR",
        "gpupool report rates set --gpu-model a100=2.50 --gpu-model t4=none",
        name="set",
    )(set_rates)
    app.add_typer(group, name="report")


@with_options(OPTIONS)
def report(context: typer.CommandContext, **values: Any) -> None:
    """Show GPU hours (allocated, requested, used, idle), waiting times and costs. See docs/reports.md."""
    if context.invoked_subcommand is not None:
        return
    if len(FORMS & set(values)) > 1:
        raise typer.BadParameter("choose one of --csv, --json and --html")
    query = _query(values)
    _write(open_pool(), query, values)


def _query(values: dict[str, Any]) -> dict[str, Any]:
    query = {name: value for name, value in values.items() if name not in FORMS}
    for name, words in (("by", GroupBy), ("step", Period)):
        if name in query and query[name] not in {word.value for word in words}:
            raise typer.BadParameter(f"--{name} is one of {', '.join(words)}")
    query["since"] = moment(query.get("since", DEFAULT_SPAN))
    if "until" in query:
        query["until"] = moment(query["until"])
    return query


def _write(pool: PoolClient, query: dict[str, Any], values: dict[str, Any]) -> None:
    if "csv" in values:
        write_out(pool.get_bytes("usage/report", {**query, "format": "csv"}, REPORT_TIMEOUT_S))
    elif "html" in values:
        _save(values["html"], pool.get_bytes("usage/report", {**query, "format": "html"}, REPORT_TIMEOUT_S))
    else:
        found = pool.get("usage/report", query, REPORT_TIMEOUT_S)
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
        raise GpupoolError(ErrorCode.INVALID_FILE, sentence, "Give a file in a folder that you may write.") from error
    notify(f"the report is in {name}")


def moment(text: str) -> float:
    """Return a time in seconds since the epoch.

    ``text`` is ``30d`` (ago), or a local date or time (``2026-11-01``, ``2026-11-01T08:00``).
    """
    if "-" not in text:
        return time.time() - parse_duration_s(text)
    try:
        return datetime.fromisoformat(text).astimezone().timestamp()
    except (ValueError, OverflowError) as error:
        sentence = f"'{text[:40]}' is neither a duration nor a date."
        raise GpupoolError(ErrorCode.INVALID_REQUEST, sentence, "Write 30d, or 2026-11-01.") from error


def show_rates(json: AsJson = False) -> None:
    """Show the rates of a GPU hour."""
    found = open_pool().get("usage/rates")
    if json:
        show_json(found)
    else:
        show(rates_lines(found, out_style()))


def set_rates(
    default: Annotated[
        str | None, typer.Option("--default", metavar="RATE", help="Set the rate of other GPUs; none: no rate.")
    ] = None,
    currency: Annotated[
        str | None, typer.Option("--currency", metavar="CODE", help="Set the currency of rates.")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--gpu-model", "--model", metavar="NAME=RATE", help="Set the rate of a model: a100=2.50, t4=none."
        ),
    ] = None,
) -> None:
    """Set the rates of a whole GPU's hour, also for past use; other rates stay. For administrators."""
    body: dict[str, Any] = {} if currency is None else {"currency": currency}
    if default is not None:
        body["default"] = _rate(default)
    if model:
        body["models"] = dict(_named_rate(text) for text in model)
    if not body:
        raise typer.BadParameter("give a setting, for example --default 0.80")
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
        raise GpupoolError(ErrorCode.INVALID_REQUEST, f"'{text[:40]}' is not a rate.", "Write 2.50 or none.") from error
