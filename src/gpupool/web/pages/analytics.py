"""The analytics page: use of the pool, idle GPUs and waiting times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.usage import GroupBy, UsageLine, WaitLine
from gpupool.domain.work.workload import WorkloadKind, WorkloadState
from gpupool.services.usage.analytics import AnalyticsService, IdleHolder, LongWait
from gpupool.web.deps import Services, Visitor, reads
from gpupool.web.kit.listing import Column, ColumnKind, listing, table_names
from gpupool.web.kit.ranges import RANGE_NAMES, TimeRange, range_links, read_range
from gpupool.web.rendering import page

HOUR_S = 3600.0
CHART_BY = (GroupBy.POOL, GroupBy.PROJECT, GroupBy.USER, GroupBy.DEPARTMENT, GroupBy.MODEL, GroupBy.NODE)


@dataclass(frozen=True, slots=True)
class GpuHourTotals:
    """GPU hours of the whole pool in the time range; None if not measured.

    ``used_percent`` is of what was measured while it was held, ``held_percent`` of all GPUs that the pool had.
    """

    held_h: float
    used_h: float | None
    idle_h: float | None
    held_percent: float | None
    used_percent: float | None
    leases: int
    cost: float | None


@dataclass(frozen=True, slots=True)
class WorkloadCounts:
    """Number of live workloads by kind and state; only kinds and states that occur."""

    states: tuple[WorkloadState, ...]
    rows: tuple[tuple[WorkloadKind, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class Analytics:
    """Everything on the page but the charts, which are asked for by themselves.

    ``whole`` is false while some of what concerns the past is still being worked out, and left out.
    """

    totals: GpuHourTotals | None
    waits: WaitLine | None
    projects: Sequence[UsageLine]
    users: Sequence[UsageLine]
    idle: Sequence[IdleHolder]
    kinds: WorkloadCounts
    longest: Sequence[LongWait]
    whole: bool


async def analytics_page(analytics: AnalyticsService, span: TimeRange) -> Analytics:
    """Return the page's values; figures of the past that take too long are left out."""
    edges = (span.since, span.until)
    pool, projects, users, waits, capacity = await analytics.soon(
        *(analytics.usage(edges, by, span.cache_s) for by in (GroupBy.POOL, GroupBy.PROJECT, GroupBy.USER)),
        analytics.waits(edges, span.cache_s),
        analytics.capacity(edges, span.cache_s),
    )
    return Analytics(
        totals=None if pool is None or capacity is None else _totals(pool, capacity[0].present_s),
        waits=waits[0] if waits else None,
        projects=projects or (),
        users=users or (),
        idle=await analytics.idle_holders(),
        kinds=_kinds(analytics.alive()),
        longest=analytics.longest_waits(),
        whole=all(found is not None for found in (pool, projects, users, waits, capacity)),
    )


def _totals(lines: Sequence[UsageLine], there_s: float) -> GpuHourTotals:
    """Sum up; ``there_s`` are the GPU seconds of all GPUs in the pool in that time."""
    if not lines:
        return GpuHourTotals(0.0, None, None, 0.0 if there_s else None, None, 0, None)
    time = lines[0].time
    return GpuHourTotals(
        held_h=time.allocated_s / HOUR_S,
        used_h=_hours(time.used_s),
        idle_h=_hours(time.idle_s),
        held_percent=100 * time.allocated_s / there_s if there_s else None,
        used_percent=None if time.used_part is None else 100 * time.used_part,
        leases=time.leases,
        cost=lines[0].cost,
    )


def _hours(seconds: float | None) -> float | None:
    return None if seconds is None else seconds / HOUR_S


def _kinds(alive: Mapping[tuple[WorkloadKind, WorkloadState], int]) -> WorkloadCounts:
    there = {state for _, state in alive}
    states = tuple(state for state in WorkloadState if state in there)
    kinds = [kind for kind in WorkloadKind if any(kind is found for found, _ in alive)]
    return WorkloadCounts(
        states, tuple((kind, tuple(alive.get((kind, state), 0) for state in states)) for kind in kinds)
    )


