"""Time range of a page in its address: ``?range=24h``, or ``?since=...&until=...`` in epoch seconds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.usage import Period
from gpupool.domain.work.time_windows import read_zone
from gpupool.services.ports.usage import Moments
from gpupool.services.usage.calendar import LATEST, edges_of

HOUR_S = 3600
DAY_S = 86400
RANGES: dict[str, int] = {"1h": HOUR_S, "24h": DAY_S, "7d": 7 * DAY_S, "30d": 30 * DAY_S, "1y": 365 * DAY_S}
RANGE_TITLES = {"1h": "Hour", "24h": "Day", "7d": "Week", "30d": "Month", "1y": "Year"}
DEFAULT_RANGE = "24h"
RANGE_NAMES = ("range", "since", "until")  # query parameters
MAX_RANGE_S = 20 * 366 * DAY_S
# The step of a chart by the longest time range that uses it: at most about 600 steps. Past hours and days are summed
# in the store; finer steps are computed from leases. Days and weeks follow the calendar.
STEPS = (
    (3 * HOUR_S, 60),
    (20 * DAY_S, HOUR_S),
    (65 * DAY_S, 3 * HOUR_S),
    (600 * DAY_S, DAY_S),
)
WEEK_S = 7 * DAY_S


@dataclass(frozen=True, slots=True)
class TimeRange:
    """From ``since`` to ``until``; ``name`` is one of ``RANGES`` or empty. ``zone`` is that of days."""

    name: str
    since: float
    until: float
    zone: str

    @property
    def step_s(self) -> int:
        """Return the length of a chart step."""
        span = self.until - self.since
        return next((step for longest, step in STEPS if span <= longest), WEEK_S)

    @property
    def cache_s(self) -> float:
        """Return how long results for this range are cached."""
        return min(600.0, max(10.0, self.step_s / 6))

    def edges(self) -> tuple[float, ...]:
        """Return the start of each step and the end; the first and last step can be shorter."""
        if self.step_s >= DAY_S:
            period = Period.DAY if self.step_s == DAY_S else Period.WEEK
            return edges_of(self.since, self.until, period, read_zone(self.zone))
        first = math.floor(self.since / self.step_s) + 1
        last = math.ceil(self.until / self.step_s)
        return (self.since, *(float(number * self.step_s) for number in range(first, last)), self.until)

    def moments(self) -> Moments:
        """Return the sample times: multiples of the step within the range."""
        first = math.ceil(self.since / self.step_s)
        return Moments(float(first * self.step_s), float(self.step_s), math.floor(self.until / self.step_s) - first + 1)

    @property
    def query(self) -> str:
        """Return the query string of the range."""
        if self.name:
            return urlencode({"range": self.name})
        return urlencode(
            {"since": f"{self.since:g}" if self.since < 1e6 else round(self.since), "until": round(self.until)}
        )


@dataclass(frozen=True, slots=True)
class RangeLink:
    """One link of the range picker."""

    name: str
    title: str
    href: str
    chosen: bool


def read_range(query: Mapping[str, str], now: float, zone: str, default: str = DEFAULT_RANGE) -> TimeRange:
    """Read the time range of a query. A named range ends at a rounded time, so that results can be cached.

    Raises ``GpupoolError(INVALID_REQUEST)``.
    """
    if "since" in query or "until" in query:
        until = _moment(query, "until", now)
        since = _moment(query, "since", until - RANGES[default])
        if not 0 <= since < until <= since + MAX_RANGE_S:
            raise _bad("The time range is empty or too long.", "Use since before until, at most 20 years apart.")
        return TimeRange("", since, until, zone)
    name = query.get("range", default)
    if name not in RANGES:
        raise _bad(f"There is no range '{name[:20]}'.", f"Ranges: {', '.join(RANGES)}.")
    grain = 10 if RANGES[name] <= DAY_S else 60 if RANGES[name] <= 7 * DAY_S else 600
    until = math.floor(now / grain) * grain
    return TimeRange(name, float(until - RANGES[name]), float(until), zone)


def _moment(query: Mapping[str, str], name: str, otherwise: float) -> float:
    text = query.get(name, "")
    if not text:
        return otherwise
    try:
        found = float(text[:40])
    except ValueError as error:
        raise _bad(f"{name}: '{text[:40]}' is not a time.", "Give seconds since the epoch.") from error
    if not 0 <= found <= LATEST:
        raise _bad(f"{name}: '{text[:40]}' is not a time.", "Give seconds since the epoch.")
    return found


def _bad(sentence: str, hint: str) -> GpupoolError:
    return GpupoolError(ErrorCode.INVALID_REQUEST, sentence, hint)


def range_links(path: str, query: Mapping[str, str], chosen: TimeRange) -> tuple[RangeLink, ...]:
    """Return the links of the range picker; other query parameters are kept."""
    kept = {key: value for key, value in query.items() if key not in {"range", "since", "until", "page"}}
    return tuple(
        RangeLink(name, title, f"{path}?{urlencode({**kept, 'range': name})}", chosen.name == name)
        for name, title in RANGE_TITLES.items()
    )
