"""Reports: who used what in a time, to look at and to download; the same as `gpupool report` makes."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gpupool.api.routes.usage import Form, report_answer
from gpupool.domain.usage import Period
from gpupool.services.reports import Report, make_report
from gpupool.web.deps import Services, Visitor
from gpupool.web.listing import listing
from gpupool.web.pages import page
from gpupool.web.views import reports as view

router = APIRouter(prefix="/reports")

LASTS_S = 120.0


@router.get("")
async def reports(request: Request, services: Services, visitor: Visitor) -> Response:
    """The form, and the report that it asks for once it is made."""
    accounting, analytics = services.accounting, services.analytics
    asked = view.read_form(request.query_params, accounting.now(), accounting.time_zone)
    (report,) = await analytics.soon(analytics.report(visitor, asked.wish, LASTS_S))
    return page(
        request,
        visitor,
        "reports.html",
        title="Reports",
        asked=asked,
        report=report,
        table=None if report is None else _table(request, report),
        periods=view.PERIODS.items(),
        groups=[(by.value, view.GROUP_NAMES.get(by, by.value)) for by in view.GROUPS],
        steps=[("", "what suits the time"), *((step.value, step.value) for step in Period)],
        forms=[form.value for form in (Form.CSV, Form.JSON, Form.HTML)],
    )


def _table(request: Request, report: Report) -> object:
    rows = view.rows(report)
    return listing(request, view.columns(report, rows), rows, name="report", default_sort="-allocated")


@router.get("/download/{form}")
async def download(request: Request, services: Services, visitor: Visitor, form: Form) -> Response:
    """A report as a file."""
    wish = view.read_wish(request.query_params, services.accounting.time_zone)
    return report_answer(await make_report(services.accounting, visitor, wish), form)
