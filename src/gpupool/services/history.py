"""What has happened: events, and GPU time used."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from gpupool.domain.access import Actor
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.ids import WorkloadId
from gpupool.domain.workload import Event
from gpupool.services.engine import Engine
from gpupool.services.ports import EventFilter, UsageRow

LOOK_EVERY_S = 30.0


class HistoryService:
    """Reads the store; everybody may see what happened and who used what."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def events(self, actor: Actor, wanted: EventFilter) -> Sequence[Event]:
        """Events above an id, oldest first."""
        del actor
        return await self._engine.ports.store.list_events(wanted)

    async def subscribe(self, workload: WorkloadId | None) -> AsyncIterator[None]:
        """Says each time that there may be new events."""
        while True:
            seen = self._engine.news
            await self._engine.changed(workload, LOOK_EVERY_S, lambda seen=seen: self._engine.news > seen)  # type: ignore[misc]
            yield None

    async def usage(self, actor: Actor, since: float, until: float) -> Sequence[UsageRow]:
        """GPU seconds held between two times by user and project."""
        del actor
        if until < since:
            raise GpupoolError(ErrorCode.INVALID_REQUEST, "'until' lies before 'since'.", "Swap them.")
        return await self._engine.ports.store.usage(since, until)
