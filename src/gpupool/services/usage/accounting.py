"""Accounting: exact sums of GPU time, waiting times and costs. All usage figures of the pool come from here."""

from __future__ import annotations

import asyncio
import json
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import structlog

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.people.access import Actor, Role
from gpupool.domain.usage import (
    ALL_USAGE,
    CostRates,
    GpuTime,
    GroupBy,
    LossLine,
    Steps,
    UsageFilter,
    UsageLine,
    WaitLine,
)
from gpupool.domain.work.time_windows import read_zone
from gpupool.services.access.permissions import Permissions
from gpupool.services.control.engine import Engine
from gpupool.services.ports.usage import Dim, TimeQuery, TimeRow, Waits
from gpupool.services.state.identity_cache import IdentityCache
from gpupool.services.usage.calendar import edges_of

SETTLED_AFTER_S = 300.0  # an hour is summed when all its rows and samples are certainly written
FIRST_AFTER_S = 120.0  # after a restart, nodes first send the samples of the downtime
CHECK_INTERVAL_S = 60.0
BETWEEN_DAYS_S = 0.05  # pause between days, because there may be many to sum
MAX_MODELS = 100
MAX_RATE_PER_HOUR = 1_000_000.0

DIMS: dict[GroupBy, tuple[Dim, ...]] = {
    GroupBy.PROJECT: (Dim.PROJECT,),
    GroupBy.DEPARTMENT: (Dim.PROJECT,),
    GroupBy.USER: (Dim.USER,),
    GroupBy.MEMBER: (Dim.PROJECT, Dim.USER),
    GroupBy.NODE: (Dim.NODE,),
    GroupBy.MODEL: (),
    GroupBy.WORKLOAD: (Dim.WORKLOAD,),
    GroupBy.POOL: (),
}

FOLDED = {GroupBy.PROJECT: Dim.PROJECT, GroupBy.USER: Dim.USER, GroupBy.NODE: Dim.NODE}  # keys that ``keep`` combines
MAX_INLINE_ROWS = 2_000  # more rows are summed in a thread
MAX_SHORT = 1 << 15  # fewer keys are numbered with short integers, which are sorted much faster

log = structlog.get_logger("gpupool.accounting")


def _by_time(lines: Iterable[UsageLine]) -> list[UsageLine]:
    return sorted(lines, key=lambda line: (line.at, -line.time.allocated_s, line.key))


def wait_lines(
    waits: Waits, edges: Sequence[float], by: GroupBy, department_of: Callable[[str], str]
) -> list[WaitLine]:
    """Return statistics for each step (by submission) and key, in this order, without empty steps.

    Raises INVALID_REQUEST for groups that a waiting workload does not have: node and model.
    """
    key_of = _key_of(by, department_of)
    names = [key_of(project, user) for project, user in waits.members]
    keys = sorted(set(names))
    place = {key: at for at, key in enumerate(keys)}
    number: type[np.integer[Any]] = np.int16 if len(keys) < MAX_SHORT else np.int64
    key = np.array([place[name] for name in names], number)[waits.member]
    bounds = [*np.searchsorted(waits.created_at, edges[:-1]), len(waits)]
    lines: list[WaitLine] = []
    for step, (first, end) in enumerate(pairwise(bounds)):
        groups = _by_key(key[first:end], waits.wait_s[first:end])
        lines += [_line(keys[each], edges[step], edges[step + 1], seconds) for each, seconds in groups]
    return lines


def _by_key(
    key: npt.NDArray[np.integer[Any]], seconds: npt.NDArray[np.float64]
) -> Iterator[tuple[int, npt.NDArray[np.float64]]]:
    """Yield the keys in order, each with its sorted seconds: those that wait are infinite, before NaN."""
    ascending = np.argsort(seconds)
    order = ascending[np.argsort(key[ascending], kind="stable")]
    key, seconds = key[order], seconds[order]
    bounds = [0, *(np.flatnonzero(np.diff(key)) + 1), len(key)]
    for first, end in pairwise(bounds):
        if first < end:
            yield int(key[first]), seconds[first:end]


