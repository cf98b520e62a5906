"""The words and numbers of a report, the same in every form of it."""

from __future__ import annotations

from datetime import datetime

from gpupool.domain.units import format_duration
from gpupool.domain.usage import By, Period, UsageLine
from gpupool.domain.windows import read_zone
from gpupool.services.reports import OTHERS

NOT_MEASURED = "not measured"
NONE = "(none)"
_UNKNOWN = {By.MODEL: "(unknown)", By.POOL: "pool"}
_MOMENT = {Period.HOUR: "%Y-%m-%d %H:%M", Period.DAY: "%Y-%m-%d", Period.WEEK: "%Y-%m-%d", Period.MONTH: "%Y-%m"}


def label(by: By, line: UsageLine) -> str:
    """What a line is of: a name where there is one."""
    if line.key == OTHERS:
        return "others"
    return line.name or line.key or _UNKNOWN.get(by, NONE)


def hours(seconds: float | None, *, unknown: str = NOT_MEASURED) -> str:
    """GPU hours: ``12.34``."""
    return unknown if seconds is None else f"{seconds / 3600:,.2f}"


def percent(part: float | None, whole: float, *, unknown: str = NOT_MEASURED) -> str:
    """``43 %``."""
    return unknown if part is None or not whole else f"{100 * part / whole:.0f} %"


def money(amount: float | None, currency: str) -> str:
    """``12.34 EUR``; a dash where no rate covers it."""
    return "-" if amount is None else f"{amount:,.2f} {currency}".rstrip()


def seconds(value: float | None) -> str:
    """A waiting time."""
    if value is None:
        return "-"
    return f"{value:.1f}s" if value < 10 else format_duration(value)


def moment(at: float, zone: str, period: Period | None = None) -> str:
    """A moment in a zone; of a step, as much of it as matters."""
    form = "%Y-%m-%d %H:%M:%S" if period is None else _MOMENT[period]
    return f"{datetime.fromtimestamp(at, read_zone(zone)):{form}}"
