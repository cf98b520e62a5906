"""The audit page: events of users and of the pool."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, tzinfo
from urllib.parse import urlencode

from fastapi import APIRouter
from starlette.responses import Response, StreamingResponse

from gpupool.domain.errors import GpupoolError
from gpupool.domain.events import Reason
from gpupool.domain.ids import WorkloadId, is_workload_id
from gpupool.domain.people.access import Role
from gpupool.domain.work.time_windows import parse_moment, read_zone
from gpupool.services.ports.store import AuditFilter
from gpupool.services.usage.events import audit_cursor, parse_audit_cursor
from gpupool.web.deps import Form, reads
from gpupool.web.headers import PAGE_HEADERS
from gpupool.web.kit import form_input as forms
from gpupool.web.kit.events import EventLine, event_line
from gpupool.web.kit.form_input import FormValues
from gpupool.web.kit.listing import Column, ColumnKind, csv_value, listing, table_names
from gpupool.web.page_context import Context, PageContext
from gpupool.web.pages.saved_views import saved_views

router = APIRouter()

FILTERS = ("actor", "reason", "target", "since", "until", "before")
EVENTS_PER_PAGE = 500  # of one page
CSV_ROWS = 500  # read and written at a time: a few milliseconds
MAX_FILTER_LENGTH = 300  # characters of a filter
SPANS = (("1h", 3600.0), ("24h", 86400.0), ("7d", 7 * 86400.0), ("30d", 30 * 86400.0))
COLUMNS = (
    Column[EventLine]("at", "Time", lambda row: row.at, ColumnKind.TIME),
    Column[EventLine]("actor", "User", lambda row: row.actor),
    Column[EventLine]("reason", "Reason", lambda row: row.reason),
    Column[EventLine]("concerns", "Target", lambda row: row.concerns or None, link=lambda row: row.href),
    Column[EventLine]("message", "Message", lambda row: row.message),
    Column[EventLine]("id", "Id", lambda row: row.id, ColumnKind.NUMBER),
)


@router.get("/audit", dependencies=[reads(*FILTERS, *table_names())])
async def audit(context: Context) -> Response:
    """Show events that match the filters, newest first."""
    zone = read_zone(context.services.info.time_zone)
    try:
        wanted, asked = _read_filter(context, zone), _form_values(context)
    except GpupoolError as error:
        wanted, asked = AuditFilter(), FormValues.from_form(_query(context), error)
    if context.wants_csv() and not context.request.query_params.get("find"):
        return StreamingResponse(_csv(context, wanted), headers=_CSV_HEADERS, media_type="text/csv; charset=utf-8")
    found = await context.services.history.audit(context.visitor, replace(wanted, limit=EVENTS_PER_PAGE))
    return context.show(
        "audit.html",
        "Audit",
        asked,
        views=await saved_views(context.request, context.services, context.visitor, "audit"),
        table=listing(context.request, COLUMNS, [event_line(event) for event in found], name="audit"),
        older=_url(context, before=audit_cursor(found[-1])) if len(found) == EVENTS_PER_PAGE else None,
        newest=_url(context, before=None) if wanted.before else None,
        spans=[(name, _url(context, since=_moment_text(context, seconds, zone))) for name, seconds in SPANS],
        everything=_url(context, since=None, until=None),
        reasons=[("", "any"), *((reason, reason) for reason in Reason)],
        people=await _actors(context),
        zone=context.services.info.time_zone,
    )


def _query(context: PageContext) -> Form:
    return Form({name: (value[:MAX_FILTER_LENGTH],) for name, value in context.request.query_params.items()})


def _form_values(context: PageContext) -> FormValues:
    return FormValues({name: value[:MAX_FILTER_LENGTH] for name, value in context.request.query_params.items()})


def _read_filter(context: PageContext, zone: tzinfo) -> AuditFilter:
    """Read the filters of the address; raise ``GpupoolError`` for an invalid one."""
    form, now = _query(context), context.services.accounting.now()
    reason, target = forms.choice(form, "reason", Reason), form.text("target")

    def moment(name: str) -> float | None:
        with forms.name_field_in_errors(name):
            return parse_moment(form.text(name), zone, now) if form.text(name) else None

    return AuditFilter(
        actor=form.text("actor") or None,
        reasons=() if reason is None else (reason,),
        target=None if is_workload_id(target) else target or None,
        workload=WorkloadId(target) if is_workload_id(target) else None,
        since=moment("since"),
        until=moment("until"),
        before=parse_audit_cursor(form.text("before")),
    )


def _url(context: PageContext, **changes: str | None) -> str:
    """Return the current address with changed filters; None removes one."""
    kept = {k: v for k, v in context.request.query_params.items() if k not in {*changes, "page", "format", "table"}}
    if "before" not in changes:
        kept.pop("before", None)
    wanted = kept | {name: value for name, value in changes.items() if value is not None}
    return f"/audit?{urlencode(wanted)}" if wanted else "/audit"


def _moment_text(context: PageContext, seconds: float, zone: tzinfo) -> str:
    moment = datetime.fromtimestamp(context.services.accounting.now() - seconds, zone)
    return moment.strftime("%Y-%m-%dT%H:%M")


async def _actors(context: PageContext) -> list[str]:
    """Return the users for the filter: all for administrators, only themselves for others."""
    if context.visitor.role is not Role.ADMIN:
        return ["pool", context.visitor.user]
    return ["pool", *(user.name for user in (await context.services.access.users())[:500])]


# As CSV


_CSV_HEADERS = {name: value for name, value in PAGE_HEADERS.items() if name != "content-type"} | {
    "content-disposition": 'attachment; filename="audit.csv"'
}


async def _csv(context: PageContext, wanted: AuditFilter) -> AsyncIterator[bytes]:
    """Yield all matching events in small parts, so that other requests are not delayed."""
    yield _csv_lines([[column.key for column in COLUMNS]])
    while True:
        found = await context.services.history.audit(context.visitor, replace(wanted, limit=CSV_ROWS))
        lines = [event_line(event) for event in found]
        yield _csv_lines([[csv_value(column.kind, column.value(line)) for column in COLUMNS] for line in lines])
        if len(found) < CSV_ROWS:
            return
        wanted = replace(wanted, before=(found[-1].at, found[-1].id))


def _csv_lines(rows: list[list[str | int | float]] | list[list[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerows(rows)
    return text.getvalue().encode()
