"""Reports of GPU use, and what GPU hours cost, as a terminal shows them."""

from __future__ import annotations

from typing import Any

from gpupool.cli.render.text import Style, clock, pairs, table
from gpupool.domain.units import format_duration

Json = dict[str, Any]
NOT_MEASURED = "not measured"
_UNKNOWN = {"model": "(unknown)", "pool": "pool"}


def report_lines(report: Json, style: Style) -> list[str]:
    """The table of a report, most GPU hours first, with a sum."""
    waits = {line["key"]: line for line in report["waits"]}
    priced = any(line["cost"] is not None for line in report["lines"])
    headers = [report["by"].upper(), "GPU HOURS", "REQUESTED", "USED", "OF IT", "IDLE", "LEASES"]
    headers += ["COST"] if priced else []
    headers += ["WAITED", "9 OF 10"] if waits else []
    rows = [_row(report, line, waits.get(line["key"]), priced) for line in report["lines"]]
    total = _row(report, report["total"], report["waits_total"], priced)
    cells = [row if waits else row[: len(headers)] for row in [*rows, ("total", *total[1:])]]
    span = f"{clock(report['since'])} to {clock(report['until'])}"
    return [style.dim(span), *table(headers, cells, style)]


def _row(report: Json, line: Json, wait: Json | None, priced: bool) -> tuple[object, ...]:
    used, measured = line["used_s"], line["measured_s"]
    cost = "-" if line["cost"] is None else f"{line['cost']:,.2f} {report['currency']}".rstrip()
    return (
        _name(report, line),
        _hours(line["allocated_s"]),
        _hours(line["requested_s"], "-"),
        _hours(used),
        "-" if used is None or not measured else f"{100 * used / measured:.0f} %",
        _hours(line["idle_s"], "-"),
        line["leases"],
        *((cost,) if priced else ()),
        _wait(wait, "p50_s"),
        _wait(wait, "p90_s"),
    )


def _name(report: Json, line: Json) -> str:
    return str(line["name"] or line["key"] or _UNKNOWN.get(report["by"], "(none)"))


def _hours(seconds: float | None, unknown: str = NOT_MEASURED) -> str:
    return unknown if seconds is None else f"{seconds / 3600:,.2f}"


def _wait(wait: Json | None, name: str) -> str:
    return "-" if wait is None or wait[name] is None else format_duration(wait[name])


def rates_lines(rates: Json, style: Style) -> list[str]:
    """What an hour of a GPU costs."""
    if rates["default"] is None and not rates["models"]:
        return ["no rates: GPU hours cost nothing"]
    named = [(model, f"{rate:g} {rates['currency']}".rstrip()) for model, rate in rates["models"].items()]
    rest = "no rate" if rates["default"] is None else f"{rates['default']:g} {rates['currency']}".rstrip()
    return [style.dim("of a GPU for an hour"), *pairs([*named, ("any other", rest)], style)]
