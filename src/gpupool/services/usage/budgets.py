"""Reads once a minute what projects have used of their GPU hours.

So a budget may be exceeded by what is allocated in that minute, and by work that runs on.
"""

from __future__ import annotations

import structlog

from gpupool.domain.errors import GpupoolError
from gpupool.domain.usage import GroupBy
from gpupool.services.control.engine import Engine
from gpupool.services.state.gpu_hours import GpuHourBudgets
from gpupool.services.usage.accounting import AccountingService

READ_EVERY_S = 60.0
HOUR_S = 3600.0

log = structlog.get_logger("gpupool.budgets")


class BudgetReader:
    """Reads the used GPU hours, for ever, and lets work start when GPU hours are left again."""

    def __init__(self, engine: Engine, accounting: AccountingService, budgets: GpuHourBudgets) -> None:
        self._engine, self._accounting, self._budgets = engine, accounting, budgets

    async def run(self) -> None:
        """Read once a minute, for ever."""
        while True:
            try:
                await self.read()
            except GpupoolError as error:
                log.warning("used GPU hours could not be read; will be tried again", code=error.code)
            await self._engine.ports.sleep(READ_EVERY_S)

    async def read(self) -> None:
        """Read the GPU hours of this month, if there are budgets."""
        limited = set(self._budgets.limited())
        if not limited:
            return
        now = self._accounting.now()
        lines = await self._accounting.between((self._budgets.month(now)[0], now), GroupBy.MEMBER, costed=False)
        used = {(x.project, x.user): x.time.allocated_s / HOUR_S for x in lines if x.project in limited}
        changed = self._budgets.read(used)
        if changed:
            workloads = self._engine.mirror.workloads.values()
            self._engine.feed.offer_again([w.id for w in workloads if w.project in changed])
            self._engine.wake(None)
            self._engine.work.set()
