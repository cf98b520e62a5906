"""Format labels, numbers and times of a report, in the same way for all its forms."""

from __future__ import annotations

from datetime import datetime

from gpupool.domain.units import format_duration
from gpupool.domain.usage import GroupBy, Period, UsageLine
from gpupool.domain.work.time_windows import read_zone
from gpupool.services.ports.usage import OTHERS

NOT_MEASURED = "not measured"
NONE = "(none)"
_UNKNOWN = {GroupBy.MODEL: "(unknown)", GroupBy.POOL: "pool"}
_MOMENT = {Period.HOUR: "%Y-%m-%d %H:%M", Period.DAY: "%Y-%m-%d", Period.WEEK: "%Y-%m-%d", Period.MONTH: "%Y-%m"}


def label(by: GroupBy, line: UsageLine) -> str:
    """Return the label of a line."""
    if line.key == OTHERS:
        return "others"
    return line.name or line.key or _UNKNOWN.get(by, NONE)


def hours(seconds: float | None, *, unknown: str = NOT_MEASURED) -> str:
    """Format seconds as GPU hours: ``12.34``."""
    return unknown if seconds is None else f"{seconds / 3600:,.2f}"


def percent(part: float | None, whole: float, *, unknown: str = NOT_MEASURED) -> str:
    """Format a ratio as ``43 %``."""
    return unknown if part is None or not whole else f"{100 * part / whole:.0f} %"


def money(amount: float | None, currency: str) -> str:
    """Format a cost as ``12.34 EUR``; a dash without a rate."""
    return "-" if amount is None else f"{amount:,.2f} {currency}".rstrip()


def seconds(value: float | None) -> str:
    """Format a waiting time."""
    if value is None:
        return "-"
    return f"{value:.1f}s" if value < 10 else format_duration(value)


def moment(at: float, zone: str, period: Period | None = None) -> str:
    """Format a time in a time zone, with the precision of the step."""
    form = "%Y-%m-%d %H:%M:%S" if period is None else _MOMENT[period]
    return f"{datetime.fromtimestamp(at, read_zone(zone)):{form}}"
