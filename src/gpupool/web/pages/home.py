"""The home page: running, waiting, failed and idle work of the visitor, of managed projects, or of the pool."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gpupool.domain.people.access import Actor, Role
from gpupool.domain.units import format_duration
from gpupool.domain.work.ending import Ending, ending_of, retrying
from gpupool.domain.work.search import SortKey, SortOrder
from gpupool.domain.work.workload import Workload, WorkloadState
from gpupool.services.metrics.snapshot import IDLE_AFTER_S
from gpupool.services.pool import PoolServices
from gpupool.services.ports.store import WorkloadFilter
from gpupool.web.deps import Services, Visitor
from gpupool.web.kit.labels import gpus_text
from gpupool.web.pages.leases import LeaseRow, lease_rows
from gpupool.web.pages.queue import QueuePage, WaitReason, cached_queue_page, wait_reasons
from gpupool.web.rendering import page

MAX_ROWS = 25  # of each list; the rest is a link away
MAX_READ = 1000  # live workloads of one scope
FAILED_WITHIN_S = 86400.0
RUNS = frozenset({WorkloadState.RUNNING, WorkloadState.STOPPING})
WAITS = frozenset({WorkloadState.QUEUED, WorkloadState.SUSPENDED})
LIVE = tuple(state for state in WorkloadState if not state.final)
ENDED_BADLY = (WorkloadState.FAILED, WorkloadState.STOPPED)


class HomeView(StrEnum):
    """The work that the page is about."""

    MINE = "mine"
    TEAM = "team"  # of the projects that the visitor manages
    POOL = "pool"


@dataclass(frozen=True, slots=True)
class RunningRow:
    """A running workload; ``idle_s`` is the time without use of its GPUs, if that is long."""

    work: Workload
    gpus: str
    idle_s: float | None


@dataclass(frozen=True, slots=True)
class WaitingRow:
    """A waiting workload with its reason, or its next attempt."""

    work: Workload
    gpus: str
    why: WaitReason | None
    attempt: str


@dataclass(frozen=True, slots=True)
class EndedRow:
    """A workload that ended without success."""

    work: Workload
    ending: Ending


@dataclass(frozen=True, slots=True)
class QuotaRow:
    """GPUs of a project in thousandths; ``left`` is None without a quota. ``held`` is the project's allocation."""

    project: str
    held: int
    quota: int | None
    mine: int

    @property
    def left(self) -> int | None:
        """Return the free part of the quota."""
        return None if self.quota is None else max(0, self.quota - self.held)


@dataclass(frozen=True, slots=True)
class Home:
    """Values of the page. The lists are cut, the counts are not."""

    running: Sequence[RunningRow]
    running_count: int
    waiting: Sequence[WaitingRow]
    waiting_count: int
    failed: Sequence[EndedRow]
    failed_count: int
    idle: Sequence[LeaseRow]
    quotas: Sequence[QuotaRow]


def views_of(actor: Actor) -> tuple[HomeView, ...]:
    """Return the views for the role of a visitor; the first one is the default."""
    match actor.role:
        case Role.ADMIN:
            return HomeView.POOL, HomeView.MINE
        case Role.MANAGER:
            return HomeView.TEAM, HomeView.MINE
        case Role.MEMBER:
            return (HomeView.MINE,)
        case _:
            return (HomeView.POOL,)


async def home_of(
    services: PoolServices, actor: Actor, view: HomeView, queue: Callable[[], Awaitable[QueuePage]]
) -> Home:
    """Return the work of one view; ``queue`` returns the queue of the pool, which is read only if the order matters."""
    now = services.workloads.now()
    scopes = _scopes(services, actor, view)
    live = [work for scope in scopes for work in await services.workloads.list(actor, _live(scope))]
    leases = [row for row in await lease_rows(services, actor, now) if _is_in(row, scopes)]
    idle = sorted((row for row in leases if row.idle_s >= IDLE_AFTER_S), key=lambda row: -row.idle_s)
    idle_of = {row.workload: row.idle_s for row in idle}
    running = [work for work in live if work.state in RUNS]
    waiting = [work for work in live if work.state in WAITS]
    if len(waiting) > 1:
        ranks = {row.id: row.rank for row in (await queue()).rows if row.rank is not None}
        waiting.sort(key=lambda work: ranks.get(work.id, len(ranks) + 1))
    failed = [work for scope in scopes for work in await _failed(services, actor, scope, now)]
    why = await wait_reasons(services, actor, [work.id for work in waiting[:MAX_ROWS]])
    return Home(
        running=[RunningRow(work, gpus_text(work.gpus), idle_of.get(work.id)) for work in running[:MAX_ROWS]],
        running_count=len(running),
        waiting=[await _waiting(services, work, why.get(work.id)) for work in waiting[:MAX_ROWS]],
        waiting_count=len(waiting),
        failed=[await _ended(services, work) for work in failed[:MAX_ROWS]],
        failed_count=len(failed),
        idle=idle[:MAX_ROWS],
        quotas=await _quotas(services, actor, view),
    )


