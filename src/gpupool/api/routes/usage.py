"""GPU time and waiting times, what it costs, and reports."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from starlette.responses import Response

from gpupool.api.deps import Caller, Moment, Services, Word, answer
from gpupool.api.reports.csv_text import to_csv
from gpupool.api.reports.page import to_html
from gpupool.api.schemas.usage import (
    RatesBody,
    RatesView,
    ReportView,
    UsageLineView,
    UsageRowView,
    UsageView,
    WaitLineView,
    WaitsView,
)
from gpupool.domain.usage import By, CostRates, Period, Scope, Steps, UsageLine, WaitLine
from gpupool.services.accounting import AccountingService
from gpupool.services.reports import OTHERS, Report, Wish, make_report

router = APIRouter(prefix="/v1", tags=["usage"])

DEFAULT_PERIOD_S = 30 * 86400
Zone = Annotated[str, Query(max_length=64, pattern=r"^[A-Za-z0-9_+/-]*$", description="Of days; empty: the pool's.")]


class Form(StrEnum):
    """What a report is written as."""

    JSON = "json"
    CSV = "csv"
    HTML = "html"


@dataclass(frozen=True, slots=True)
class Span:
    """The time that is asked about; ``until`` left out is now, ``since`` 30 days before."""

    since: Moment | None = None
    until: Moment | None = None

    def ends(self, now: float) -> tuple[float, float]:
        """As two moments."""
        until = now if self.until is None else self.until
        return max(0.0, until - DEFAULT_PERIOD_S) if self.since is None else self.since, until


@dataclass(frozen=True, slots=True)
class Part:
    """Whose GPU time, and of which GPUs; left out: all."""

    project: Word | None = None
    user: Word | None = None
    node: Word | None = None
    model: Word | None = None

    @property
    def scope(self) -> Scope:
        """As the accounting takes it."""
        return Scope(self.project, self.user, self.node, self.model)


@dataclass(frozen=True, slots=True)
class Step:
    """Steps of a timeline; none: altogether."""

    step: Period | None = None
    zone: Zone = ""

    @property
    def steps(self) -> Steps | None:
        """As the accounting takes it."""
        return None if self.step is None else Steps(self.step, self.zone)


@dataclass(frozen=True, slots=True)
class Question:
    """What GPU time is asked about."""

    span: Annotated[Span, Depends()]
    part: Annotated[Part, Depends()]
    step: Annotated[Step, Depends()]


Asked = Annotated[Question, Depends()]


@router.get("/usage", response_model=UsageView)
async def usage(services: Services, caller: Caller, asked: Asked, by: By | None = None) -> Response:
    """GPU time between two times; the last 30 days when none is given.

    Without ``by`` it is of each user in each project, and ``rows`` has it in short. With ``step`` each line is of a
    step.
    """
    accounting = services.accounting
    since, until = asked.span.ends(accounting.now())
    lines = await accounting.usage(caller, since, until, by or By.MEMBER, asked.step.steps, asked.part.scope)
    short = by is None and asked.step.step is None and asked.part == Part()
    held = await accounting.held_by_member(caller, since, until) if short else []
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
            by=by or By.MEMBER,
            step=asked.step.step,
            zone=asked.step.zone or accounting.time_zone,
            currency=accounting.rates.currency,
            lines=line_views(lines),
        )
    )


@router.get("/usage/waits", response_model=WaitsView)
async def waits(services: Services, caller: Caller, asked: Asked, by: By = By.PROJECT) -> Response:
    """How long work submitted between two times waited for its first start."""
    accounting = services.accounting
    since, until = asked.span.ends(accounting.now())
    step = asked.step
    lines = await accounting.waits(caller, since, until, by, step.steps, asked.part.scope)
    zone = step.zone or accounting.time_zone
    shown = [wait_view(line) for line in lines]
    return answer(WaitsView(since=since, until=until, by=by, step=step.step, zone=zone, lines=shown))


@router.get("/usage/report", response_model=ReportView)
async def report(
    services: Services,
    caller: Caller,
    asked: Asked,
    by: By = By.PROJECT,
    form: Annotated[Form, Query(alias="format")] = Form.JSON,
) -> Response:
    """Who used what in a time, how it went over that time and how long work waited: JSON, CSV, or a page of HTML."""
    since, until = asked.span.ends(services.accounting.now())
    wish = Wish(since, until, by, asked.step.step, asked.step.zone, asked.part.scope)
    return report_answer(await make_report(services.accounting, caller, wish), form)


@router.get("/usage/rates", response_model=RatesView)
async def get_rates(services: Services, caller: Caller) -> Response:
    """What GPU hours cost."""
    del caller
    return answer(rates_view(services.accounting.rates))


@router.patch("/usage/rates", response_model=RatesView)
async def change_rates(services: Services, caller: Caller, body: RatesBody) -> Response:
    """Change what GPU hours cost, for the past as well; fields left out stay. For administrators."""
    accounting = services.accounting
    return answer(rates_view(await accounting.set_rates(caller, changed_rates(accounting, body))))


def changed_rates(accounting: AccountingService, body: RatesBody) -> CostRates:
    """The rates with the changes of a request."""
    old = accounting.rates
    models = {**dict(old.models), **body.models}
    return CostRates(
        currency=(body.currency or "") if "currency" in body.model_fields_set else old.currency,
        default=body.default if "default" in body.model_fields_set else old.default,
        models=tuple(sorted((name, rate) for name, rate in models.items() if rate is not None)),
    )


def rates_view(rates: CostRates) -> RatesView:
    """What GPU hours cost."""
    return RatesView(currency=rates.currency, default=rates.default, models=dict(rates.models))


def report_answer(report: Report, form: Form) -> Response:
    """A report in one of its forms; files are offered under a name."""
    if form is Form.CSV:
        headers = {"content-disposition": f'attachment; filename="gpu-use-by-{report.by}.csv"'}
        return Response(to_csv(report), media_type="text/csv; charset=utf-8", headers=headers)
    if form is Form.HTML:
        headers = {
            "content-disposition": f'attachment; filename="gpu-use-by-{report.by}.html"',
            "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
        }
        return Response(to_html(report), media_type="text/html; charset=utf-8", headers=headers)
    return answer(report_view(report))


def report_view(report: Report) -> ReportView:
    """All of a report."""
    return ReportView(
        since=report.since,
        until=report.until,
        by=report.by,
        step=report.step,
        zone=report.zone,
        made_at=report.made_at,
        currency=report.currency,
        lines=line_views(report.lines),
        total=line_view(report.total),
        timeline=line_views(report.timeline),
        others=OTHERS,
        waits=[wait_view(line) for line in report.waits],
        waits_total=None if report.waits_total is None else wait_view(report.waits_total),
    )


def line_views(lines: Iterable[UsageLine]) -> list[UsageLineView]:
    """Lines as they are answered."""
    return [line_view(line) for line in lines]


def line_view(line: UsageLine) -> UsageLineView:
    """GPU time of one thing."""
    time = line.time
    return UsageLineView.model_construct(
        key=line.key,
        name=line.name,
        project=line.project,
        user=line.user,
        at=line.at,
        until=line.until,
        allocated_s=time.allocated_s,
        requested_s=time.requested_s,
        used_s=time.used_s,
        idle_s=time.idle_s,
        measured_s=time.measured_s,
        leases=time.leases,
        cost=line.cost,
    )


def wait_view(line: WaitLine) -> WaitLineView:
    """Waiting times of one thing."""
    return WaitLineView(**asdict(line))
