"""Who used what of the pool: exact sums of GPU time, waiting times, costs. The one place that all figures come from."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import structlog

from gpupool.domain.access import Actor, Role
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.events import Event, Reason
from gpupool.domain.usage import EVERYTHING, By, CostRates, GpuTime, Scope, Steps, UsageLine, WaitLine
from gpupool.domain.windows import read_zone
from gpupool.services.calendar import edges_of
from gpupool.services.engine import Engine
from gpupool.services.permissions import Permissions
from gpupool.services.register import Register
from gpupool.services.usage_books import Dim, TimeQuery, TimeRow
from gpupool.services.waits import wait_lines

SETTLED_AFTER_S = 300.0  # an hour is summed when what happened in it has been written for sure, measurements included
FIRST_AFTER_S = 120.0  # nodes tell a pool that has started again what they measured meanwhile
LOOK_EVERY_S = 60.0
BETWEEN_DAYS_S = 0.05  # after a long time without a pool, or with an older one, there are many to sum
MOST_MODELS = 100
MOST_PER_HOUR = 1_000_000.0

DIMS: dict[By, tuple[Dim, ...]] = {
    By.PROJECT: (Dim.PROJECT,),
    By.DEPARTMENT: (Dim.PROJECT,),
    By.USER: (Dim.USER,),
    By.MEMBER: (Dim.PROJECT, Dim.USER),
    By.NODE: (Dim.NODE,),
    By.MODEL: (),
    By.WORKLOAD: (Dim.WORKLOAD,),
    By.POOL: (),
}

MOST_ROWS_AT_ONCE = 2_000  # that are added up without letting anybody else work meanwhile

log = structlog.get_logger("gpupool.accounting")


class AccountingService:
    """Reading is for everybody (who used what is no secret of a pool), rates are set by administrators."""

    def __init__(self, engine: Engine, register: Register, permissions: Permissions, time_zone: str) -> None:
        self._engine = engine
        self._register = register
        self._permissions = permissions
        self._books = engine.ports.store.usage_books
        self._time_zone = time_zone
        self._rates = CostRates()

    @property
    def rates(self) -> CostRates:
        """What GPU hours cost; empty where nobody said."""
        return self._rates

    @property
    def time_zone(self) -> str:
        """The zone whose days timelines have when they are asked for in none."""
        return self._time_zone

    def now(self) -> float:
        """The pool's time: what leases that are held are counted up to."""
        return self._engine.ports.clock.now()

    async def usage(
        self,
        actor: Actor,
        since: float,
        until: float,
        by: By = By.PROJECT,
        step: Steps | None = None,
        scope: Scope = EVERYTHING,
    ) -> Sequence[UsageLine]:
        """GPU time between two times, most first; with ``step`` by step, oldest first (see ``timeline``)."""
        del actor
        lines = await self._lines(self._edges(since, until, step), by, scope)
        return sorted(lines, key=lambda line: (line.at, -line.time.allocated_s, line.key))

    async def timeline(
        self,
        actor: Actor,
        since: float,
        until: float,
        step: Steps,
        by: By = By.POOL,
        scope: Scope = EVERYTHING,
    ) -> Sequence[UsageLine]:
        """GPU time in each hour, day, week or month that holds any; ``since`` and ``until`` may cut the outer ones."""
        return await self.usage(actor, since, until, by, step, scope)

    async def between(
        self, edges: Sequence[float], by: By = By.POOL, scope: Scope = EVERYTHING, *, costed: bool = True
    ) -> Sequence[UsageLine]:
        """GPU time between neighbouring moments, oldest first: a timeline whose steps are of any length.

        Without ``costed`` it says neither what the time costs nor what was asked for, which is quicker.
        """
        lines = await self._lines(tuple(edges), by, scope, costed=costed)
        return sorted(lines, key=lambda line: (line.at, -line.time.allocated_s, line.key))

    async def waits_between(
        self, edges: Sequence[float], by: By = By.POOL, scope: Scope = EVERYTHING
    ) -> Sequence[WaitLine]:
        """How long workloads waited that were submitted between neighbouring moments, oldest first."""
        found = await self._books.waits(edges[0], edges[-1], scope)
        if len(found) > MOST_ROWS_AT_ONCE:
            return await asyncio.to_thread(wait_lines, found, edges, by, self._department_of)
        return wait_lines(found, edges, by, self._department_of)

    async def held_by_member(self, actor: Actor, since: float, until: float) -> Sequence[tuple[UsageLine, int]]:
        """GPU time of each user in each project, and how many leases they held at some time of it."""
        lines = await self.usage(actor, since, until, By.MEMBER)
        before = {(p, u): n for p, u, n in await self._books.leases_held_at(since)}
        return [(line, line.time.leases + before.get((line.project, line.user), 0)) for line in lines]

    async def waits(
        self,
        actor: Actor,
        since: float,
        until: float,
        by: By = By.PROJECT,
        step: Steps | None = None,
        scope: Scope = EVERYTHING,
    ) -> Sequence[WaitLine]:
        """How long workloads submitted between two times waited for their first start, by project, user or pool."""
        del actor
        if scope.node is not None or scope.model is not None:
            raise GpupoolError(
                ErrorCode.INVALID_REQUEST, "What waits has no node and no GPU yet.", "Ask by project or user."
            )
        return await self.waits_between(self._edges(since, until, step), by, scope)

    # Inside

    def _edges(self, since: float, until: float, step: Steps | None) -> tuple[float, ...]:
        if until < since:
            raise GpupoolError(ErrorCode.INVALID_REQUEST, "'until' lies before 'since'.", "Swap them.")
        if step is None:
            return since, until
        return edges_of(since, until, step.period, read_zone(step.zone or self._time_zone))

    async def _lines(self, edges: tuple[float, ...], by: By, scope: Scope, *, costed: bool = True) -> list[UsageLine]:
        by_model = by is By.MODEL or (costed and bool(self._rates))
        query = TimeQuery(edges, (*DIMS[by], Dim.MODEL) if by_model else DIMS[by], scope, self.now(), requests=costed)
        rows = await self._books.gpu_time(query)
        if len(rows) > MOST_ROWS_AT_ONCE:  # whoever decides and answers meanwhile is not held up
            lines = await asyncio.to_thread(self._summed, query, by, rows)
        else:
            lines = self._summed(query, by, rows)
        return await self._named(lines) if by is By.WORKLOAD else lines

    def _summed(self, query: TimeQuery, by: By, rows: Sequence[TimeRow]) -> list[UsageLine]:
        edges, by_model = query.edges, query.dims[-1:] == (Dim.MODEL,)
        groups: dict[tuple[int, tuple[str, ...]], list[TimeRow]] = defaultdict(list)
        for row in rows:
            keys = row.keys[:-1] if by_model and by is not By.MODEL else row.keys
            groups[row.step, self._key(by, keys)].append(row)
        asked = query.asks_for_requests and by is not By.MODEL
        rates = self._rates if by_model else CostRates()
        return [
            self._line(by, key, (edges[step], edges[step + 1]), found, rates=rates, asked=asked)
            for (step, key), found in groups.items()
            if asked or any(row.allocated_s or row.leases for row in found)
        ]

    def _key(self, by: By, keys: tuple[str, ...]) -> tuple[str, ...]:
        if by is By.DEPARTMENT:
            return (self._department_of(keys[0]),)
        return keys or ("",)

    def _department_of(self, project: str) -> str:
        found = self._register.find_project(project)
        return "" if found is None else found.department

    @staticmethod
    def _line(
        by: By,
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
        member = {"project": key[0], "user": key[1]} if by is By.MEMBER else {}
        return UsageLine("/".join(key), span[0], span[1], time, cost=cost, **member)

    async def _named(self, lines: Iterable[UsageLine]) -> list[UsageLine]:
        lines = list(lines)
        names = await self._books.names_of(sorted({line.key for line in lines}))
        return [_with_names(line, names.get(line.key)) for line in lines]

    async def load(self) -> None:
        """Take over the rates; forget sums of hours that are to come, as after a clock was set back."""
        if await self._books.reopen(self.now()):
            log.warning("the clock was set back: hours that are not over any more are summed again")
        text = await self._books.load_rates()
        if text:
            self._rates = rates_of(json.loads(text))

    async def run(self) -> None:
        """Sum hours and days that are over, as long as the pool runs; what was missed while it did not, first."""
        await self._engine.ports.sleep(FIRST_AFTER_S)
        while True:
            try:
                while await self._books.sum_next(self.now() - SETTLED_AFTER_S):
                    await self._engine.ports.sleep(BETWEEN_DAYS_S)
            except GpupoolError as error:
                log.warning("hours could not be summed; will be tried again", code=error.code)
            await self._engine.ports.sleep(LOOK_EVERY_S)

    async def set_rates(self, actor: Actor, rates: CostRates) -> CostRates:
        """Say what GPU hours cost; it holds for the past as well. Raises FORBIDDEN, INVALID_REQUEST."""
        self._permissions.need_role(actor, Role.ADMIN)
        check_rates(rates)
        words = ", ".join(f"{name} {rate:g}" for name, rate in rates.models)
        message = f"{rates.currency} default {rates.default}; {words or 'no models'}"
        event = Event(self.now(), actor.user, Reason.CHANGED, message, target="cost rates")

        async def write() -> None:
            await self._books.save_rates(json.dumps(document_of(rates)), event)
            self._rates = rates

        await self._engine.alone(write)
        return rates


def rates_of(document: dict[str, Any]) -> CostRates:
    """Rates as they are kept in the store."""
    return CostRates(document["currency"], document["default"], tuple(sorted(document["models"].items())))


def document_of(rates: CostRates) -> dict[str, Any]:
    """The inverse of ``rates_of``."""
    return {"currency": rates.currency, "default": rates.default, "models": dict(rates.models)}


def check_rates(rates: CostRates) -> None:
    """Raise INVALID_REQUEST for rates that are none."""
    amounts = [rate for _, rate in rates.models] + ([] if rates.default is None else [rates.default])
    wrong = next((rate for rate in amounts if not 0 <= rate <= MOST_PER_HOUR), None)
    if wrong is not None:
        sentence = f"{wrong} is no price of a GPU hour."
        raise GpupoolError(ErrorCode.INVALID_REQUEST, sentence, f"Give a number from 0 to {MOST_PER_HOUR:,.0f}.")
    if len(rates.models) > MOST_MODELS:
        sentence = f"There are {MOST_MODELS} rates at most."
        raise GpupoolError(ErrorCode.INVALID_COUNT, sentence, "Name models more generally, as in a100.")
    if len({name for name, _ in rates.models}) < len(rates.models):
        raise GpupoolError(ErrorCode.INVALID_REQUEST, "A model has two rates.", "Name each model once.")


def _with_names(line: UsageLine, names: tuple[str, str, str] | None) -> UsageLine:
    if names is None:
        return line
    return replace(line, name=names[0], project=names[1], user=names[2])
