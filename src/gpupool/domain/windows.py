"""Time windows: when work may start, as people say it (``mon-fri 20:00-08:00``, ``sat,sun``, ``nights``).

A window is meant by the clock on the wall of a time zone. Where clocks are put forward, a time that is left out stands
for the moment at which it would have come; where they are put back, a window opens at the first of two equal times and
closes at the second.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from math import inf
from zoneinfo import ZoneInfo

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.units import parse_duration_s

MOST_WINDOWS = 16
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
NAMED = {"nights": "daily 20:00-08:00", "weekends": "sat,sun", "always": "daily"}
_DAY_MINUTES = 1440
_LONGEST_TEXT = 80
_AHEAD_DAYS = 9  # every window opens again within a week
_TIMES = re.compile(r"(\d{1,2}):(\d{2})-(\d{1,2}):(\d{2})")


@dataclass(frozen=True, slots=True)
class Window:
    """Opens on ``days`` of the week (0: Monday) at ``start`` and closes at ``end``, minutes after that midnight.

    ``end`` beyond a day's minutes is on the day after.
    """

    text: str
    days: frozenset[int]
    start: int
    end: int

    def span(self, day: date, zone: tzinfo) -> tuple[float, float]:
        """From when to when it is open if it opens on a day; seconds since the epoch."""
        return _moment(day, self.start, zone, fold=0), _moment(day, self.end, zone, fold=1)


def parse_window(text: str) -> Window:
    """One window: days, times or both, or a name. Raises ``GpupoolError(INVALID_REQUEST)``."""
    cleaned = " ".join(text.lower().split()) if len(text) <= _LONGEST_TEXT else ""
    words = NAMED.get(cleaned, cleaned).split(" ")
    times = _parse_times(words[-1])
    days = words[:-1] if times else words
    if len(days) > 1 or (times is None and not days[0]):
        raise _unreadable(text)
    chosen = _parse_days(days[0]) if days else frozenset(range(7))
    if not chosen:
        raise _unreadable(text)
    start, end = times or (0, _DAY_MINUTES)
    return Window(cleaned, chosen, start, end)


def parse_windows(texts: Sequence[str]) -> tuple[Window, ...]:
    """Several. Raises ``GpupoolError``: INVALID_REQUEST, TOO_LARGE for more than 16."""
    if len(texts) > MOST_WINDOWS:
        raise GpupoolError(ErrorCode.TOO_LARGE, f"There are more than {MOST_WINDOWS} time windows.", "Give fewer.")
    return tuple(map(parse_window, texts))


class Windows:
    """Times at which at least one of some windows is open."""

    def __init__(self, windows: Sequence[Window], zone: tzinfo) -> None:
        self.windows, self.zone = tuple(windows), zone
        self._known: tuple[float, float, bool] = (0.0, 0.0, False)

    def open_at(self, t: float) -> bool:
        """Whether one is open at ``t`` (seconds since the epoch)."""
        return self._state(t)[2]

    def closes_at(self, t: float) -> float | None:
        """When it is open no longer, if it is open at ``t``; infinite: never. None when it is closed."""
        _, until, is_open = self._state(t)
        return until if is_open else None

    def next_open(self, t: float) -> float:
        """``t`` if it is open then, else the next opening; infinite when there is none."""
        _, until, is_open = self._state(t)
        return t if is_open else until

    def describe(self, t: float) -> str:
        """``nights, sat,sun; next Monday 20:00``: the windows, and when the next one opens if none is open."""
        texts = ", ".join(window.text for window in self.windows)
        opens = self.next_open(t)
        if opens in {t, inf}:
            return texts
        return f"{texts}; next {datetime.fromtimestamp(opens, self.zone):%A %H:%M}"

    def _state(self, t: float) -> tuple[float, float, bool]:
        """Since when, until when, and whether it is open: the stretch that ``t`` is in."""
        if not self._known[0] <= t < self._known[1]:
            self._known = self._find(t)
        return self._known

    def _find(self, t: float) -> tuple[float, float, bool]:
        closed_since = t
        for opens, closes in self._spans(t):
            if t < opens:
                return closed_since, opens, False
            if t < closes:
                return opens, closes, True
            closed_since = closes
        return closed_since, inf, False

    def _spans(self, t: float) -> Iterator[tuple[float, float]]:
        """The open stretches around and after ``t``, those that touch as one; one longer than a week never ends."""
        today = datetime.fromtimestamp(t, self.zone).date()
        days = [today + timedelta(days=ahead) for ahead in range(-_AHEAD_DAYS, _AHEAD_DAYS)]
        found = [w.span(day, self.zone) for day in days for w in self.windows if day.weekday() in w.days]
        merged: list[tuple[float, float]] = []
        for opens, closes in sorted(span for span in found if span[0] < span[1]):
            if merged and opens <= merged[-1][1]:
                merged[-1] = merged[-1][0], max(closes, merged[-1][1])
            else:
                merged.append((opens, closes))
        last = max((closes for _, closes in merged), default=0.0)
        for opens, closes in merged:
            yield opens, inf if closes == last and closes > t + 7 * 86400 and opens <= t else closes


@lru_cache(maxsize=1024)
def windows_of(texts: tuple[str, ...], zone: tzinfo) -> Windows:
    """The windows in some texts; see ``parse_windows`` for the errors."""
    return Windows(parse_windows(texts), zone)


def read_zone(name: str) -> tzinfo:
    """A time zone by name (``Europe/Berlin``); raises ``GpupoolError(INVALID_REQUEST)``."""
    if name == "UTC":
        return UTC  # also where the machine has no table of zones
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST, f"'{name[:80]}' is not a time zone.", "Write Europe/Berlin or UTC, for example."
        ) from error


def parse_moment(text: str, zone: tzinfo, now: float) -> float:
    """Seconds since the epoch in ``now``, ``+2h`` or ``2026-11-23 09:00`` (by the clocks of a zone).

    Raises ``GpupoolError``: INVALID_REQUEST, INVALID_DURATION.
    """
    if text == "now":
        return now
    if text.startswith("+"):
        return now + parse_duration_s(text[1:])
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST, f"'{text[:40]}' is not a time.", "Write '2026-11-23 09:00', now, or +2h."
        ) from error
    return (found if found.tzinfo else found.replace(tzinfo=zone)).timestamp()


def _moment(day: date, minutes: int, zone: tzinfo, *, fold: int) -> float:
    days, rest = divmod(minutes, _DAY_MINUTES)
    day += timedelta(days=days)
    return datetime.combine(day, _there(day, time(rest // 60, rest % 60, fold=fold), zone), zone).timestamp()


def _there(day: date, clock: time, zone: tzinfo) -> time:
    """The time with the fold that a moment left out by the clocks needs: that of before the change."""
    early, late = (datetime.combine(day, clock.replace(fold=fold), zone).timestamp() for fold in (0, 1))
    return clock.replace(fold=0) if late < early else clock


def _parse_times(text: str) -> tuple[int, int] | None:
    match = _TIMES.fullmatch(text)
    if match is None:
        return None
    hours = [int(match[1]), int(match[3])]
    minutes = [int(match[2]), int(match[4])]
    start, end = (h * 60 + m for h, m in zip(hours, minutes, strict=True))
    if max(minutes) > 59 or start >= _DAY_MINUTES or end > _DAY_MINUTES or start == end:
        return None
    return start, end if end > start else end + _DAY_MINUTES


def _parse_days(text: str) -> frozenset[int]:
    """Numbers of the days in ``mon-fri``, ``sat,sun`` or ``daily``; empty when it cannot be read."""
    if text == "daily":
        return frozenset(range(7))
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if first not in DAYS or (dash and last not in DAYS):
            return frozenset()
        begin, end = DAYS.index(first), DAYS.index(last if dash else first)
        found.update((begin + ahead) % 7 for ahead in range((end - begin) % 7 + 1))
    return frozenset(found)


def _unreadable(text: str) -> GpupoolError:
    return GpupoolError(
        ErrorCode.INVALID_REQUEST,
        f"'{text[:40]}' is not a time window.",
        "Write 'mon-fri 20:00-08:00', 'sat,sun', '22:00-06:00', nights or weekends.",
    )
