"""Events and audit records."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import partial

from gpupool.domain.errors import GpupoolError
from gpupool.domain.events import Event
from gpupool.domain.ids import WorkloadId
from gpupool.domain.people.access import Actor, Role
from gpupool.services.access.permissions import Permissions
from gpupool.services.control.database_outage import RecentEvents, is_outage
from gpupool.services.control.engine import Engine
from gpupool.services.ports.store import AuditFilter, EventFilter, SeenBy

CHECK_INTERVAL_S = 30.0


def audit_cursor(event: Event) -> str:
    """Return the cursor of the records before an event; see ``parse_audit_cursor``."""
    return f"{event.at!r}-{event.id}"


def parse_audit_cursor(text: str) -> tuple[float, int] | None:
    """Return the time and id of the event of a cursor; None for any other text."""
    at, _, last = text.partition("-")
    try:
        found = float(at), int(last)
    except ValueError:
        return None
    return found if 0 <= found[0] < 1e11 and 0 < found[1] < 2**62 else None


class EventService:
    """Reads events: all for administrators, for other users those that concern them."""

    def __init__(self, engine: Engine, permissions: Permissions) -> None:
        self._engine = engine
        self._permissions = permissions
        self._recent = RecentEvents(engine.mirror)
        engine.on_commit(self._recent.add)

    async def events(self, actor: Actor, wanted: EventFilter) -> Sequence[Event]:
        """Return events above an id, oldest first; during a database outage, recent ones from memory."""
        wanted = replace(wanted, seen_by=self._seen_by(actor))
        try:
            return await self._engine.ports.store.list_events(wanted)
        except GpupoolError as error:
            if not is_outage(error):
                raise
            return self._recent.find(wanted)

    async def audit(self, actor: Actor, wanted: AuditFilter) -> Sequence[Event]:
        """Return audit records, newest first."""
        return await self._engine.ports.store.list_audit(replace(wanted, seen_by=self._seen_by(actor)))

    def _seen_by(self, actor: Actor) -> SeenBy | None:
        return None if actor.role is Role.ADMIN else SeenBy(actor.user, self._permissions.managed_projects(actor))

    @property
    def count(self) -> int:
        """Return a number that grows with each event."""
        return self._engine.news

    async def subscribe(self, workload: WorkloadId | None) -> AsyncIterator[None]:
        """Yield each time when there may be new events."""
        while True:
            seen = self._engine.news
            await self._engine.wait_for_change(workload, CHECK_INTERVAL_S, partial(self._news_since, seen))
            yield None

    def _news_since(self, seen: int) -> bool:
        return self._engine.news > seen
