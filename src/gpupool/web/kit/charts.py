"""Line charts for charts.js, and as CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpupool.web.kit.listing import iso
from gpupool.web.kit.ranges import TimeRange

MAX_POINTS = 600

Values = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class ChartLine:
    """One line; a ``limit`` is a bound of the others, drawn thin and not stacked."""

    label: str
    values: Values
    limit: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over the same times (epoch seconds, ascending), at most ``MAX_POINTS``.

    ``stepped``: a value holds for ``step_s`` seconds from its time. ``note`` is shown if the chart is empty.
    """

    title: str
    unit: str
    span: TimeRange
    times: Sequence[float]
    lines: Sequence[ChartLine]
    stepped: bool = True
    stacked: bool = False
    step_s: float = 0.0
    note: str = ""

    def document(self) -> dict[str, Any]:
        """Return the values that charts.js reads."""
        series: list[dict[str, Any]] = [
            {"label": line.label, "values": [_short(value) for value in line.values]}
            | ({"limit": True} if line.limit else {})
            for line in self.lines
        ]
        return {
            "title": self.title,
            "unit": self.unit,
            "since": self.span.since,
            "until": self.span.until,
            "step_s": self.step_s or self.span.step_s,
            "stepped": self.stepped,
            "stacked": self.stacked,
            "note": self.note,
            "times": list(self.times),
            "series": series,
        }

    def json(self) -> bytes:
        """Return the document as JSON."""
        return json.dumps(self.document(), separators=(",", ":"), allow_nan=False).encode()

    def csv(self) -> str:
        """Return the chart as CSV: the time as ISO 8601 and epoch seconds, and a column for each line."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\r\n")
        unit = f" ({self.unit})" if self.unit else ""
        writer.writerow(["time", "epoch_s", *(_plain(line.label + unit) for line in self.lines)])
        for number, at in enumerate(self.times):
            values = (line.values[number] for line in self.lines)
            writer.writerow([iso(at), f"{at:.3f}", *("" if value is None else repr(value) for value in values)])
        return out.getvalue()


def _short(value: float | None) -> float | None:
    """Round to five significant digits."""
    return None if value is None else float(f"{value:.5g}")


def _plain(text: str) -> str:
    """Return a heading that spreadsheets do not read as a formula."""
    return "'" + text if text[:1] in {"=", "+", "-", "@", "\t", "\r"} else text


def downsample(times: Sequence[float], columns: Sequence[Values]) -> tuple[list[float], list[list[float | None]]]:
    """Reduce to at most ``MAX_POINTS`` by averaging neighbours."""
    group = -(-len(times) // MAX_POINTS)
    if group <= 1:
        return list(times), [list(values) for values in columns]
    starts = range(0, len(times), group)
    return [times[at] for at in starts], [[_mean(values[at : at + group]) for at in starts] for values in columns]


def _mean(values: Values) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
