"""Steps of a timeline: hours, days, weeks and months in a time zone."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, tzinfo

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.usage import Period

MAX_STEPS = 10_000
HOUR_S = 3600
SHORTEST_S = {Period.HOUR: 3600.0, Period.DAY: 23 * 3600.0, Period.WEEK: 6.9 * 86400, Period.MONTH: 27.9 * 86400}
LATEST = datetime(9990, 1, 1, tzinfo=UTC).timestamp()


def edges_of(since: float, until: float, step: Period, zone: tzinfo) -> tuple[float, ...]:
    """Return ``since``, the start of every step between, and ``until``.

    Hours count from the epoch. Days begin at midnight in the zone (a day with a clock change has 23 or 25 hours), weeks
    on Mondays, months on the first. Raises INVALID_REQUEST for more than ``MAX_STEPS``.
    """
    if (until - since) / SHORTEST_S[step] > MAX_STEPS or until > LATEST:
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST,
            f"The timeline has more than {MAX_STEPS} steps.",
            "Use a shorter period, or days, weeks or months.",
        )
    if since >= until:
        return (since, until)
    return (since, *(at for at in _beginnings(since, until, step, zone) if since < at < until), until)


def _beginnings(since: float, until: float, step: Period, zone: tzinfo) -> Iterator[float]:
    """Yield the start of every step, from the one before ``since`` to ``until``."""
    if step is Period.HOUR:
        at = since // HOUR_S * HOUR_S
        while at < until:
            yield at
            at += HOUR_S
        return
    day = _first_day(datetime.fromtimestamp(since, zone).date(), step)
    while (midnight := datetime(day.year, day.month, day.day, tzinfo=zone).timestamp()) < until:
        yield midnight
        day = _next(day, step)


def _first_day(day: date, step: Period) -> date:
    if step is Period.WEEK:
        return day - timedelta(days=day.weekday())
    return day.replace(day=1) if step is Period.MONTH else day


def _next(day: date, step: Period) -> date:
    if step is Period.MONTH:
        return (day.replace(day=1) + timedelta(days=32)).replace(day=1)
    return day + timedelta(days=7 if step is Period.WEEK else 1)