def _scopes(services: PoolServices, actor: Actor, view: HomeView) -> Sequence[WorkloadFilter]:
    if view is HomeView.POOL:
        return (WorkloadFilter(),)
    if view is HomeView.MINE:
        return (WorkloadFilter(user=actor.user),)
    return [WorkloadFilter(project=name) for name in services.workloads.managed_projects(actor)]


def _live(scope: WorkloadFilter) -> WorkloadFilter:
    return replace(scope, states=LIVE, limit=MAX_READ)


def _is_in(row: LeaseRow, scopes: Sequence[WorkloadFilter]) -> bool:
    return any(scope.user in {None, row.user} and scope.project in {None, row.project} for scope in scopes)


async def _failed(services: PoolServices, actor: Actor, scope: WorkloadFilter, now: float) -> Sequence[Workload]:
    """Return what has failed within a day, or was stopped by another user, the newest end first."""
    wanted = replace(scope, states=ENDED_BADLY, sort=SortOrder(SortKey.ENDED), limit=4 * MAX_ROWS)
    found = await services.workloads.list(actor, wanted)
    return [
        work for work in found if now - (work.finished_at or 0.0) < FAILED_WITHIN_S and not await _own(services, work)
    ]


async def _own(services: PoolServices, work: Workload) -> bool:
    """Return whether its user has ended it."""
    ending = ending_of(work, await services.workloads.replicas_of(work))
    return ending is None or ending.user == work.user


async def _ended(services: PoolServices, work: Workload) -> EndedRow:
    ending = ending_of(work, await services.workloads.replicas_of(work))
    assert ending is not None  # noqa: S101 - for the type checker
    return EndedRow(work, ending)


async def _waiting(services: PoolServices, work: Workload, why: WaitReason | None) -> WaitingRow:
    now = services.workloads.now()
    again = [found for row in await services.workloads.replicas_of(work) if (found := retrying(work, row))]
    text = ""
    if again:
        left = format_duration(max(0.0, again[0].next_at - now))
        text = f"attempt {again[0].attempt} of {again[0].attempts}, next in {left}"
    return WaitingRow(work, gpus_text(work.gpus), why, text)


async def _quotas(services: PoolServices, actor: Actor, view: HomeView) -> Sequence[QuotaRow]:
    """Return the projects of the view: all, those that are managed, or those that the visitor may use."""
    members = {project.name: project.members for project in await services.access.projects()}
    managed = services.workloads.managed_projects(actor)
    report = await services.departments.standings()
    mine = {user.project: user.held_permille for user in report.users if user.user == actor.user}
    rows = [QuotaRow(r.project, r.held_permille, r.quota_permille, mine.get(r.project, 0)) for r in report.projects]
    if view is HomeView.POOL:
        return rows
    if view is HomeView.TEAM:
        return [row for row in rows if row.project in managed]
    return [row for row in rows if not members.get(row.project) or actor.user in members[row.project]]


router = APIRouter()


@router.get("/home")
async def home(request: Request, services: Services, visitor: Visitor, view: HomeView | None = None) -> Response:
    """Show running, waiting, failed and idle work; ``view`` chooses whose, as far as the role allows it."""
    views = views_of(visitor)
    chosen = view if view in views else views[0]
    return page(
        request,
        visitor,
        "home.html",
        title="Home",
        home=await home_of(services, visitor, chosen, lambda: cached_queue_page(request, services)),
        view=chosen,
        views=views,
    )
