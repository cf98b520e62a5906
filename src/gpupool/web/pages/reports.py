"""The reports page: the same report as `gpupool report`, on the page and as files."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import TypeVar
from urllib.parse import urlencode

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gpupool.api.reports.words import label
from gpupool.api.routes.people.usage import ReportFormat, report_answer
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.usage import GroupBy, Period, UsageFilter, UsageLine, WaitLine
from gpupool.domain.work.time_windows import read_zone
from gpupool.services.usage.reports import ReportRequest, UsageReport, make_report
from gpupool.web.deps import Services, Visitor, reads
from gpupool.web.kit.listing import Column, ColumnKind, listing, table_names
from gpupool.web.rendering import page

Word = TypeVar("Word", GroupBy, Period)

HOUR_S = 3600.0
PERIODS = {
    "7d": "the last 7 days",
    "30d": "the last 30 days",
    "90d": "the last 90 days",
    "month": "this month",
    "last-month": "last month",
    "year": "this year",
    "days": "the dates below",
}
GROUPS = (
    GroupBy.PROJECT,
    GroupBy.USER,
    GroupBy.MEMBER,
    GroupBy.DEPARTMENT,
    GroupBy.MODEL,
    GroupBy.NODE,
    GroupBy.WORKLOAD,
    GroupBy.POOL,
)
GROUP_NAMES = {GroupBy.MEMBER: "user in project", GroupBy.POOL: "nothing (total)", GroupBy.MODEL: "GPU model"}
DEFAULT_PERIOD = "30d"
FORM_NAMES = ("period", "project", "user", "by", "step", "from", "to")  # query parameters of the form
DOWNLOAD_NAMES = ("since", "until", "by", "step", "project", "user")  # of a download
ROLLING = {"7d": 7, "30d": 30, "90d": 90}
GRAIN_S = 60.0  # a report ends at a whole minute, so that all who look at it within that minute see the same one
FINE_GRAIN_S = 10.0  # of a short one, which is soon made again


@dataclass(frozen=True, slots=True)
class ReportForm:
    """Values of the report form; ``wish`` is the report request, ``query`` encodes it in an address."""

    period: str
    first: str
    last: str
    project: str
    user: str
    wish: ReportRequest

    @property
    def query(self) -> str:
        """Return the query string of the same report."""
        wish = self.wish
        asked = {"since": f"{wish.since:.3f}", "until": f"{wish.until:.3f}", "by": wish.by.value}
        asked |= {"step": wish.step.value} if wish.step else {}
        asked |= {"project": self.project} if self.project else {}
        asked |= {"user": self.user} if self.user else {}
        return urlencode(asked)

    @property
    def command(self) -> str:
        """Return the command line that makes the same report."""
        since, until = (
            f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ}" for at in (self.wish.since, self.wish.until)
        )
        words = ["gpupool", "report", "--since", since, "--until", until, "--by", self.wish.by.value]
        words += ["--step", self.wish.step.value] if self.wish.step else []
        words += ["--project", self.project] if self.project else []
        words += ["--user", self.user] if self.user else []
        return shlex.join(words)


def read_form(query: Mapping[str, str], now: float, zone: str) -> ReportForm:
    """Read the report form; days are in the pool's time zone. Raise ``GpupoolError(INVALID_REQUEST)``."""
    period = query.get("period", DEFAULT_PERIOD)
    if period not in PERIODS:
        raise _bad(f"There is no period '{period[:20]}'.", f"Known: {', '.join(PERIODS)}.")
    place, project, user = read_zone(zone), query.get("project", "")[:64].strip(), query.get("user", "")[:64].strip()
    grain_s = FINE_GRAIN_S if period == "7d" else GRAIN_S
    since, until = _span(period, query, math.floor(now / grain_s) * grain_s, place)
    wish = ReportRequest(
        since=since,
        until=until,
        by=_one_of(GroupBy, "by", query.get("by", ""), GroupBy.PROJECT),
        step=_one_of(Period, "step", query["step"], Period.DAY) if query.get("step") else None,
        zone=zone,
        scope=UsageFilter(project=project or None, user=user or None),
    )
    last = datetime.fromtimestamp(until, place) - timedelta(microseconds=1)
    first = datetime.fromtimestamp(since, place)
    return ReportForm(period, f"{first:%Y-%m-%d}", f"{last:%Y-%m-%d}", project, user, wish)


