"""A report as one HTML page to send or print: no scripts, no external resources, light and dark colours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from gpupool.api.reports import figures
from gpupool.api.reports.words import hours, label, moment, money, percent, seconds
from gpupool.domain.usage import GroupBy, UsageLine
from gpupool.services.usage.reports import UsageReport

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #59636e; --back: #fff; --line: #d1d9e0; --held: #b6d4ea;
  --used: #0072b2; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9198a1; --back: #0d1117; --line: #3d444d;
  --held: #24506e; --used: #56b4e9; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back); margin: 2rem auto;
  max-width: 62rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
.soft, caption { color: var(--soft); } p { margin: .3rem 0; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .75rem; margin: 1.5rem 0; }
dl div { border: 1px solid var(--line); border-radius: .4rem; padding: .6rem .8rem; }
dt { color: var(--soft); font-size: .85rem; } dd { margin: 0; font-size: 1.25rem; font-variant-numeric: tabular-nums; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-size: .85rem; padding-bottom: .3rem; }
th, td { padding: .3rem .5rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; white-space: normal; overflow-wrap: anywhere; }
thead th { color: var(--soft); font-weight: 600; font-size: .85rem; } tfoot td { font-weight: 600; border-bottom: 0; }
.wide { overflow-x: auto; } svg { max-width: 100%; height: auto; } svg text { fill: var(--soft); font-size: 12px; }
.end { text-anchor: end; } .grid { stroke: var(--line); } .bar { width: 7rem; height: .8rem; display: block; }
.held { fill: var(--held); } .used { fill: var(--used); }
figure { margin: 0; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; padding: 0; margin: .3rem 0; }
.key { width: .8rem; height: .8rem; margin-right: .4rem; vertical-align: -.08rem; }
.c0 { fill: #0072b2; } .c1 { fill: #e69f00; } .c2 { fill: #009e73; } .c3 { fill: #cc79a7; } .c4 { fill: #56b4e9; }
.c5 { fill: #d55e00; } .c6 { fill: #b8a800; } .c7 { fill: #8b949e; }
@media print { body { margin: 0; max-width: none; } h2 { break-after: avoid; } tr, svg { break-inside: avoid; } }
"""
NOTES = (
    "Allocated: thousandths of GPUs, times the time of their leases; exact.",
    "Requested: GPUs requested, times the time from submission to end, including waiting.",
    "Used: time in which programs computed, measured once a second. Percentages refer to measured time.",
    "Idle: allocated to programs that computed on none of their GPUs, measured in the same way.",
    "A slice may use more than its share while other slices of the GPU do not compute.",
    "Waiting: from submission to first start, for workloads of this period that have started.",
)


def to_html(report: UsageReport) -> str:
    """Return the whole page."""
    title = f"GPU use by {report.by}" if report.by is not GroupBy.POOL else "GPU use"
    span = f"{moment(report.since, report.zone)} to {moment(report.until, report.zone)} ({report.zone})"
    body = "".join((_tiles(report), _timeline(report), _lines(report), _waits(report), _notes()))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}, {escape(span)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f'<h1>{escape(title)}</h1>\n<p class="soft">{escape(span + _scope(report))}</p>\n{body}</body>\n</html>\n'
    )


def _scope(report: UsageReport) -> str:
    scope = report.scope
    parts = {"project": scope.project, "user": scope.user, "node": scope.node, "GPUs": scope.model}
    return "".join(f"; {name} {value}" for name, value in parts.items() if value is not None)


def _tiles(report: UsageReport) -> str:
    time = report.total.time
    tiles = [
        ("GPU hours allocated", hours(time.allocated_s)),
        ("GPU hours requested", hours(time.requested_s, unknown="-")),
        ("Used share of allocated", percent(time.used_s, time.measured_s)),
        ("Idle share of allocated", percent(time.idle_s, time.measured_s)),
    ]
    if report.waits_total is not None:
        tiles += [("Median wait", seconds(report.waits_total.p50_s))]
    if report.lost_gpu_s:
        tiles += [("GPU hours lost by evictions and failures", hours(report.lost_gpu_s))]
    if report.total.cost is not None:
        tiles += [("Cost", money(report.total.cost, report.currency))]
    items = (f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in tiles)
    return f"<dl>{''.join(items)}</dl>\n"


def _timeline(report: UsageReport) -> str:
    if not report.timeline:
        return "<p>No GPU was allocated or requested in this period.</p>\n"
    return f"<h2>Average allocated GPUs for each {report.step}</h2>\n<figure>{figures.over_time(report)}</figure>\n"


def _lines(report: UsageReport) -> str:
    if not report.lines:
        return ""
    priced = bool(report.currency) or any(line.cost is not None for line in report.lines)
    most = max(line.time.allocated_s for line in report.lines)
    head = [
        str(report.by),
        "",
        "Allocated",
        "Requested",
        "Used",
        "Of it",
        "Idle",
        "Leases",
        *(["Cost"] if priced else []),
    ]
    rows = [_line(report, line, most, priced=priced) for line in report.lines]
    total = _line(report, report.total, 0.0, priced=priced)
    total[0] = "total"
    return "<h2>GPU hours</h2>\n" + _table("Used and idle are measured", head, rows, total)


def _line(report: UsageReport, line: UsageLine, most: float, *, priced: bool) -> list[str]:
    time = line.time
    return [
        escape(label(report.by, line)),
        figures.bar(line, most) if most else "",
        hours(time.allocated_s),
        hours(time.requested_s, unknown="-"),
        hours(time.used_s),
        percent(time.used_s, time.measured_s, unknown="-"),
        hours(time.idle_s, unknown="-"),
        f"{time.leases:,}",
        *([escape(money(line.cost, report.currency))] if priced else []),
    ]


def _waits(report: UsageReport) -> str:
    if not report.waits:
        return ""
    head = [
        str(report.by),
        "Started",
        "Waiting",
        "Never",
        "Mean",
        "Median",
        "90th percentile",
        "99th percentile",
        "Longest",
    ]
    names = {line.key: label(report.by, line) for line in report.lines}
    rows = [
        [
            escape(names.get(w.key, w.key or "(none)")),
            *(f"{count:,}" for count in (w.started, w.waiting, w.never)),
            *(seconds(value) for value in (w.mean_s, w.p50_s, w.p90_s, w.p99_s, w.longest_s)),
        ]
        for w in report.waits
    ]
    return "<h2>Waiting for the first start</h2>\n" + _table("Median, 90th and 99th percentile", head, rows, [])


def _table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], total: Sequence[str]) -> str:
    cells = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    foot = f"<tfoot><tr>{''.join(f'<td>{cell}</td>' for cell in total)}</tr></tfoot>" if total else ""
    return (
        f'<div class="wide"><table><caption>{escape(caption)}</caption><thead><tr>{cells}</tr></thead>'
        f"<tbody>{body}</tbody>{foot}</table></div>\n"
    )


def _notes() -> str:
    return f'<h2>Definitions</h2>\n<ul class="soft">{"".join(f"<li>{escape(note)}</li>" for note in NOTES)}</ul>\n'