def _key_of(by: GroupBy, department_of: Callable[[str], str]) -> Callable[[str, str], str]:
    known: dict[GroupBy, Callable[[str, str], str]] = {
        GroupBy.PROJECT: lambda project, _user: project,
        GroupBy.USER: lambda _project, user: user,
        GroupBy.MEMBER: lambda project, user: f"{project}/{user}",
        GroupBy.DEPARTMENT: lambda project, _user: department_of(project),
        GroupBy.POOL: lambda _project, _user: "",
    }
    if by not in known:
        words = ", ".join(by.value for by in known)
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST, f"Waiting times cannot be grouped by {by}.", f"Group by one of: {words}."
        )
    return known[by]


def _line(key: str, at: float, until: float, seconds: npt.NDArray[np.float64]) -> WaitLine:
    """Return the statistics of sorted waits."""
    started = int(np.searchsorted(seconds, math.inf))
    never = int(np.count_nonzero(np.isnan(seconds)))
    waiting = len(seconds) - started - never
    if not started:
        return WaitLine(key, at, until, 0, waiting, never)
    p50, p90, p99, longest = (_rank(seconds[:started], part) for part in (0.5, 0.9, 0.99, 1.0))
    mean = float(np.mean(seconds[:started]))
    return WaitLine(key, at, until, started, waiting, never, mean, p50, p90, p99, longest)


def _rank(ordered: npt.NDArray[np.float64], part: float) -> float:
    """Return the nearest-rank percentile: the smallest value that at least this part does not exceed."""
    return float(ordered[math.ceil(part * len(ordered)) - 1])


