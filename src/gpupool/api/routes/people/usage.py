"""GPU time, waiting times, costs, and reports."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from starlette.responses import Response

from gpupool.api.deps import Administrator, Caller, Moment, Services, Word, answer
from gpupool.api.etags import IfMatch, only_if, tagged
from gpupool.api.reports.page import to_html
from gpupool.api.schemas.usage import (
    CapacityView,
    LossLineView,
    RatesBody,
    RatesView,
    ReportSuggestionView,
    ReportView,
    UsageLineView,
    UsageRowView,
    UsageView,
    WaitLineView,
    WaitsView,
)
from gpupool.api.views.results_view import csv_cell
from gpupool.domain.usage import CostRates, GroupBy, Period, Steps, UsageFilter, UsageLine, WaitLine
from gpupool.services.ports.usage import OTHERS
from gpupool.services.usage.accounting import AccountingService
from gpupool.services.usage.efficiency import compare
from gpupool.services.usage.reports import ReportRequest, UsageReport, make_report

HEAD = (
    *("by", "since", "until", "key", "name", "project", "user", "allocated_gpu_hours", "requested_gpu_hours"),
    *("used_gpu_hours", "idle_gpu_hours", "measured_gpu_hours", "leases", "cost", "currency"),
    *("waits", "wait_mean_s", "wait_p50_s", "wait_p90_s", "wait_p99_s", "lost_gpu_hours"),
)


def to_csv(report: UsageReport) -> str:
    """Return the CSV with one row for each line; unknown values are empty, such as use that was not measured."""
    waits = {line.key: line for line in report.waits}
    lost = {line.key: line.lost_gpu_s for line in report.losses}
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(HEAD)
    for line in report.lines:
        writer.writerow(
            [csv_cell(v) for v in (*_row(report, line, waits.get(line.key)), lost.get(line.key, 0.0) / 3600)]
        )
    return out.getvalue()


def _row(report: UsageReport, line: UsageLine, wait: WaitLine | None) -> Iterator[str | float | int | None]:
    time = line.time
    yield from (report.by.value, line.at, line.until, line.key, line.name, line.project, line.user)
    for amount in (time.allocated_s, time.requested_s, time.used_s, time.idle_s, time.measured_s):
        yield None if amount is None else amount / 3600
    yield from (time.leases, line.cost, report.currency)
    yield from (None,) * 5 if wait is None else (wait.started, wait.mean_s, wait.p50_s, wait.p90_s, wait.p99_s)


router = APIRouter(prefix="/v1", tags=["usage"])

DEFAULT_PERIOD_S = 30 * 86400
Zone = Annotated[
    str,
    Query(max_length=64, pattern=r"^[A-Za-z0-9_+/-]*$", description="Of days; default: the pool's."),
]


class ReportFormat(StrEnum):
    """Format of a report."""

    JSON = "json"
    CSV = "csv"
    HTML = "html"


@dataclass(frozen=True, slots=True)
class UsagePeriod:
    """The period of a request; by default ``until`` is now, and ``since`` 30 days before it."""

    since: Moment | None = None
    until: Moment | None = None

    def ends(self, now: float) -> tuple[float, float]:
        """Return the period as two times."""
        until = now if self.until is None else self.until
        return max(0.0, until - DEFAULT_PERIOD_S) if self.since is None else self.since, until


@dataclass(frozen=True, slots=True)
class Part:
    """Filter of GPU time by user, project, node and so on; omitted fields match all."""

    project: Word | None = None
    user: Word | None = None
    node: Word | None = None
    model: Word | None = None

    @property
    def scope(self) -> UsageFilter:
        """Return the filter of the accounting."""
        return UsageFilter(self.project, self.user, self.node, self.model)


@dataclass(frozen=True, slots=True)
class Step:
    """Steps of a timeline; none: a single sum."""

    step: Period | None = None
    zone: Zone = ""

    @property
    def steps(self) -> Steps | None:
        """Return the step of the accounting."""
        return None if self.step is None else Steps(self.step, self.zone)


@dataclass(frozen=True, slots=True)
class Question:
    """Filter of GPU time."""

    span: Annotated[UsagePeriod, Depends()]
    part: Annotated[Part, Depends()]
    step: Annotated[Step, Depends()]


Asked = Annotated[Question, Depends()]


@router.get("/usage", response_model=UsageView)
async def get_usage(services: Services, _caller: Caller, asked: Asked, by: GroupBy | None = None) -> Response:
    """Return the GPU time between two times; by default of the last 30 days.

    Without ``by``, lines are per user and project, and ``rows`` has a short form of them. With ``step``, each line is
    of one step.
    """
    accounting = services.accounting
    since, until = asked.span.ends(accounting.now())
    lines = await accounting.usage(since, until, by or GroupBy.MEMBER, asked.step.steps, asked.part.scope)
    short = by is None and asked.step.step is None and asked.part == Part()
    held = await accounting.held_by_member(since, until) if short else []
    rows = [
        UsageRowView(project=line.project, user=line.user, gpu_seconds=line.time.allocated_s, leases=leases)
        for line, leases in sorted(held, key=lambda row: (row[0].project, row[0].user))
        if leases
    ]
    return answer(
        UsageView(
            since=since,
            until=until,
            rows=rows,
            by=by or GroupBy.MEMBER,
            step=asked.step.step,
            zone=asked.step.zone or accounting.time_zone,
            currency=accounting.rates.currency,
            lines=line_views(lines),
        )
    )


@router.get("/usage/capacity", response_model=CapacityView)
async def get_capacity(services: Services, _caller: Caller, span: Annotated[UsagePeriod, Depends()]) -> Response:
    """Return the GPU seconds that the pool had and that could be handed out between two times."""
    since, until = span.ends(services.accounting.now())
    found = (await services.analytics.capacity((since, until), 0.0))[0]
    view = CapacityView(since=since, until=until, gpu_seconds=found.present_s, available_gpu_seconds=found.available_s)
    return answer(view)


@router.get("/usage/waits", response_model=WaitsView)
async def get_waiting_times(
    services: Services, _caller: Caller, asked: Asked, by: GroupBy = GroupBy.PROJECT
) -> Response:
    """Return the waiting times until the first start of work submitted between two times."""
    accounting = services.accounting
    since, until = asked.span.ends(accounting.now())
    step = asked.step
    lines = await accounting.waits(since, until, by, step.steps, asked.part.scope)
    zone = step.zone or accounting.time_zone
    shown = [WaitLineView.of(line) for line in lines]
    return answer(WaitsView(since=since, until=until, by=by, step=step.step, zone=zone, lines=shown))


@router.get(
    "/usage/report",
    response_model=ReportView,
    responses={200: {"content": {"text/csv": {}, "text/html": {}}, "description": "The report in the wanted format."}},
)
async def get_report(
    services: Services,
    caller: Caller,
    asked: Asked,
    by: GroupBy = GroupBy.PROJECT,
    form: Annotated[ReportFormat, Query(alias="format")] = ReportFormat.JSON,
) -> Response:
    """Return usage by user and project, its course over time, and waiting times, as JSON, CSV or HTML."""
    since, until = asked.span.ends(services.accounting.now())
    wish = ReportRequest(since, until, by, asked.step.step, asked.step.zone, asked.part.scope)
    report = await make_report(services.accounting, wish)
    if by is not GroupBy.WORKLOAD or form is not ReportFormat.JSON:
        return report_answer(report, form)
    ids = [line.key for line in report.lines]
    found = await compare(services.workloads, services.telemetry, caller, ids)
    suggestions = [
        ReportSuggestionView(workload=one.id, name=one.name, user=one.user, sentence=each.sentence)
        for one, compared in found
        for each in compared.suggestions
    ]
    return answer(report_view(report).model_copy(update={"suggestions": suggestions}))


@router.get("/usage/rates", response_model=RatesView)
async def get_rates(services: Services, _caller: Caller) -> Response:
    """Return the cost of GPU hours."""
    return tagged(rates_view(services.accounting.rates), services.accounting.rates)


@router.patch("/usage/rates", response_model=RatesView)
async def change_rates(
    services: Services, caller: Administrator, body: RatesBody, if_match: IfMatch = None
) -> Response:
    """Change the rates of GPU hours, also for the past; omitted fields stay. For administrators."""
    accounting = services.accounting
    with only_if(if_match, lambda: accounting.rates):
        rates = await accounting.set_rates(caller, changed_rates(accounting, body))
    return tagged(rates_view(rates), rates)


def changed_rates(accounting: AccountingService, body: RatesBody) -> CostRates:
    """Return the rates with the changes of a request."""
    old = accounting.rates
    models = {**dict(old.models), **body.models}
    return CostRates(
        currency=(body.currency or "") if "currency" in body.model_fields_set else old.currency,
        default=body.default if "default" in body.model_fields_set else old.default,
        models=tuple(sorted((name, rate) for name, rate in models.items() if rate is not None)),
    )


def rates_view(rates: CostRates) -> RatesView:
    """Return the cost of GPU hours."""
    return RatesView.of(rates, models=dict(rates.models))


def report_answer(report: UsageReport, form: ReportFormat) -> Response:
    """Return a report in the requested format; files get a download name."""
    if form is ReportFormat.CSV:
        headers = {"content-disposition": f'attachment; filename="gpu-use-by-{report.by}.csv"'}
        return Response(to_csv(report), media_type="text/csv; charset=utf-8", headers=headers)
    if form is ReportFormat.HTML:
        headers = {
            "content-disposition": f'attachment; filename="gpu-use-by-{report.by}.html"',
            "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
        }
        return Response(to_html(report), media_type="text/html; charset=utf-8", headers=headers)
    return answer(report_view(report))


def report_view(report: UsageReport) -> ReportView:
    """Build a whole report."""
    return ReportView.of(
        report,
        lines=line_views(report.lines),
        total=line_view(report.total),
        timeline=line_views(report.timeline),
        others=OTHERS,
        losses=[LossLineView.of(line) for line in report.losses],
        suggestions=[],
    )


def line_views(lines: Iterable[UsageLine]) -> list[UsageLineView]:
    """Convert lines to their view."""
    return [line_view(line) for line in lines]


def line_view(line: UsageLine) -> UsageLineView:
    """Convert the GPU time of one key to its view."""
    time = line.time
    return UsageLineView.unchecked(
        line,
        allocated_s=time.allocated_s,
        requested_s=time.requested_s,
        used_s=time.used_s,
        idle_s=time.idle_s,
        measured_s=time.measured_s,
        leases=time.leases,
    )
