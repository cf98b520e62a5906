"""Figures of a report as inline SVG, without external resources and with text for each part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from gpupool.api.reports.words import hours, label, moment
from gpupool.domain.usage import UsageLine
from gpupool.services.ports.usage import OTHERS
from gpupool.services.usage.reports import UsageReport

WIDTH, HEIGHT = 960, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 8, 12, 28
TICKS_ACROSS = 8
COLOURS = 7  # CSS classes c0 to c6; c7 is for the sum of the other keys


@dataclass(frozen=True, slots=True)
class _Axes:
    since: float
    until: float
    top: float

    def x(self, at: float) -> float:
        return LEFT + (at - self.since) / (self.until - self.since) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - value / self.top * (HEIGHT - TOP - BOTTOM)


def over_time(report: UsageReport) -> str:
    """Return a stacked chart of the average number of GPUs held in each step, the largest keys first."""
    order = _order(report)
    steps: dict[tuple[float, float], dict[str, UsageLine]] = {}
    for line in report.timeline:
        steps.setdefault((line.at, line.until), {})[line.key] = line
    height = max((sum(map(gpus, found.values())) for found in steps.values()), default=0.0)
    axes = _Axes(report.since, report.until, nice(height))
    bars = [_column(report, axes, order, found) for found in steps.values()]
    what = f"GPUs held, {moment(report.since, report.zone)} to {moment(report.until, report.zone)}, most {height:.2f}"
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(what)}">'
        f"{_grid(axes)}{''.join(bars)}{_dates(report, axes)}</svg>{_legend(report, order)}"
    )


def gpus(line: UsageLine) -> float:
    """Return the average number of GPUs held in a step."""
    return line.time.allocated_s / (line.until - line.at)


def nice(value: float) -> float:
    """Return the next round number at or above a value: 1, 2, 2.5 or 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= value * (1 - 1e-9))


def _order(report: UsageReport) -> list[str]:
    """Return the keys of the timeline, the largest first and the rest last."""
    present = {line.key for line in report.timeline}
    named = [line.key for line in report.lines if line.key in present]
    rest = sorted(present - set(named) - {OTHERS})
    return [*named, *rest, *([OTHERS] if OTHERS in present else [])]


def _colour(order: Sequence[str], key: str) -> str:
    return "c7" if key == OTHERS else f"c{order.index(key) % COLOURS}"


def _column(report: UsageReport, axes: _Axes, order: Sequence[str], found: dict[str, UsageLine]) -> str:
    parts, height = [], 0.0
    for key in order:
        line = found.get(key)
        if line is None or not line.time.allocated_s:
            continue
        left, right = axes.x(line.at), axes.x(line.until)
        low, high = axes.y(height), axes.y(height + gpus(line))
        height += gpus(line)
        when = moment(line.at, report.zone, report.step)
        text = f"{label(report.by, line)}, {when}: {gpus(line):.2f} GPUs, {hours(line.time.allocated_s)} GPU hours"
        gap = min(1.0, (right - left) / 5)
        parts.append(
            f'<rect class="{_colour(order, key)}" x="{left:.2f}" y="{high:.2f}" width="{right - left - gap:.2f}"'
            f' height="{low - high:.2f}"><title>{escape(text)}</title></rect>'
        )
    return "".join(parts)


def _grid(axes: _Axes) -> str:
    lines = []
    for part in (0, 0.25, 0.5, 0.75, 1):
        y = axes.y(axes.top * part)
        lines.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        lines.append(f'<text class="end" x="{LEFT - 6}" y="{y + 4:.1f}">{axes.top * part:g}</text>')
    return "".join(lines)


def _dates(report: UsageReport, axes: _Axes) -> str:
    begins = sorted({line.at for line in report.timeline})
    every = max(1, -(-len(begins) // TICKS_ACROSS))
    return "".join(
        f'<text x="{axes.x(at):.1f}" y="{HEIGHT - 8}">{escape(moment(at, report.zone, report.step))}</text>'
        for at in begins[::every]
        if axes.x(at) < WIDTH - 90
    )


def _legend(report: UsageReport, order: Sequence[str]) -> str:
    names = {line.key: line for line in (*report.timeline, *report.lines)}
    items = [
        f'<li><svg class="key" viewBox="0 0 10 10" aria-hidden="true"><rect class="{_colour(order, key)}" width="10"'
        f' height="10"/></svg>{escape(label(report.by, names[key]))}</li>'
        for key in order
    ]
    return f'<ul class="legend">{"".join(items)}</ul>' if len(items) > 1 else ""


def bar(line: UsageLine, most: float) -> str:
    """Return a bar of the GPU time held, with the part that was used."""
    held = 100 * line.time.allocated_s / most if most else 0.0
    used = 0.0 if line.time.used_part is None else held * min(1.0, line.time.used_part)
    return (
        '<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="held" width="{held:.2f}" height="10"/>'
        f'<rect class="used" width="{used:.2f}" height="10"/></svg>'
    )