def _idle_percent(line: UsageLine) -> float | None:
    idle, measured = line.time.idle_s, line.time.measured_s
    return None if idle is None or not measured else 100 * idle / measured


def usage_columns(title: str, currency: str, link: str) -> tuple[Column[UsageLine], ...]:
    """Return the columns of GPU time by project or user; ``link`` is the prefix of the page's address."""
    columns: tuple[Column[UsageLine], ...] = (
        Column("who", title, lambda line: line.key, link=lambda line: f"{link}{line.key}" if line.key else None),
        Column(
            "held",
            "Held",
            lambda line: line.time.allocated_s / HOUR_S,
            ColumnKind.NUMBER,
            about="GPU hours under leases",
        ),
        Column(
            "used", "Computing", lambda line: _hours(line.time.used_s), ColumnKind.NUMBER, about="GPU hours measured"
        ),
        Column(
            "idle", "Idle", lambda line: _hours(line.time.idle_s), ColumnKind.NUMBER, about="GPU hours held, unused"
        ),
        Column("waste", "Idle share", _idle_percent, ColumnKind.PERCENT, about="Share of the measured GPU time"),
        Column("leases", "Leases", lambda line: line.time.leases, ColumnKind.NUMBER, about="Granted in this period"),
    )
    if not currency:
        return columns
    return (*columns, Column("cost", f"Cost ({currency})", lambda line: line.cost, ColumnKind.NUMBER))


def idle_columns(currency: str) -> tuple[Column[IdleHolder], ...]:
    """Return the columns of leases with idle GPUs."""
    columns: tuple[Column[IdleHolder], ...] = (
        Column(
            "workload",
            "Workload",
            lambda one: one.holding.workload.name if one.holding.workload else one.holding.lease.workload,
            link=lambda one: f"/workloads/{one.holding.lease.workload}",
        ),
        Column("user", "User", lambda one: one.holding.lease.user),
        Column("project", "Project", lambda one: one.holding.lease.project),
        Column("gpus", "GPUs", lambda one: one.holding.lease.permille, ColumnKind.GPUS),
        Column("node", "Node", lambda one: one.holding.lease.node, link=lambda one: f"/nodes/{one.holding.lease.node}"),
        Column("idle", "Idle for", lambda one: one.idle_s, ColumnKind.DURATION),
        Column("hours", "Idle GPU hours", lambda one: one.gpu_s / HOUR_S, ColumnKind.NUMBER),
    )
    if not currency:
        return columns
    return (*columns, Column("cost", f"Cost ({currency})", lambda one: one.cost, ColumnKind.NUMBER))


router = APIRouter()


_TABLES = (*table_names("idle-"), *table_names("waste-"), *table_names("users-"))


@router.get("/analytics", dependencies=[reads(*RANGE_NAMES, *_TABLES)])
async def analytics(
    request: Request, services: Services, visitor: Visitor, by: Annotated[str, Query(max_length=20)] = "pool"
) -> Response:
    """Show figures of a time range and of now; charts load their data separately."""
    accounting = services.accounting
    span = read_range(request.query_params, accounting.now(), accounting.time_zone)
    if by not in {one.value for one in CHART_BY}:
        raise GpupoolError(ErrorCode.INVALID_REQUEST, f"by: '{by}' is not known.", f"Known: {', '.join(CHART_BY)}.")
    found = await analytics_page(services.analytics, span)
    currency = accounting.rates.currency
    projects = usage_columns("Project", currency, "/projects/")
    users = usage_columns("User", currency, "/workloads?user=")
    return page(
        request,
        visitor,
        "analytics.html",
        title="Analytics",
        span=span,
        ranges=range_links("/analytics", request.query_params, span),
        by=GroupBy(by),
        choices=CHART_BY,
        found=found,
        currency=currency,
        idle=listing(request, idle_columns(currency), found.idle, name="idle", default_sort="-hours", prefix="idle-"),
        projects=listing(request, projects, found.projects, name="waste", default_sort="-idle", prefix="waste-"),
        users=listing(request, users, found.users, name="users", default_sort="-held", prefix="users-"),
    )
