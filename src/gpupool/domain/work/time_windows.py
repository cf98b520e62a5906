"""Time windows: when work may start, as users write it (``mon-fri 20:00-08:00``, ``sat,sun``, ``nights``).

A window follows the local time of a time zone. When clocks go forward, a skipped time stands for the moment at which
it would have come. When they go back, a window opens at the first of two equal times and closes at the second.
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

MAX_WINDOWS = 16
DAY_NAMES = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
NAMED_WINDOWS = {"nights": "daily 20:00-08:00", "weekends": "sat,sun", "always": "daily"}
_DAY_MINUTES = 1440
_MAX_TEXT_LENGTH = 80
_AHEAD_DAYS = 9  # every window opens again within a week
_TIMES = re.compile(r"(\d{1,2}):(\d{2})-(\d{1,2}):(\d{2})")


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """A window that opens on ``days`` (0: Monday) at ``start`` and closes at ``end``, in minutes after midnight.

    ``end`` above a day's minutes is on the next day.
    """

    text: str
    days: frozenset[int]
    start: int
    end: int

    def span(self, day: date, zone: tzinfo) -> tuple[float, float]:
        """Return the opening and closing time if it opens on a day; seconds since the epoch."""
        return _moment(day, self.start, zone, fold=0), _moment(day, self.end, zone, fold=1)


def parse_window(text: str) -> TimeWindow:
    """Parse one window: days, times or both, or a name. Raises ``GpupoolError(INVALID_REQUEST)``."""
    cleaned = " ".join(text.lower().split()) if len(text) <= _MAX_TEXT_LENGTH else ""
    words = NAMED_WINDOWS.get(cleaned, cleaned).split(" ")
    times = _parse_times(words[-1])
    days = words[:-1] if times else words
    if len(days) > 1 or (times is None and not days[0]):
        raise _unreadable(text)
    chosen = _parse_days(days[0]) if days else frozenset(range(7))
    if not chosen:
        raise _unreadable(text)
    start, end = times or (0, _DAY_MINUTES)
    return TimeWindow(cleaned, chosen, start, end)


def parse_windows(texts: Sequence[str]) -> tuple[TimeWindow, ...]:
    """Parse several windows. Raises ``GpupoolError``: INVALID_REQUEST, TOO_LARGE for more than 16."""
    if len(texts) > MAX_WINDOWS:
        raise GpupoolError(ErrorCode.TOO_LARGE, f"There are more than {MAX_WINDOWS} time windows.", "Give fewer.")
    return tuple(map(parse_window, texts))


class TimeWindows:
    """The times at which at least one of several windows is open."""

    def __init__(self, windows: Sequence[TimeWindow], zone: tzinfo) -> None:
        self.windows, self.zone = tuple(windows), zone
        self._known: tuple[float, float, bool] = (0.0, 0.0, False)

    def open_at(self, t: float) -> bool:
        """Return whether a window is open at ``t`` (seconds since the epoch)."""
        return self._state(t)[2]

    def closes_at(self, t: float) -> float | None:
        """Return the closing time if a window is open at ``t``; infinite: never. None if all are closed."""
        _, until, is_open = self._state(t)
        return until if is_open else None

    def next_open(self, t: float) -> float:
        """Return ``t`` if a window is open then, else the next opening; infinite if there is none."""
        _, until, is_open = self._state(t)
        return t if is_open else until

    def describe(self, t: float) -> str:
        """Return ``nights, sat,sun; next Monday 20:00``: the windows, and the next opening if all are closed."""
        texts = ", ".join(window.text for window in self.windows)
        opens = self.next_open(t)
        if opens in {t, inf}:
            return texts
        return f"{texts}; next {datetime.fromtimestamp(opens, self.zone):%A %H:%M}"

    def _state(self, t: float) -> tuple[float, float, bool]:
        """Return begin, end and whether it is open, of the period that contains ``t``."""
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
        """Yield the open periods around and after ``t``; adjacent ones are joined; one above a week never ends."""
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
def cached_windows(texts: tuple[str, ...], zone: tzinfo) -> TimeWindows:
    """Parse windows, with a cache; see ``parse_windows`` for the errors."""
    return TimeWindows(parse_windows(texts), zone)


def read_zone(name: str) -> tzinfo:
    """Return a time zone by name (``Europe/Berlin``); raise ``GpupoolError(INVALID_REQUEST)``."""
    if name == "UTC":
        return UTC  # also without a time zone database on the machine
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST, f"'{name[:80]}' is not a time zone.", "Write Europe/Berlin or UTC, for example."
        ) from error


def parse_moment(text: str, zone: tzinfo, now: float) -> float:
    """Return seconds since the epoch for ``now``, ``+2h`` or ``2026-11-23 09:00`` (in a time zone).

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
    """Return the time with the fold that gives a skipped moment the offset before the change."""
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
    """Return the day numbers in ``mon-fri``, ``sat,sun`` or ``daily``; empty for other text."""
    if text == "daily":
        return frozenset(range(7))
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if first not in DAY_NAMES or (dash and last not in DAY_NAMES):
            return frozenset()
        begin, end = DAY_NAMES.index(first), DAY_NAMES.index(last if dash else first)
        found.update((begin + ahead) % 7 for ahead in range((end - begin) % 7 + 1))
    return frozenset(found)


def _unreadable(text: str) -> GpupoolError:
    return GpupoolError(
        ErrorCode.INVALID_REQUEST,
        f"'{text[:40]}' is not a time window.",
        "Write 'mon-fri 20:00-08:00', 'sat,sun', '22:00-06:00', nights or weekends.",
    )
