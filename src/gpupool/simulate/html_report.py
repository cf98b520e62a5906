"""Figures as one HTML page with SVG charts: it loads nothing and runs no script."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

WIDTH, HEIGHT = 640, 240
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 16, 40
COLOURS = ("#1b6ca8", "#d1495b", "#2e933c", "#8d5a97")
TICKS = 5
HOUR = 3600.0
Json = Mapping[str, Any]
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class ReportChart:
    """A chart with a line for each run; ``points`` takes them from a summary. x and y begin at 0."""

    title: str
    across: str
    up: str
    points: Callable[[Json], Sequence[Point]]


def _over_time(field: str, scale: float) -> Callable[[Json], list[Point]]:
    def points(shown: Json) -> list[Point]:
        rows = shown["over_time"]
        first = rows[0]["at_s"] if rows else 0.0
        return [((row["at_s"] - first) / HOUR, row[field] * scale) for row in rows]

    return points


def _waits(shown: Json) -> list[Point]:
    steps = shown["wait_quantiles_s"]
    return [(seconds / HOUR, 100.0 * at / max(1, len(steps) - 1)) for at, seconds in enumerate(steps)]


CHARTS = (
    ReportChart("Allocated", "hours", "% of the GPUs", _over_time("allocated", 100.0)),
    ReportChart("Waiting replicas", "hours", "replicas", _over_time("waiting", 1.0)),
    ReportChart("Free, but unusable for typical jobs", "hours", "% of the GPUs", _over_time("stranded", 100.0)),
    ReportChart("Held above fair shares", "hours", "% of the GPUs", _over_time("share_error", 100.0)),
    ReportChart("Jobs started within a waiting time", "hours waited", "% of the jobs", _waits),
)


def page(title: str, runs: Mapping[str, Json]) -> str:
    """Return the page: a chart of each kind with all runs, and the mean waiting times of the projects."""
    drawings = "\n".join(_drawing(chart, runs) for chart in CHARTS)
    style = (
        "body{font:15px sans-serif;margin:2em;max-width:48em}table{border-collapse:collapse}td,th{padding:.2em .8em}"
    )
    style += "td{text-align:right}th{text-align:left}figure{margin:1.5em 0}figcaption{font-weight:bold}"
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{style}</style>'
    body = f"<h1>{escape(title)}</h1>\n{_legend(runs)}\n{drawings}\n{_projects(runs)}"
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>{body}</body></html>\n'


def _legend(runs: Mapping[str, Json]) -> str:
    parts = [f'<span style="color:{_colour(at)}">&#9632; {escape(name)}</span>' for at, name in enumerate(runs)]
    return f"<p>{' &nbsp; '.join(parts)}</p>"


def _colour(at: int) -> str:
    return COLOURS[at % len(COLOURS)]


def _drawing(chart: ReportChart, runs: Mapping[str, Json]) -> str:
    lines = [list(chart.points(shown)) for shown in runs.values()]
    far = max((x for line in lines for x, _ in line), default=0.0) or 1.0
    high = max((y for line in lines for _, y in line), default=0.0) or 1.0
    drawn = "".join(_line(line, far, high, _colour(at)) for at, line in enumerate(lines))
    svg = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" xmlns="http://www.w3.org/2000/svg">{_axes(chart, far, high)}'
    return f"<figure><figcaption>{escape(chart.title)}</figcaption>{svg}{drawn}</svg></figure>"


def _line(points: Sequence[Point], far: float, high: float, colour: str) -> str:
    at = " ".join(f"{_x(x / far):.1f},{_y(y / high):.1f}" for x, y in points)
    return f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{at}"/>'


def _x(part: float) -> float:
    return LEFT + part * (WIDTH - LEFT - RIGHT)


def _y(part: float) -> float:
    return HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM)


def _axes(chart: ReportChart, far: float, high: float) -> str:
    marks = []
    for tick in range(TICKS):
        part = tick / (TICKS - 1)
        marks.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{_y(part):.1f}" y2="{_y(part):.1f}" stroke="#ddd"/>')
        marks.append(_text(LEFT - 6, _y(part) + 4, f"{part * high:.3g}", "end"))
        marks.append(_text(_x(part), HEIGHT - BOTTOM + 16, f"{part * far:.3g}", "middle"))
    marks.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, chart.across, "middle"))
    marks.append(_text(LEFT, TOP - 4, chart.up, "start"))
    return "".join(marks)


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="11" text-anchor="{anchor}" fill="#555">{escape(words)}</text>'


def _projects(runs: Mapping[str, Json]) -> str:
    names = sorted({name for shown in runs.values() for name in shown["projects"]})
    head = "".join(f"<th>{escape(run)}: mean wait, hours</th><th>GPU hours</th>" for run in runs)
    rows = "".join(f"<tr><th>{escape(name)}</th>{_cells(runs, name)}</tr>" for name in names)
    return f"<table><tr><th>project</th>{head}</tr>{rows}</table>"


def _cells(runs: Mapping[str, Json], name: str) -> str:
    cells = []
    for shown in runs.values():
        found = shown["projects"].get(name)
        wait = f"{found['wait_s']['mean'] / HOUR:.2f}" if found else ""
        cells.append(f"<td>{wait}</td><td>{found['gpu_hours'] if found else ''}</td>")
    return "".join(cells)
