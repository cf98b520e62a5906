"""What the reports page asks for and shows: the same report as `gpupool report` makes."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import TypeVar
from urllib.parse import urlencode

from gpupool.api.reports.words import label
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.usage import By, Period, Scope, UsageLine, WaitLine
from gpupool.domain.windows import read_zone
from gpupool.services.reports import Report, Wish
from gpupool.web.listing import Column, Kind

Word = TypeVar("Word", By, Period)

HOUR_S = 3600.0
PERIODS = {
    "7d": "the last 7 days",
    "30d": "the last 30 days",
    "90d": "the last 90 days",
    "month": "this month",
    "last-month": "last month",
    "year": "this year",
    "days": "the days below",
}
GROUPS = (By.PROJECT, By.USER, By.MEMBER, By.DEPARTMENT, By.MODEL, By.NODE, By.WORKLOAD, By.POOL)
GROUP_NAMES = {By.MEMBER: "user in a project", By.POOL: "nothing: one sum", By.MODEL: "GPU model"}
DEFAULT_PERIOD = "30d"
ROLLING = {"7d": 7, "30d": 30, "90d": 90}
GRAIN_S = 60.0  # a report ends at a whole minute, so that all who look at it within that minute see the same one
FINE_GRAIN_S = 10.0  # of a short one, which is soon made again


@dataclass(frozen=True, slots=True)
class Asked:
    """What the form says; ``wish`` is what the report is made of, ``query`` names it in an address."""

    period: str
    first: str
    last: str
    project: str
    user: str
    wish: Wish

    @property
    def query(self) -> str:
        """The same report again, at the same moment."""
        wish = self.wish
        asked = {"since": f"{wish.since:.3f}", "until": f"{wish.until:.3f}", "by": wish.by.value}
        asked |= {"step": wish.step.value} if wish.step else {}
        asked |= {"project": self.project} if self.project else {}
        asked |= {"user": self.user} if self.user else {}
        return urlencode(asked)

    @property
    def command(self) -> str:
        """What makes the same report in a terminal."""
        since, until = (
            f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ}" for at in (self.wish.since, self.wish.until)
        )
        words = ["gpupool", "report", "--since", since, "--until", until, "--by", self.wish.by.value]
        words += ["--step", self.wish.step.value] if self.wish.step else []
        words += ["--project", self.project] if self.project else []
        words += ["--user", self.user] if self.user else []
        return shlex.join(words)


def read_form(query: Mapping[str, str], now: float, zone: str) -> Asked:
    """What a query asks for; days are those of the pool's zone. Raises ``GpupoolError(INVALID_REQUEST)``."""
    period = query.get("period", DEFAULT_PERIOD)
    if period not in PERIODS:
        raise _bad(f"There is no period '{period[:20]}'.", f"Known: {', '.join(PERIODS)}.")
    place, project, user = read_zone(zone), query.get("project", "")[:64].strip(), query.get("user", "")[:64].strip()
    grain_s = FINE_GRAIN_S if period == "7d" else GRAIN_S
    since, until = _span(period, query, math.floor(now / grain_s) * grain_s, place)
    wish = Wish(
        since=since,
        until=until,
        by=_one_of(By, "by", query.get("by", ""), By.PROJECT),
        step=_one_of(Period, "step", query["step"], Period.DAY) if query.get("step") else None,
        zone=zone,
        scope=Scope(project=project or None, user=user or None),
    )
    last = datetime.fromtimestamp(until, place) - timedelta(microseconds=1)
    first = datetime.fromtimestamp(since, place)
    return Asked(period, f"{first:%Y-%m-%d}", f"{last:%Y-%m-%d}", project, user, wish)


def read_wish(query: Mapping[str, str], zone: str) -> Wish:
    """The report that ``Asked.query`` names. Raises ``GpupoolError(INVALID_REQUEST)``."""
    return Wish(
        since=_moment(query, "since"),
        until=_moment(query, "until"),
        by=_one_of(By, "by", query.get("by", ""), By.PROJECT),
        step=_one_of(Period, "step", query["step"], Period.DAY) if query.get("step") else None,
        zone=zone,
        scope=Scope(project=query.get("project") or None, user=query.get("user") or None),
    )


