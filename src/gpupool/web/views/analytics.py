"""What the analytics page shows, as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpupool.domain.units import WHOLE_GPU
from gpupool.domain.usage import By, UsageLine, WaitLine
from gpupool.domain.workload import WorkloadKind, WorkloadState
from gpupool.services.analytics import AnalyticsService, IdleHolder, LongWait
from gpupool.web.listing import Column, Kind
from gpupool.web.ranges import TimeRange

HOUR_S = 3600.0
CHART_BY = (By.POOL, By.PROJECT, By.USER, By.DEPARTMENT, By.MODEL, By.NODE)


@dataclass(frozen=True, slots=True)
class Totals:
    """GPU time of the whole pool in the time that is looked at, in hours; None where nothing was measured.

    ``used_percent`` is of what was measured while it was held, ``held_percent`` of all GPUs that the pool has now.
    """

    held_h: float
    used_h: float | None
    idle_h: float | None
    held_percent: float | None
    used_percent: float | None
    leases: int
    cost: float | None


@dataclass(frozen=True, slots=True)
class Kinds:
    """How many live workloads are of which kind in which state; only kinds and states that there are."""

    states: tuple[WorkloadState, ...]
    rows: tuple[tuple[WorkloadKind, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class Analytics:
    """Everything on the page but the charts, which are asked for by themselves.

    ``whole`` is false while some of what concerns the past is still being worked out, and left out.
    """

    totals: Totals | None
    waits: WaitLine | None
    projects: Sequence[UsageLine]
    users: Sequence[UsageLine]
    idle: Sequence[IdleHolder]
    kinds: Kinds
    longest: Sequence[LongWait]
    whole: bool


async def look(analytics: AnalyticsService, span: TimeRange) -> Analytics:
    """Gather it; what concerns the past is asked for at once, and left out where it takes too long."""
    edges = (span.since, span.until)
    pool, projects, users, waits = await analytics.soon(
        *(analytics.usage(edges, by, span.lasts_s) for by in (By.POOL, By.PROJECT, By.USER)),
        analytics.waits(edges, span.lasts_s),
    )
    return Analytics(
        totals=None if pool is None else _totals(pool, analytics.capacity_permille(), span),
        waits=waits[0] if waits else None,
        projects=projects or (),
        users=users or (),
        idle=await analytics.idle_holders(),
        kinds=_kinds(analytics.alive()),
        longest=analytics.longest_waits(),
        whole=all(found is not None for found in (pool, projects, users, waits)),
    )


def _totals(lines: Sequence[UsageLine], capacity_permille: int, span: TimeRange) -> Totals:
    if not lines:
        return Totals(0.0, None, None, 0.0 if capacity_permille else None, None, 0, None)
    time = lines[0].time
    there_s = capacity_permille / WHOLE_GPU * (span.until - span.since)
    return Totals(
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


def _kinds(alive: Mapping[tuple[WorkloadKind, WorkloadState], int]) -> Kinds:
    there = {state for _, state in alive}
    states = tuple(state for state in WorkloadState if state in there)
    kinds = [kind for kind in WorkloadKind if any(kind is found for found, _ in alive)]
    return Kinds(states, tuple((kind, tuple(alive.get((kind, state), 0) for state in states)) for kind in kinds))


def _idle_percent(line: UsageLine) -> float | None:
    idle, measured = line.time.idle_s, line.time.measured_s
    return None if idle is None or not measured else 100 * idle / measured


def usage_columns(title: str, currency: str, link: str) -> tuple[Column[UsageLine], ...]:
    """A table of GPU time by who had it; ``link`` is put before the name to lead there."""
    columns: tuple[Column[UsageLine], ...] = (
        Column("who", title, lambda line: line.key, link=lambda line: f"{link}{line.key}" if line.key else None),
        Column(
            "held", "Held", lambda line: line.time.allocated_s / HOUR_S, Kind.NUMBER, about="GPU hours under leases"
        ),
        Column("used", "Computing", lambda line: _hours(line.time.used_s), Kind.NUMBER, about="GPU hours measured"),
        Column("idle", "Idle", lambda line: _hours(line.time.idle_s), Kind.NUMBER, about="GPU hours held, unused"),
        Column("waste", "Idle part", _idle_percent, Kind.PERCENT, about="Of what was held while it was measured"),
        Column("leases", "Leases", lambda line: line.time.leases, Kind.NUMBER, about="Granted in this time"),
    )
    if not currency:
        return columns
    return (*columns, Column("cost", f"Cost ({currency})", lambda line: line.cost, Kind.NUMBER))


def idle_columns(currency: str) -> tuple[Column[IdleHolder], ...]:
    """A table of who holds GPUs unused."""
    columns: tuple[Column[IdleHolder], ...] = (
        Column(
            "workload",
            "Workload",
            lambda one: one.holding.workload.name if one.holding.workload else one.holding.lease.workload,
            link=lambda one: f"/workloads/{one.holding.lease.workload}",
        ),
        Column("user", "User", lambda one: one.holding.lease.user),
        Column("project", "Project", lambda one: one.holding.lease.project),
        Column("gpus", "GPUs", lambda one: one.holding.lease.permille, Kind.GPUS),
        Column("node", "Node", lambda one: one.holding.lease.node, link=lambda one: f"/nodes/{one.holding.lease.node}"),
        Column("idle", "Idle for", lambda one: one.idle_s, Kind.DURATION),
        Column("hours", "GPU hours lost", lambda one: one.gpu_s / HOUR_S, Kind.NUMBER),
    )
    if not currency:
        return columns
    return (*columns, Column("cost", f"Cost ({currency})", lambda one: one.cost, Kind.NUMBER))
