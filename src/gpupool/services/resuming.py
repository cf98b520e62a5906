"""Says of work that was sent back to the queue when it goes on, in its own record."""

from __future__ import annotations

import asyncio

import structlog

from gpupool.domain.errors import GpupoolError
from gpupool.domain.events import Event, Reason
from gpupool.domain.lifecycle import POOL
from gpupool.domain.units import format_duration
from gpupool.domain.workload import Replica, ReplicaState
from gpupool.scheduling.explain import Explanation, WaitCode
from gpupool.services.engine import Engine
from gpupool.services.waiting import WhyService

LOOK_EVERY_S = 1.0
MOST_PER_LOOK = 32  # of many sent back at once, the others' answer is `gpupool why`

log = structlog.get_logger("gpupool.resuming")


class Resuming:
    """Looks once a second at who was evicted and waits; whoever runs again by then needs no answer."""

    def __init__(self, engine: Engine, waiting: WhyService) -> None:
        self._engine = engine
        self._waiting = waiting

    async def run(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                await self.look()
            except GpupoolError as error:
                log.warning("could not say when work goes on", code=error.code)

    async def look(self) -> None:
        """Once."""
        for row in self._engine.demand.take_sent_back()[:MOST_PER_LOOK]:
            workload = self._engine.mirror.workloads.get(row.workload)
            if workload is None or not self._waits(row):
                continue
            why = await self._waiting.why(workload)
            if self._waits(row) and why.code is not WaitCode.NOT_WAITING:
                await self._note(row, _sentence(why))

    def _waits(self, row: Replica) -> bool:
        now = self._engine.mirror.replica(row.workload, row.index)
        return now is not None and now.state is ReplicaState.PENDING and now.attempt == row.attempt

    async def _note(self, row: Replica, sentence: str) -> None:
        event = Event(self._engine.ports.clock.now(), POOL, Reason.QUEUED_AGAIN, sentence, row.workload, row.index)
        await self._engine.transact(lambda draft: draft.note(event))


def _sentence(why: Explanation) -> str:
    place = f"at position {why.position} in its project, " if why.position else ""
    when = "no estimate of when" if why.estimate_s is None else f"in about {format_duration(why.estimate_s)}"
    basis = f" ({why.estimate_basis})" if why.estimate_basis else ""
    return f"goes on by itself: {place}{when}{basis}"
