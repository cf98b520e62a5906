"""What has happened: events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial

from gpupool.domain.access import Actor
from gpupool.domain.events import Event
from gpupool.domain.ids import WorkloadId
from gpupool.services.engine import Engine
from gpupool.services.ports import AuditFilter, EventFilter

LOOK_EVERY_S = 30.0


class HistoryService:
    """Reads the store; everybody may see what happened."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def events(self, actor: Actor, wanted: EventFilter) -> Sequence[Event]:
        """Events above an id, oldest first."""
        del actor
        return await self._engine.ports.store.list_events(wanted)

    async def audit(self, actor: Actor, wanted: AuditFilter) -> Sequence[Event]:
        """Events newest first: who did what, and what the pool did."""
        del actor
        return await self._engine.ports.store.list_audit(wanted)

    @property
    def count(self) -> int:
        """Counts up with all that happens: while it stays the same, nothing has."""
        return self._engine.news

    async def subscribe(self, workload: WorkloadId | None) -> AsyncIterator[None]:
        """Says each time that there may be new events."""
        while True:
            seen = self._engine.news
            await self._engine.changed(workload, LOOK_EVERY_S, partial(self._news_since, seen))
            yield None

    def _news_since(self, seen: int) -> bool:
        return self._engine.news > seen
