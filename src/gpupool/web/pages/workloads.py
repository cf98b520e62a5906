"""The list of workloads in all states, with filters that are part of the address."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.ids import WorkloadId
from gpupool.domain.people.access import Actor
from gpupool.domain.work.ending import ending_of, retrying
from gpupool.domain.work.gpu_use import GPU_USE_TEXT, gpu_use
from gpupool.domain.work.search import NEWEST_FIRST, SearchField, SearchWord, parse_search, parse_sort
from gpupool.domain.work.workload import Workload, WorkloadKind, WorkloadState
from gpupool.services.pool import PoolServices
from gpupool.services.ports.store import WorkloadFilter
from gpupool.web.deps import SentForm, Services, Visitor, reads
from gpupool.web.kit.labels import command_text, gpus_text
from gpupool.web.kit.listing import (
    PAGE_SIZES,
    Column,
    ColumnKind,
    RowPage,
    TableQuery,
    csv_stream,
    listing_of_page,
    read_table_query,
    table_names,
)
from gpupool.web.pages.queue import wait_reasons
from gpupool.web.pages.saved_views import saved_views
from gpupool.web.pages.workload.routes import priority_of
from gpupool.web.rendering import back_to, page

CSV_ROWS_PER_READ = 1000
MAX_FILTER_LENGTH = 128
LIVE = tuple(state for state in WorkloadState if not state.final)
MAX_SHOWN_REFUSALS = 3
BULK_ACTIONS = (("stop", "Stop"), ("suspend", "Suspend"), ("resume", "Resume"), ("delete", "Delete"))
STATE_CHOICES = (
    ("", "all"),
    ("live", "live"),
    *((state.value, state.value) for state in WorkloadState),
    ("ended", "ended"),
)


@dataclass(frozen=True, slots=True)
class WorkloadFilters:
    """The filters of the address; ``state`` is a state, ``live`` (not ended), ``ended``, or empty for all."""

    state: str = ""
    project: str = ""
    user: str = ""
    name: str = ""
    label: str = ""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> WorkloadFilters:
        """Read query parameters; unknown ones are ignored."""
        return cls(**{field: query.get(field, "")[:MAX_FILTER_LENGTH].strip() for field in cls.__dataclass_fields__})

    @property
    def any(self) -> bool:
        """Return whether the address has a filter."""
        return self != WorkloadFilters()

    def wanted(self) -> WorkloadFilter:
        """Return the filter of the store. Raises ``GpupoolError(INVALID_REQUEST)`` for values that it cannot have."""
        return WorkloadFilter(
            states=_states(self.state),
            project=self.project or None,
            user=self.user or None,
            labels=(_label(self.label),) if self.label else (),
            search=tuple(SearchWord(word, (SearchField.NAME,)) for word in self.name.split()),
        )


def _states(state: str) -> tuple[WorkloadState, ...]:
    match state:
        case "":
            return ()
        case "live":
            return LIVE
        case "ended":
            return tuple(state for state in WorkloadState if state.final)
    if state not in {known.value for known in WorkloadState}:
        listed = ", ".join(known.value for known in WorkloadState)
        raise GpupoolError(ErrorCode.INVALID_REQUEST, f"'{state}' is not a state.", f"There are {listed}.")
    return (WorkloadState(state),)


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise GpupoolError(ErrorCode.INVALID_REQUEST, f"label: '{text}' is not key=value.", "Write team=vision.")
    return key, value


@dataclass(frozen=True, slots=True)
class WorkloadRow:
    """One line; ``command`` is None for those who may not see it. ``ran_s`` counts from the first start."""

    id: WorkloadId
    name: str
    state: WorkloadState
    kind: str
    project: str
    user: str
    gpus: str
    replicas: str
    created_at: float
    started_at: float | None
    finished_at: float | None
    ran_s: float | None
    command: str | None
    about: str = ""
    manage: bool = False


async def find(
    services: PoolServices, actor: Actor, filters: WorkloadFilters, asked: TableQuery
) -> RowPage[WorkloadRow]:
    """Return one page of all workloads in the database that match the filters and the search."""
    of_filters = filters.wanted()
    wanted = replace(of_filters, search=of_filters.search + parse_search(asked.find), sort=parse_sort(asked.sort))
    matching = await services.workloads.count(actor, wanted)
    total = matching if not asked.find else await services.workloads.count(actor, of_filters)
    last_page = replace(asked, page=asked.pages(matching))
    page = replace(wanted, offset=min(asked.offset, last_page.offset), limit=asked.size)
    return RowPage(await _rows(services, actor, page), total, matching)


async def find_all(
    services: PoolServices, actor: Actor, filters: WorkloadFilters, asked: TableQuery
) -> AsyncIterator[Sequence[WorkloadRow]]:
    """Yield all matching workloads, some at a time."""
    of_filters = filters.wanted()
    search = of_filters.search + parse_search(asked.find)
    wanted = replace(of_filters, search=search, sort=parse_sort(asked.sort), limit=CSV_ROWS_PER_READ)
    while rows := await _rows(services, actor, wanted):
        yield rows
        if len(rows) < CSV_ROWS_PER_READ:
            return
        if wanted.sort == NEWEST_FIRST:  # rows that are added meanwhile do not move the others
            wanted = replace(wanted, before=(rows[-1].created_at, rows[-1].id))
        else:
            wanted = replace(wanted, offset=wanted.offset + len(rows))


async def _rows(services: PoolServices, actor: Actor, wanted: WorkloadFilter) -> Sequence[WorkloadRow]:
    now = services.workloads.now()
    return [await _row(services, actor, workload, now) for workload in await services.workloads.list(actor, wanted)]


async def _row(services: PoolServices, actor: Actor, workload: Workload, now: float) -> WorkloadRow:
    ended = workload.finished_at or now
    seen = services.workloads.can_see(actor, workload)
    return WorkloadRow(
        workload.id,
        workload.name,
        workload.state,
        workload.kind.value,
        workload.project,
        workload.user,
        gpus_text(workload.gpus) if workload.kind is not WorkloadKind.EXEC else "shared",
        await _replicas(services, workload),
        workload.created_at,
        workload.started_at,
        workload.finished_at,
        None if workload.started_at is None else ended - workload.started_at,
        command_text(workload) if seen else None,
        await _about(services, workload),
        services.workloads.can_manage(actor, workload),
    )


async def _about(services: PoolServices, workload: Workload) -> str:
    """Return how it ended without success, its next attempt, or why it runs without a GPU; empty otherwise."""
    state = workload.state
    if state.final and state is not WorkloadState.SUCCEEDED:
        ending = ending_of(workload, await services.workloads.replicas_of(workload))
        return "" if ending is None else ending.line
    if state is WorkloadState.RUNNING and workload.limits.separate_gpus:
        uses = [gpu_use(workload, replica) or "" for replica in await services.workloads.replicas_of(workload)]
        return next((GPU_USE_TEXT[use] for use in uses if use in GPU_USE_TEXT), "")
    if state is not WorkloadState.QUEUED:
        return ""
    for replica in await services.workloads.replicas_of(workload):
        if (again := retrying(workload, replica)) is not None:
            return f"attempt {again.attempt} of {again.attempts} follows: {replica.message}"
    return ""


async def _replicas(services: PoolServices, workload: Workload) -> str:
    """Return ``2 of 4 done, 2 running`` for a live workload with several; lists do not read ended replicas."""
    if workload.completions == 1:
        return ""
    if workload.state.final:
        return str(workload.completions)
    replicas = await services.workloads.replicas_of(workload)
    running = sum(replica.state.placed for replica in replicas)
    done = sum(replica.state.final for replica in replicas)
    return f"{done} of {workload.completions} done" + (f", {running} running" if running else "")


async def with_wait_reasons(services: PoolServices, actor: Actor, rows: Sequence[WorkloadRow]) -> Sequence[WorkloadRow]:
    """Return the rows; those that wait say why, as far as the reasons are known or quickly computed."""
    waiting = [row.id for row in rows if row.state is WorkloadState.QUEUED and not row.about]
    found = await wait_reasons(services, actor, waiting)
    return [replace(row, about=found[row.id].sentence) if row.id in found else row for row in rows]


def names(rows: Sequence[WorkloadRow]) -> tuple[list[str], list[str]]:
    """Return the projects and users of rows, for input suggestions."""
    return sorted({row.project for row in rows}), sorted({row.user for row in rows})


router = APIRouter()
NAME = "workloads"

COLUMNS: tuple[Column[WorkloadRow], ...] = (
    Column(
        "name", "Workload", lambda row: row.name, link=lambda row: f"/workloads/{row.id}", note=lambda row: row.kind
    ),
    Column("state", "State", lambda row: row.state, ColumnKind.STATE, note=lambda row: row.replicas or None),
    Column("about", "Reason", lambda row: row.about or None, about="Of the end, wait or attempt", sortable=False),
    Column("project", "Project", lambda row: row.project, link=lambda row: f"/projects/{row.project}"),
    Column("user", "User", lambda row: row.user, link=lambda row: f"/workloads?user={row.user}"),
    Column("gpus", "GPUs", lambda row: row.gpus, about="Per replica"),
    Column("created", "Submitted", lambda row: row.created_at, ColumnKind.TIME),
    Column("ran", "Ran", lambda row: row.ran_s, ColumnKind.DURATION, about="Since the first start"),
    Column("ended", "Ended", lambda row: row.finished_at, ColumnKind.TIME),
    Column(
        "command",
        "Command",
        lambda row: row.command,
        about="Visible to its owner and managers",
        sortable=False,
    ),
)


@router.get("/workloads", dependencies=[reads(*WorkloadFilters.__dataclass_fields__, *table_names())])
async def workloads(request: Request, services: Services, visitor: Visitor) -> Response:
    """Return workloads of all states, newest first; the address contains the filters."""
    filters = WorkloadFilters.of(request.query_params)
    asked = read_table_query(request, COLUMNS, name=NAME, default_sort="-created")
    if asked.csv:
        return csv_stream(NAME, COLUMNS, find_all(services, visitor, filters, asked))
    found = await find(services, visitor, filters, asked)
    found = replace(found, rows=await with_wait_reasons(services, visitor, found.rows))
    projects, users = names(found.rows)
    return page(
        request,
        visitor,
        "workloads.html",
        title="Workloads",
        filters=filters,
        states=STATE_CHOICES,
        projects=projects,
        users=users,
        table=listing_of_page(request, COLUMNS, found, asked, name=NAME),
        bulk_actions=BULK_ACTIONS,
        views=await saved_views(request, services, visitor, NAME),
        address=f"/workloads?{request.url.query}" if request.url.query else "/workloads",
    )


@router.post("/workloads/bulk")
async def bulk(services: Services, visitor: Visitor, form: SentForm) -> Response:
    """Apply an action to the selected workloads; those that refuse it do not stop the others."""
    action, chosen = form.text("action"), list(dict.fromkeys(form.all_values("id")))[: PAGE_SIZES[-1]]
    verb = dict(BULK_ACTIONS).get(action) or ("Set priority" if action == "priority" else "")
    if not verb or not chosen:
        problem = "No workload is selected." if verb else f"'{action[:40]}' is not an action."
        raise GpupoolError(ErrorCode.INVALID_REQUEST, problem, "Select workloads in the table.")
    priority = priority_of(form.text("priority", "0")) if action == "priority" else 0
    refused = []
    for ref in chosen:
        try:
            await _apply(services, visitor, ref, action, priority)
        except GpupoolError as error:
            refused.append(error.message)
    notice = f"{verb}: {len(chosen) - len(refused)} of {len(chosen)} workloads."
    return back_to(_own_address(form.text("back")), notice=" ".join([notice, *refused[:MAX_SHOWN_REFUSALS]]))


async def _apply(services: PoolServices, actor: Actor, ref: str, action: str, priority: int) -> None:
    work = services.workloads
    match action:
        case "stop":
            await work.stop(actor, ref)
        case "suspend":
            await work.suspend(actor, ref)
        case "resume":
            await work.resume(actor, ref)
        case "delete":
            await work.delete(actor, ref)
        case _:
            await work.set_priority(actor, ref, priority)


def _own_address(text: str) -> str:
    """Return an address of this page; the form could name another one."""
    return text if text == "/workloads" or text.startswith("/workloads?") else "/workloads"
