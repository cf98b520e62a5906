"""Usage reports: GPU time by user, project or another key, a timeline, and waiting times, all of the same period."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.usage import ALL_USAGE, GpuTime, GroupBy, LossLine, Period, Steps, UsageFilter, UsageLine, WaitLine
from gpupool.services.ports.usage import OTHERS
from gpupool.services.usage.accounting import AccountingService

DAY_S = 86400
MAX_DRAWN = 7  # keys of a timeline; the others are summed
WAITS_BY = frozenset({GroupBy.PROJECT, GroupBy.USER, GroupBy.DEPARTMENT, GroupBy.MEMBER, GroupBy.POOL})


@dataclass(frozen=True, slots=True)
class ReportRequest:
    """The parameters of a report. ``step`` None: chosen by its length."""

    since: float
    until: float
    by: GroupBy = GroupBy.PROJECT
    step: Period | None = None
    zone: str = ""
    scope: UsageFilter = ALL_USAGE


@dataclass(frozen=True, slots=True)
class UsageReport:
    """Lines, largest GPU time first, and their sum; a timeline of the largest; waits and lost work where defined.

    ``until`` is at most the time when the report was made.
    """

    since: float
    until: float
    by: GroupBy
    step: Period
    zone: str
    scope: UsageFilter
    made_at: float
    currency: str
    lines: tuple[UsageLine, ...]
    total: UsageLine
    timeline: tuple[UsageLine, ...]
    waits: tuple[WaitLine, ...]
    waits_total: WaitLine | None
    losses: tuple[LossLine, ...] = ()

    @property
    def lost_gpu_s(self) -> float:
        """Return the GPU seconds of work that evictions and failed nodes lost."""
        return sum(line.lost_gpu_s for line in self.losses)


async def make_report(accounting: AccountingService, wish: ReportRequest) -> UsageReport:
    """Make a report whose parts all end at one moment, so that they agree. Raises INVALID_REQUEST."""
    now = accounting.now()
    since, until = wish.since, min(wish.until, now)
    if since >= until:
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST, "The period is empty.", "Give a start in the past, before the end."
        )
    steps = Steps(wish.step or step_for(until - since), wish.zone)
    lines = await accounting.usage(since, until, wish.by, None, wish.scope)
    along = wish.by if wish.by is not GroupBy.WORKLOAD else GroupBy.POOL
    drawn = {line.key for line in lines[:MAX_DRAWN]} | {""}
    timeline = await accounting.usage(since, until, along, steps, wish.scope, keep=drawn)
    waits, waits_total = await _waits(accounting, replace(wish, until=until))
    return UsageReport(
        since=since,
        until=until,
        by=wish.by,
        step=steps.period,
        zone=wish.zone or accounting.time_zone,
        scope=wish.scope,
        made_at=now,
        currency=accounting.rates.currency,
        lines=tuple(lines),
        total=total_of(lines, since, until),
        timeline=tuple(largest(timeline, drawn)),
        waits=waits,
        waits_total=waits_total,
        losses=tuple(await _losses(accounting, replace(wish, until=until))),
    )


async def _waits(accounting: AccountingService, wish: ReportRequest) -> tuple[tuple[WaitLine, ...], WaitLine | None]:
    if wish.by not in WAITS_BY or wish.scope.node is not None or wish.scope.model is not None:
        return (), None
    found, total = await accounting.waits_and_total(wish.since, wish.until, wish.by, wish.scope)
    return tuple(found), total


async def _losses(accounting: AccountingService, wish: ReportRequest) -> list[LossLine]:
    if wish.by not in WAITS_BY or wish.scope.model is not None:
        return []
    return await accounting.losses(wish.since, wish.until, wish.by, wish.scope)


def step_for(length_s: float) -> Period:
    """Return the step that divides a period into a readable number of steps."""
    for period, most in ((Period.HOUR, 3), (Period.DAY, 92), (Period.WEEK, 731)):
        if length_s <= most * DAY_S:
            return period
    return Period.MONTH


def total_of(lines: Sequence[UsageLine], since: float, until: float) -> UsageLine:
    """Return the sum of lines. Unknown values are left out, but the cost is None if one cost is unknown."""
    costs = [line.cost for line in lines]
    time = GpuTime(
        allocated_s=sum(line.time.allocated_s for line in lines),
        requested_s=_sum(line.time.requested_s for line in lines),
        used_s=_sum(line.time.used_s for line in lines),
        idle_s=_sum(line.time.idle_s for line in lines),
        measured_s=sum(line.time.measured_s for line in lines),
        leases=sum(line.time.leases for line in lines),
    )
    return UsageLine("", since, until, time, cost=None if None in costs else _sum(costs))


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def largest(timeline: Sequence[UsageLine], keep: Collection[str]) -> list[UsageLine]:
    """Return a timeline of some keys; the others are one line in each step (``OTHERS``)."""
    rest: dict[tuple[float, float], list[UsageLine]] = {}
    for line in timeline:
        if line.key not in keep:
            rest.setdefault((line.at, line.until), []).append(line)
    others = [replace(total_of(found, *span), key=OTHERS) for span, found in rest.items()]
    return sorted([*(line for line in timeline if line.key in keep), *others], key=lambda line: line.at)
