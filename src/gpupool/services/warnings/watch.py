"""When the time limit of a program or the end of a lease comes near: an event is written, once for each such moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpupool.domain.events import Event, Reason
from gpupool.domain.lifecycle import POOL
from gpupool.domain.units import format_duration
from gpupool.domain.warning import WarningSettings
from gpupool.domain.workload import Replica, ReplicaState, Workload, WorkloadKind
from gpupool.services.engine import Engine
from gpupool.services.mirror import Draft, ReplicaId
from gpupool.services.ports import EventFilter

LAST_PART = 0.2  # of a limit: no warning comes earlier
REMEMBERED = 1_000  # warnings of before this control plane's start


class DeadlineWatch:
    """Looks at what runs."""

    def __init__(self, engine: Engine, settings: Callable[[], WarningSettings]) -> None:
        self._engine = engine
        self._settings = settings
        self._warned_at: dict[ReplicaId, float] = {}

    async def load(self) -> None:
        """Remember what an earlier control plane has warned of. Raises ``GpupoolError``."""
        wanted = EventFilter(reasons=(Reason.TIME_WARNING,), newest=True, limit=REMEMBERED)
        for event in await self._engine.ports.store.list_events(wanted):
            if event.workload is not None and event.index is not None:
                self._warned_at[event.workload, event.index] = event.at

    async def look(self) -> None:
        """Write an event for each that is due. Raises ``GpupoolError`` when it cannot be written; it is due again."""
        due = list(self._due(self._engine.ports.clock.now()))
        if due:
            await self._engine.transact(lambda draft: self._note(draft, due))

    def _due(self, now: float) -> Iterator[tuple[ReplicaId, str]]:
        mirror = self._engine.mirror
        placed = {key for keys in mirror.placed.values() for key in keys}
        self._warned_at = {key: at for key, at in self._warned_at.items() if key in placed}
        for key in placed:
            workload, replica = mirror.workloads.get(key[0]), mirror.replica(*key)
            if workload is None or replica is None or replica.state is not ReplicaState.RUNNING:
                continue
            limit_s, deadline = limit_of(workload, replica)
            begins = deadline - min(self._settings().before_s, limit_s * LAST_PART)
            if begins <= now < deadline and self._warned_at.get(key, 0.0) < begins:
                yield key, _sentence(workload, limit_s, deadline - now)

    def _note(self, draft: Draft, due: list[tuple[ReplicaId, str]]) -> None:
        for key, sentence in due:
            draft.note(Event(draft.now, POOL, Reason.TIME_WARNING, sentence, *key))
            self._warned_at[key] = draft.now


def limit_of(workload: Workload, replica: Replica) -> tuple[float, float]:
    """How long it may hold its GPUs, in seconds, and when that ends; infinite without a limit."""
    never = float("inf")
    if workload.kind is WorkloadKind.LEASE:
        if workload.expires_at is None:
            return never, never
        return workload.expires_at - (workload.started_at or workload.created_at), workload.expires_at
    if workload.limits.max_time_s is None or replica.started_at is None:
        return never, never
    return workload.limits.max_time_s, replica.started_at + workload.limits.max_time_s


def _sentence(workload: Workload, limit_s: float, left_s: float) -> str:
    if workload.kind is WorkloadKind.LEASE:
        return f"the lease ends in {format_duration(left_s)}"
    return f"its time limit of {format_duration(limit_s)} ends it in {format_duration(left_s)}"
