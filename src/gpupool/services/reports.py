"""A report: who used what in a time, how it went over that time, and how long work waited; all of one moment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gpupool.domain.access import Actor
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.usage import EVERYTHING, By, GpuTime, Period, Scope, Steps, UsageLine, WaitLine
from gpupool.services.accounting import AccountingService

DAY_S = 86400
MOST_DRAWN = 7  # keys of a timeline; the others are one
OTHERS = "others:"  # no name has a colon
WAITS_BY = frozenset({By.PROJECT, By.USER, By.DEPARTMENT, By.MEMBER, By.POOL})


@dataclass(frozen=True, slots=True)
class Wish:
    """What a report is to be of. ``step`` None: what suits its length."""

    since: float
    until: float
    by: By = By.PROJECT
    step: Period | None = None
    zone: str = ""
    scope: Scope = EVERYTHING


@dataclass(frozen=True, slots=True)
class Report:
    """Lines, most GPU time first, and their sum; a timeline of the largest; waiting times where they can be told.

    ``until`` is the moment it was made where more was asked for.
    """

    since: float
    until: float
    by: By
    step: Period
    zone: str
    scope: Scope
    made_at: float
    currency: str
    lines: tuple[UsageLine, ...]
    total: UsageLine
    timeline: tuple[UsageLine, ...]
    waits: tuple[WaitLine, ...]
    waits_total: WaitLine | None


async def make_report(accounting: AccountingService, actor: Actor, wish: Wish) -> Report:
    """Everything of it is read up to one moment, so that its parts agree. Raises INVALID_REQUEST."""
    now = accounting.now()
    since, until = wish.since, min(wish.until, now)
    if since >= until:
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST, "That time has no length.", "Give a beginning before the end, and in the past."
        )
    steps = Steps(wish.step or step_for(until - since), wish.zone)
    lines = await accounting.usage(actor, since, until, wish.by, None, wish.scope)
    along = wish.by if wish.by is not By.WORKLOAD else By.POOL
    timeline = await accounting.timeline(actor, since, until, steps, along, wish.scope)
    waits, waits_total = await _waits(accounting, actor, replace(wish, until=until))
    return Report(
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
        timeline=tuple(largest(timeline, lines)),
        waits=waits,
        waits_total=waits_total,
    )


async def _waits(
    accounting: AccountingService, actor: Actor, wish: Wish
) -> tuple[tuple[WaitLine, ...], WaitLine | None]:
    if wish.by not in WAITS_BY or wish.scope.node is not None or wish.scope.model is not None:
        return (), None
    found = await accounting.waits(actor, wish.since, wish.until, wish.by, None, wish.scope)
    total = await accounting.waits(actor, wish.since, wish.until, By.POOL, None, wish.scope)
    return tuple(found), total[0] if total else None


def step_for(length_s: float) -> Period:
    """The step of which a time has neither very few nor too many to look at."""
    for period, most in ((Period.HOUR, 3), (Period.DAY, 92), (Period.WEEK, 731)):
        if length_s <= most * DAY_S:
            return period
    return Period.MONTH


def total_of(lines: Sequence[UsageLine], since: float, until: float) -> UsageLine:
    """The sum of lines; what is unknown of one of them is left out of it, but no cost that leaves some out is told."""
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


def largest(timeline: Sequence[UsageLine], lines: Sequence[UsageLine]) -> list[UsageLine]:
    """A timeline of those who used most; the others are one line in each step (``OTHERS``)."""
    keep = {line.key for line in lines[:MOST_DRAWN]} | {""}
    rest: dict[tuple[float, float], list[UsageLine]] = {}
    for line in timeline:
        if line.key not in keep:
            rest.setdefault((line.at, line.until), []).append(line)
    others = [replace(total_of(found, *span), key=OTHERS) for span, found in rest.items()]
    return sorted([*(line for line in timeline if line.key in keep), *others], key=lambda line: line.at)