class AccountingService:
    """Usage of GPUs and cost rates; all users may read them, administrators set the rates."""

    def __init__(self, engine: Engine, identities: IdentityCache, permissions: Permissions, time_zone: str) -> None:
        self._engine = engine
        self._identities = identities
        self._permissions = permissions
        self._books = engine.ports.store.usage_books
        self._time_zone = time_zone
        self._rates = CostRates()

    @property
    def rates(self) -> CostRates:
        """Return the cost of GPU hours; empty if not set."""
        return self._rates

    @property
    def time_zone(self) -> str:
        """Return the default time zone of timelines."""
        return self._time_zone

    def now(self) -> float:
        """Return the pool's time, up to which current leases count."""
        return self._engine.ports.clock.now()

    async def usage(
        self,
        since: float,
        until: float,
        by: GroupBy = GroupBy.PROJECT,
        step: Steps | None = None,
        scope: UsageFilter = ALL_USAGE,
        keep: Collection[str] | None = None,
    ) -> Sequence[UsageLine]:
        """Return GPU time between two times, largest first.

        With ``step`` it is a timeline by hour, day, week or month: oldest first, without empty steps. The first and the
        last step may be partial. With ``keep``, other projects, users or nodes may be one line, ``OTHERS``.
        """
        edges = self._edges(since, until, step)
        kept = None if keep is None or by not in FOLDED else (FOLDED[by], frozenset(keep))
        lines = await self._lines(TimeQuery(edges, DIMS[by], scope, self.now(), keep=kept), by)
        return _by_time(lines)

    async def between(
        self, edges: Sequence[float], by: GroupBy = GroupBy.POOL, scope: UsageFilter = ALL_USAGE, *, costed: bool = True
    ) -> Sequence[UsageLine]:
        """Return GPU time between neighbouring edges, oldest first: a timeline with steps of any length.

        Without ``costed`` it leaves out cost and requested time, which is faster.
        """
        return _by_time(await self._lines(TimeQuery(tuple(edges), DIMS[by], scope, self.now(), requests=costed), by))

    async def waits_between(
        self, edges: Sequence[float], by: GroupBy = GroupBy.POOL, scope: UsageFilter = ALL_USAGE
    ) -> Sequence[WaitLine]:
        """Return waiting times of workloads submitted between neighbouring edges, oldest first."""
        found = await self._books.waits(edges[0], edges[-1], scope)
        if len(found) > MAX_INLINE_ROWS:
            return await asyncio.to_thread(wait_lines, found, edges, by, self._department_of)
        return wait_lines(found, edges, by, self._department_of)

    async def held_by_member(self, since: float, until: float) -> Sequence[tuple[UsageLine, int]]:
        """Return GPU time of each user in each project, with the number of leases in that time."""
        lines = await self.usage(since, until, GroupBy.MEMBER)
        before = {(p, u): n for p, u, n in await self._books.leases_held_at(since)}
        return [(line, line.time.leases + before.get((line.project, line.user), 0)) for line in lines]

    async def waits(
        self,
        since: float,
        until: float,
        by: GroupBy = GroupBy.PROJECT,
        step: Steps | None = None,
        scope: UsageFilter = ALL_USAGE,
    ) -> Sequence[WaitLine]:
        """Return waiting times until the first start, of workloads submitted between two times."""
        if scope.node is not None or scope.model is not None:
            raise GpupoolError(
                ErrorCode.INVALID_REQUEST,
                "Waiting workloads have no node and no GPU model.",
                "Group by project or user.",
            )
        return await self.waits_between(self._edges(since, until, step), by, scope)

    async def waits_and_total(
        self, since: float, until: float, by: GroupBy, scope: UsageFilter = ALL_USAGE
    ) -> tuple[list[WaitLine], WaitLine | None]:
        """Return the lines of ``waits`` and the line of all of them, from one reading; it is summed in a thread."""
        found, edges = await self._books.waits(since, until, scope), self._edges(since, until, None)

        def both() -> tuple[list[WaitLine], list[WaitLine]]:
            return (
                wait_lines(found, edges, by, self._department_of),
                wait_lines(found, edges, GroupBy.POOL, self._department_of),
            )

        lines, total = await asyncio.to_thread(both)
        return lines, total[0] if total else None

    async def losses(self, since: float, until: float, by: GroupBy, scope: UsageFilter = ALL_USAGE) -> list[LossLine]:
        """Return the work that ends between two times lost, most first; groups as for ``waits``."""
        key_of = _key_of(by, self._department_of)
        found: dict[str, list[float]] = defaultdict(list)
        for loss in await self._books.losses(since, until, scope):
            found[key_of(loss.project, loss.user)].append(loss.gpu_s)
        lines = [LossLine(key, len(lost), sum(lost)) for key, lost in found.items()]
        return sorted(lines, key=lambda line: (-line.lost_gpu_s, line.key))

    # Helpers

    def _edges(self, since: float, until: float, step: Steps | None) -> tuple[float, ...]:
        if until < since:
            raise GpupoolError(ErrorCode.INVALID_REQUEST, "'until' is before 'since'.", "Swap them.")
        if step is None:
            return since, until
        return edges_of(since, until, step.period, read_zone(step.zone or self._time_zone))

    async def _lines(self, query: TimeQuery, by: GroupBy) -> list[UsageLine]:
        if by is GroupBy.MODEL or (query.requests and self._rates):
            query = replace(query, dims=(*query.dims, Dim.MODEL))
        rows = await self._books.gpu_time(query)
        if len(rows) > MAX_INLINE_ROWS:  # in a thread, so that the event loop is not blocked
            lines = await asyncio.to_thread(self._summed, query, by, rows)
        else:
            lines = self._summed(query, by, rows)
        return await self._named(lines) if by is GroupBy.WORKLOAD else lines

    def _summed(self, query: TimeQuery, by: GroupBy, rows: Sequence[TimeRow]) -> list[UsageLine]:
        edges, by_model = query.edges, query.dims[-1:] == (Dim.MODEL,)
        groups: dict[tuple[int, tuple[str, ...]], list[TimeRow]] = defaultdict(list)
        for row in rows:
            keys = row.keys[:-1] if by_model and by is not GroupBy.MODEL else row.keys
            groups[row.step, self._key(by, keys)].append(row)
        asked = query.asks_for_requests and by is not GroupBy.MODEL
        rates = self._rates if by_model else CostRates()
        return [
            self._line(by, key, (edges[step], edges[step + 1]), found, rates=rates, asked=asked)
            for (step, key), found in groups.items()
            if asked or any(row.allocated_s or row.leases for row in found)
        ]

    def _key(self, by: GroupBy, keys: tuple[str, ...]) -> tuple[str, ...]:
        if by is GroupBy.DEPARTMENT:
            return (self._department_of(keys[0]),)
        return keys or ("",)

    def _department_of(self, project: str) -> str:
        found = self._identities.projects.get(project)
        return "" if found is None else found.department

    @staticmethod
    def _line(
        by: GroupBy,
        key: tuple[str, ...],
        span: tuple[float, float],
        rows: Sequence[TimeRow],
        *,
        rates: CostRates,
        asked: bool,
    ) -> UsageLine:
        measured = sum(row.measured_s for row in rows)
        time = GpuTime(
            allocated_s=sum(row.allocated_s for row in rows),
            requested_s=sum(row.requested_s for row in rows) if asked else None,
            used_s=sum(row.used_s for row in rows) if measured else None,
            idle_s=sum(row.idle_s for row in rows) if measured else None,
            measured_s=measured,
            leases=sum(row.leases for row in rows),
        )
        cost = rates.cost_of((row.keys[-1], row.allocated_s) for row in rows) if rates else None
        member = {"project": key[0], "user": key[1]} if by is GroupBy.MEMBER else {}
        return UsageLine("/".join(key), span[0], span[1], time, cost=cost, **member)

    async def _named(self, lines: Iterable[UsageLine]) -> list[UsageLine]:
        lines = list(lines)
        names = await self._books.names_of(sorted({line.key for line in lines}))
        return [_with_names(line, names.get(line.key)) for line in lines]

    async def load(self) -> None:
        """Load the rates; delete sums of future hours, which exist after the clock was set back."""
        if await self._books.reopen(self.now()):
            log.warning("the clock was set back: hours that are not over are summed again")
        text = await self._engine.ports.store.documents.load("cost_rates")
        if text:
            self._rates = rates_of(json.loads(text))

    async def run(self) -> None:
        """Run for ever: sum hours and days that are over, first those missed while the pool was down."""
        await self._engine.ports.sleep(FIRST_AFTER_S)
        while True:
            try:
                while await self._books.sum_next(self.now() - SETTLED_AFTER_S):
                    await self._engine.ports.sleep(BETWEEN_DAYS_S)
            except GpupoolError as error:
                log.warning("hours could not be summed; will be tried again", code=error.code)
            await self._engine.ports.sleep(CHECK_INTERVAL_S)

    async def set_rates(self, actor: Actor, rates: CostRates) -> CostRates:
        """Set the cost of GPU hours, also for the past. Raises FORBIDDEN, INVALID_REQUEST."""
        self._permissions.need_role(actor, Role.ADMIN)
        check_rates(rates)
        words = ", ".join(f"{name} {rate:g}" for name, rate in rates.models)
        message = f"{rates.currency} default {rates.default}; {words or 'no models'}"
        event = self._engine.change_event(actor.user, message, "cost rates")

        async def write() -> None:
            await self._engine.ports.store.documents.save("cost_rates", json.dumps(document_of(rates)), event)
            self._rates = rates

        await self._engine.run_exclusive(write)
        return rates


