"""The time that a page looks at, kept in its address: ``?range=24h``, or ``?since=...&until=...`` in epoch seconds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.usage import Period
from gpupool.domain.windows import read_zone
from gpupool.services.calendar import LATEST, edges_of
from gpupool.services.moments import Moments

HOUR_S = 3600
DAY_S = 86400
RANGES: dict[str, int] = {"1h": HOUR_S, "24h": DAY_S, "7d": 7 * DAY_S, "30d": 30 * DAY_S, "1y": 365 * DAY_S}
NAMES = {"1h": "Hour", "24h": "Day", "7d": "Week", "30d": "Month", "1y": "Year"}
DEFAULT = "24h"
LONGEST_S = 20 * 366 * DAY_S
# The step of a chart, by the longest time that it is for: at most some 600 steps. Hours and days that are over are
# summed in the store, what is finer is read from the leases. Days and weeks are the calendar's.
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
        """How long a step of a chart is."""
        span = self.until - self.since
        return next((step for longest, step in STEPS if span <= longest), WEEK_S)

    @property
    def lasts_s(self) -> float:
        """How long what was found of it may be shown."""
        return min(600.0, max(10.0, self.step_s / 6))

    def edges(self) -> tuple[float, ...]:
        """Where its steps begin, and its end; the first and the last step may be cut off."""
        if self.step_s >= DAY_S:
            period = Period.DAY if self.step_s == DAY_S else Period.WEEK
            return edges_of(self.since, self.until, period, read_zone(self.zone))
        first = math.floor(self.since / self.step_s) + 1
        last = math.ceil(self.until / self.step_s)
        return (self.since, *(float(number * self.step_s) for number in range(first, last)), self.until)

    def moments(self) -> Moments:
        """Every beginning of a step of as many seconds, and the end if it is one."""
        first = math.ceil(self.since / self.step_s)
        return Moments(float(first * self.step_s), float(self.step_s), math.floor(self.until / self.step_s) - first + 1)

    @property
    def query(self) -> str:
        """What names it in an address."""
        if self.name:
            return urlencode({"range": self.name})
        return urlencode(
            {"since": f"{self.since:g}" if self.since < 1e6 else round(self.since), "until": round(self.until)}
        )


@dataclass(frozen=True, slots=True)
class RangeLink:
    """One choice of the picker."""

    name: str
    title: str
    href: str
    chosen: bool


def read_range(query: Mapping[str, str], now: float, zone: str, default: str = DEFAULT) -> TimeRange:
    """What a query asks for; a named range ends a little before now, so that it is the same for a while.

    Raises ``GpupoolError(INVALID_REQUEST)``.
    """
    if "since" in query or "until" in query:
        until = _moment(query, "until", now)
        since = _moment(query, "since", until - RANGES[default])
        if not 0 <= since < until <= since + LONGEST_S:
            raise _bad("That time is empty or too long.", "Give since before until, at most 20 years.")
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
        raise _bad(f"{name}: '{text[:40]}' is no time.", "Give seconds since the epoch.") from error
    if not 0 <= found <= LATEST:
        raise _bad(f"{name}: '{text[:40]}' is no time.", "Give seconds since the epoch.")
    return found


def _bad(sentence: str, hint: str) -> GpupoolError:
    return GpupoolError(ErrorCode.INVALID_REQUEST, sentence, hint)


def range_links(path: str, query: Mapping[str, str], chosen: TimeRange) -> tuple[RangeLink, ...]:
    """The choices of the picker; the rest of the query stays."""
    kept = {key: value for key, value in query.items() if key not in {"range", "since", "until", "page"}}
    return tuple(
        RangeLink(name, title, f"{path}?{urlencode({**kept, 'range': name})}", chosen.name == name)
        for name, title in NAMES.items()
    )
