"""The record: who did what to what, and what the pool did."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, tzinfo
from urllib.parse import urlencode

from fastapi import APIRouter
from starlette.responses import Response, StreamingResponse

from gpupool.domain.access import Role
from gpupool.domain.errors import GpupoolError
from gpupool.domain.events import Event, Reason
from gpupool.domain.ids import WorkloadId, is_workload_id
from gpupool.domain.windows import parse_moment, read_zone
from gpupool.services.ports import AuditFilter
from gpupool.web.asked import Ask, Asked
from gpupool.web.deps import Form
from gpupool.web.headers import PAGE_HEADERS
from gpupool.web.listing import Column, Kind, csv_value, listing
from gpupool.web.views import typed as forms
from gpupool.web.views.audit import EventLine, event_line
from gpupool.web.views.typed import Typed

router = APIRouter()

ROWS = 500  # of one look back; the next begins where it ends
CSV_ROWS = 500  # read and written at a time: a few milliseconds, then it is the turn of others
LONGEST = 300  # characters of a filter
SPANS = (("1h", 3600.0), ("24h", 86400.0), ("7d", 7 * 86400.0), ("30d", 30 * 86400.0))
COLUMNS = (
    Column[EventLine]("at", "When", lambda row: row.at, Kind.TIME),
    Column[EventLine]("actor", "Who", lambda row: row.actor),
    Column[EventLine]("reason", "Reason", lambda row: row.reason),
    Column[EventLine]("concerns", "Concerns", lambda row: row.concerns or None, link=lambda row: row.href),
    Column[EventLine]("message", "What", lambda row: row.message),
    Column[EventLine]("id", "Id", lambda row: row.id, Kind.NUMBER),
)


@router.get("/audit")
async def audit(ask: Ask) -> Response:
    """Events that fit the filters, the newest first."""
    zone = read_zone(ask.services.info.time_zone)
    try:
        wanted, asked = _wanted(ask, zone), _asked(ask)
    except GpupoolError as error:
        wanted, asked = AuditFilter(), Typed.again(_query(ask), error)
    if ask.wants_csv() and not ask.request.query_params.get("find"):
        return StreamingResponse(_csv(ask, wanted), headers=_CSV_HEADERS, media_type="text/csv; charset=utf-8")
    found = await ask.services.history.audit(ask.visitor, replace(wanted, limit=ROWS))
    return ask.show(
        "audit.html",
        "Audit",
        asked,
        table=listing(ask.request, COLUMNS, [event_line(event) for event in found], name="audit"),
        older=_older(ask, found[-1]) if len(found) == ROWS else None,
        newest=_without(ask, "before") if wanted.before else None,
        spans=[(name, _url(ask, since=_moment_text(ask, seconds, zone))) for name, seconds in SPANS],
        everything=_url(ask, since=None, until=None),
        reasons=[("", "any"), *((reason, reason) for reason in Reason)],
        people=await _people(ask),
        zone=ask.services.info.time_zone,
    )


def _query(ask: Asked) -> Form:
    return Form({name: (value[:LONGEST],) for name, value in ask.request.query_params.items()})


def _asked(ask: Asked) -> Typed:
    return Typed({name: value[:LONGEST] for name, value in ask.request.query_params.items()})


def _wanted(ask: Asked, zone: tzinfo) -> AuditFilter:
    """The filters of the address. Raises ``GpupoolError`` for what cannot be meant."""
    form, now = _query(ask), ask.services.accounting.now()
    reason, target = forms.choice(form, "reason", Reason), form.text("target")

    def moment(name: str) -> float | None:
        with forms.about(name):
            return parse_moment(form.text(name), zone, now) if form.text(name) else None

    return AuditFilter(
        actor=form.text("actor") or None,
        reasons=() if reason is None else (reason,),
        target=None if is_workload_id(target) else target or None,
        workload=WorkloadId(target) if is_workload_id(target) else None,
        since=moment("since"),
        until=moment("until"),
        before=_before(form.text("before")),
    )


def _before(text: str) -> tuple[float, int] | None:
    at, _, last = text.partition("-")
    try:
        found = float(at), int(last)
    except ValueError:
        return None
    return found if 0 <= found[0] < 1e11 and 0 < found[1] < 2**62 else None


def _older(ask: Asked, last: Event) -> str:
    return _url(ask, before=f"{last.at!r}-{last.id}")


def _without(ask: Asked, name: str) -> str:
    return _url(ask, **{name: None})


def _url(ask: Asked, **changes: str | None) -> str:
    """The present address with other filters; None takes one away."""
    kept = {k: v for k, v in ask.request.query_params.items() if k not in {*changes, "page", "format", "table"}}
    if "before" not in changes:
        kept.pop("before", None)
    wanted = kept | {name: value for name, value in changes.items() if value is not None}
    return f"/audit?{urlencode(wanted)}" if wanted else "/audit"


def _moment_text(ask: Asked, seconds: float, zone: tzinfo) -> str:
    moment = datetime.fromtimestamp(ask.services.accounting.now() - seconds, zone)
    return moment.strftime("%Y-%m-%dT%H:%M")


async def _people(ask: Asked) -> list[str]:
    """Who may have done something; others than administrators are not told of everybody."""
    if ask.visitor.role is not Role.ADMIN:
        return ["pool", ask.visitor.user]
    return ["pool", *(user.name for user in (await ask.services.access.users())[:500])]


# As CSV


_CSV_HEADERS = {name: value for name, value in PAGE_HEADERS.items() if name != "content-type"} | {
    "content-disposition": 'attachment; filename="audit.csv"'
}


async def _csv(ask: Asked, wanted: AuditFilter) -> AsyncIterator[bytes]:
    """All that fits, in pieces: nobody else waits while a million events are written."""
    yield _csv_lines([[column.key for column in COLUMNS]])
    while True:
        found = await ask.services.history.audit(ask.visitor, replace(wanted, limit=CSV_ROWS))
        lines = [event_line(event) for event in found]
        yield _csv_lines([[csv_value(column.kind, column.value(line)) for column in COLUMNS] for line in lines])
        if len(found) < CSV_ROWS:
            return
        wanted = replace(wanted, before=(found[-1].at, found[-1].id))


def _csv_lines(rows: list[list[str | int | float]] | list[list[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerows(rows)
    return text.getvalue().encode()