def rates_of(document: dict[str, Any]) -> CostRates:
    """Parse rates in their stored form."""
    return CostRates(document["currency"], document["default"], tuple(sorted(document["models"].items())))


def document_of(rates: CostRates) -> dict[str, Any]:
    """Return rates in their stored form."""
    return {"currency": rates.currency, "default": rates.default, "models": dict(rates.models)}


def check_rates(rates: CostRates) -> None:
    """Raise INVALID_REQUEST for invalid rates."""
    amounts = [rate for _, rate in rates.models] + ([] if rates.default is None else [rates.default])
    wrong = next((rate for rate in amounts if not 0 <= rate <= MAX_RATE_PER_HOUR), None)
    if wrong is not None:
        sentence = f"{wrong} is not a valid price of a GPU hour."
        raise GpupoolError(ErrorCode.INVALID_REQUEST, sentence, f"Give a number from 0 to {MAX_RATE_PER_HOUR:,.0f}.")
    if len(rates.models) > MAX_MODELS:
        sentence = f"At most {MAX_MODELS} rates are allowed."
        raise GpupoolError(ErrorCode.INVALID_COUNT, sentence, "Use more general model names, such as a100.")
    if len({name for name, _ in rates.models}) < len(rates.models):
        raise GpupoolError(ErrorCode.INVALID_REQUEST, "A model has two rates.", "Name each model once.")


def _with_names(line: UsageLine, names: tuple[str, str, str] | None) -> UsageLine:
    if names is None:
        return line
    return replace(line, name=names[0], project=names[1], user=names[2])