def read_wish(query: Mapping[str, str], zone: str) -> ReportRequest:
    """Read the request that ``ReportForm.query`` encodes; raise ``GpupoolError(INVALID_REQUEST)``."""
    return ReportRequest(
        since=_moment(query, "since"),
        until=_moment(query, "until"),
        by=_one_of(GroupBy, "by", query.get("by", ""), GroupBy.PROJECT),
        step=_one_of(Period, "step", query["step"], Period.DAY) if query.get("step") else None,
        zone=zone,
        scope=UsageFilter(project=query.get("project") or None, user=query.get("user") or None),
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
        raise _bad(f"{name}: '{text[:20]}' is not a date.", "Write 2026-03-31.") from error
    if not 1971 <= found.year <= 9000:
        raise _bad(f"{name}: '{text[:20]}' is out of range.", "Write 2026-03-31.")
    return found


def _moment(query: Mapping[str, str], name: str) -> float:
    try:
        found = float(query.get(name, "")[:40])
    except ValueError as error:
        raise _bad(f"{name}: not a time.", "Give seconds since the epoch.") from error
    if not 0 <= found < 1e11:
        raise _bad(f"{name}: not a time.", "Give seconds since the epoch.")
    return found


def _one_of(kind: type[Word], name: str, text: str, otherwise: Word) -> Word:
    known = [word.value for word in kind]
    if text and text not in known:
        raise _bad(f"{name}: '{text[:20]}' is not known.", f"Known: {', '.join(known)}.")
    return kind(text) if text else otherwise


def _bad(sentence: str, hint: str) -> GpupoolError:
    return GpupoolError(ErrorCode.INVALID_REQUEST, sentence, hint)


@dataclass(frozen=True, slots=True)
class ReportLine:
    """A line of a report with how long work of the same waited."""

    line: UsageLine
    label: str
    wait: WaitLine | None


def rows(report: UsageReport) -> list[ReportLine]:
    """Return the lines of a report, most GPU time first."""
    waits = {wait.key: wait for wait in report.waits}
    return [ReportLine(line, label(report.by, line), waits.get(line.key)) for line in report.lines]


LINKS = {
    GroupBy.PROJECT: "/projects/",
    GroupBy.USER: "/workloads?user=",  # the page of a user is for administrators only
    GroupBy.NODE: "/nodes/",
    GroupBy.WORKLOAD: "/workloads/",
}


def columns(report: UsageReport, every: Sequence[ReportLine]) -> tuple[Column[ReportLine], ...]:
    """Return the columns of a report without those that are empty for all lines."""
    link, title = LINKS.get(report.by), GROUP_NAMES.get(report.by, report.by.value).capitalize()
    found: list[Column[ReportLine]] = [
        Column("key", title, lambda row: row.label, link=lambda row: f"{link}{row.line.key}" if link else None),
        _hours("allocated", "Held", "GPU hours under leases", lambda line: line.time.allocated_s),
        _hours(
            "requested", "Requested", "Requested GPU hours, from submission to end", lambda line: line.time.requested_s
        ),
        _hours("used", "Computing", "GPU hours, as measured", lambda line: line.time.used_s),
        _hours("idle", "Idle", "GPU hours of leases without computing", lambda line: line.time.idle_s),
        Column("leases", "Leases", lambda row: row.line.time.leases, ColumnKind.NUMBER, about="Granted in this period"),
        Column("cost", f"Cost ({report.currency})", lambda row: row.line.cost, ColumnKind.NUMBER),
        Column("p50", "Median wait", lambda row: row.wait and row.wait.p50_s, ColumnKind.DURATION),
        Column("p90", "90th percentile wait", lambda row: row.wait and row.wait.p90_s, ColumnKind.DURATION),
    ]
    if report.by is GroupBy.WORKLOAD:
        found.insert(1, Column("who", "Of", lambda row: row.line.user, note=lambda row: row.line.project))
    return tuple(column for column in found if any(column.value(row) not in {None, ""} for row in every))


def _hours(key: str, title: str, about: str, seconds: Callable[[UsageLine], float | None]) -> Column[ReportLine]:
    def hours(row: ReportLine) -> float | None:
        found = seconds(row.line)
        return None if found is None else found / HOUR_S

    return Column(key, title, hours, ColumnKind.NUMBER, about=about)


router = APIRouter(prefix="/reports")

CACHE_S = 120.0


@router.get("", dependencies=[reads(*FORM_NAMES, *table_names())])
async def reports(request: Request, services: Services, visitor: Visitor) -> Response:
    """Show the form and, once it is computed, the report."""
    accounting, analytics = services.accounting, services.analytics
    asked = read_form(request.query_params, accounting.now(), accounting.time_zone)
    (report,) = await analytics.soon(analytics.report(asked.wish, CACHE_S))
    return page(
        request,
        visitor,
        "reports.html",
        title="Reports",
        asked=asked,
        report=report,
        table=None if report is None else _table(request, report),
        periods=PERIODS.items(),
        groups=[(by.value, GROUP_NAMES.get(by, by.value)) for by in GROUPS],
        steps=[("", "automatic"), *((step.value, step.value) for step in Period)],
        forms=[form.value for form in (ReportFormat.CSV, ReportFormat.JSON, ReportFormat.HTML)],
    )


def _table(request: Request, report: UsageReport) -> object:
    found = rows(report)
    return listing(request, columns(report, found), found, name="report", default_sort="-allocated")


@router.get("/download/{form}", dependencies=[reads(*DOWNLOAD_NAMES)])
async def download(request: Request, services: Services, _visitor: Visitor, form: ReportFormat) -> Response:
    """Return a report as a file."""
    wish = read_wish(request.query_params, services.accounting.time_zone)
    return report_answer(await make_report(services.accounting, wish), form)