def _span(period: str, query: Mapping[str, str], now: float, zone: tzinfo) -> tuple[float, float]:
    today = datetime.fromtimestamp(now, zone).date()
    month = today.replace(day=1)
    match period:
        case "month":
            return _midnight(month, zone), now
        case "last-month":
            return _midnight((month - timedelta(days=1)).replace(day=1), zone), _midnight(month, zone)
        case "year":
            return _midnight(today.replace(month=1, day=1), zone), now
        case "days":
            first, last = _day(query, "from", today), _day(query, "to", today)
            return _midnight(first, zone), min(now, _midnight(last + timedelta(days=1), zone))
        case _:
            return max(0.0, now - ROLLING[period] * 86400), now


def _midnight(day: date, zone: tzinfo) -> float:
    return max(0.0, datetime(day.year, day.month, day.day, tzinfo=zone).timestamp())


def _day(query: Mapping[str, str], name: str, otherwise: date) -> date:
    text = query.get(name, "")
    if not text:
        return otherwise
    try:
        found = date.fromisoformat(text)
    except ValueError as error:
        raise _bad(f"{name}: '{text[:20]}' is no day.", "Write 2026-03-31.") from error
    if not 1971 <= found.year <= 9000:
        raise _bad(f"{name}: '{text[:20]}' is too far away.", "Write 2026-03-31.")
    return found


def _moment(query: Mapping[str, str], name: str) -> float:
    try:
        found = float(query.get(name, "")[:40])
    except ValueError as error:
        raise _bad(f"{name}: no time.", "Give seconds since the epoch.") from error
    if not 0 <= found < 1e11:
        raise _bad(f"{name}: no time.", "Give seconds since the epoch.")
    return found


def _one_of(kind: type[Word], name: str, text: str, otherwise: Word) -> Word:
    known = [word.value for word in kind]
    if text and text not in known:
        raise _bad(f"{name}: '{text[:20]}' is not known.", f"Known: {', '.join(known)}.")
    return kind(text) if text else otherwise


def _bad(sentence: str, hint: str) -> GpupoolError:
    return GpupoolError(ErrorCode.INVALID_REQUEST, sentence, hint)


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a report with how long work of the same waited."""

    line: UsageLine
    label: str
    wait: WaitLine | None


def rows(report: Report) -> list[Row]:
    """The lines of a report, most GPU time first."""
    waits = {wait.key: wait for wait in report.waits}
    return [Row(line, label(report.by, line), waits.get(line.key)) for line in report.lines]


LINKS = {By.PROJECT: "/projects/", By.USER: "/users/", By.NODE: "/nodes/", By.WORKLOAD: "/workloads/"}


def columns(report: Report, every: Sequence[Row]) -> tuple[Column[Row], ...]:
    """The table of a report; columns that are empty for all lines are left out."""
    link, title = LINKS.get(report.by), GROUP_NAMES.get(report.by, report.by.value).capitalize()
    found: list[Column[Row]] = [
        Column("key", title, lambda row: row.label, link=lambda row: f"{link}{row.line.key}" if link else None),
        _hours("allocated", "Held", "GPU hours under leases", lambda line: line.time.allocated_s),
        _hours("requested", "Asked for", "GPU hours from submission to end", lambda line: line.time.requested_s),
        _hours("used", "Computing", "GPU hours, as measured", lambda line: line.time.used_s),
        _hours("idle", "Idle", "GPU hours held by work that computed on none of them", lambda line: line.time.idle_s),
        Column("leases", "Leases", lambda row: row.line.time.leases, Kind.NUMBER, about="Granted in this time"),
        Column("cost", f"Cost ({report.currency})", lambda row: row.line.cost, Kind.NUMBER),
        Column("p50", "Half waited", lambda row: row.wait and row.wait.p50_s, Kind.DURATION, about="At most"),
        Column("p90", "Nine of ten waited", lambda row: row.wait and row.wait.p90_s, Kind.DURATION, about="At most"),
    ]
    if report.by is By.WORKLOAD:
        found.insert(1, Column("who", "Of", lambda row: row.line.user, note=lambda row: row.line.project))
    return tuple(column for column in found if any(column.value(row) not in {None, ""} for row in every))


def _hours(key: str, title: str, about: str, seconds: Callable[[UsageLine], float | None]) -> Column[Row]:
    def hours(row: Row) -> float | None:
        found = seconds(row.line)
        return None if found is None else found / HOUR_S

    return Column(key, title, hours, Kind.NUMBER, about=about)
