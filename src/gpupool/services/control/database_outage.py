"""Operation during a database outage: live work is listed and read from memory, and stopped on its nodes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import nlargest

import structlog

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.events import Event
from gpupool.domain.work.search import NEWEST_FIRST
from gpupool.domain.work.workload import Replica, Workload, WorkloadKind
from gpupool.services.control.engine import Engine
from gpupool.services.ports.store import ChangeSet, EventFilter, SeenBy, WorkloadFilter
from gpupool.services.state.mirror import Draft, Mirror

MAX_EVENTS = 2_000
RETRY_DELAY_S = 1.0
_OUTAGE_CODES = frozenset({ErrorCode.DATABASE_UNREACHABLE, ErrorCode.DATABASE_UNWRITABLE})

log = structlog.get_logger("gpupool.database_outage")


def is_outage(error: GpupoolError) -> bool:
    """Return True if the error means that the database does not answer or accepts no writes."""
    return error.code in _OUTAGE_CODES


@contextmanager
def ignore_outage() -> Iterator[None]:
    """Skip the rest of the block if the database is not available."""
    try:
        yield
    except GpupoolError as error:
        if not is_outage(error):
            raise


def find_live(mirror: Mirror, name: str, user: str) -> Workload | None:
    """Return the live workload with this name: the user's own first, then the newest."""
    named = [each for each in mirror.workloads.values() if each.name == name]
    return max(named, key=lambda each: (each.user == user, each.created_at, each.id), default=None)


def can_list_live(wanted: WorkloadFilter) -> bool:
    """Return whether the mirror answers a filter as the database does, without reading rows: live workloads only."""
    live = bool(wanted.states) and not any(state.final for state in wanted.states)
    return live and not wanted.search and wanted.sort == NEWEST_FIRST


def list_live(mirror: Mirror, wanted: WorkloadFilter) -> list[Workload]:
    """Return live workloads that match a filter, newest first. Text search is not supported here."""
    found = (each for each in mirror.workloads.values() if _fits(each, wanted))
    last = wanted.offset + wanted.limit
    return nlargest(last, found, key=lambda each: (each.created_at, each.id))[wanted.offset :]


def _fits(workload: Workload, wanted: WorkloadFilter) -> bool:
    return (
        (wanted.before is None or (workload.created_at, workload.id) < wanted.before)  # first: most pages need few rows
        and (wanted.include_deleted or workload.deleted_at is None)
        and (not wanted.states or workload.state in wanted.states)
        and (wanted.project is None or wanted.project == workload.project)
        and (wanted.user is None or wanted.user == workload.user)
        and (wanted.name is None or wanted.name == workload.name)
        and (not wanted.kinds or workload.kind in wanted.kinds)
        and (not wanted.labels or all(workload.labels.get(label) == value for label, value in wanted.labels))
    )


class RecentEvents:
    """The last events that this control plane wrote. They have no ids, so filters by ``after_id`` find none."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)

    def add(self, changes: ChangeSet) -> None:
        """Store the events of a committed change."""
        self._events.extend(changes.events)

    def find(self, wanted: EventFilter) -> list[Event]:
        """Return the newest events that match a filter, oldest first."""
        if wanted.after_id:
            return []
        fits = [
            event
            for event in self._events
            if wanted.workload in {None, event.workload}
            and (not wanted.reasons or event.reason in wanted.reasons)
            and self._visible(event, wanted.seen_by)
        ]
        return fits[-wanted.limit :] if wanted.limit else []

    def _visible(self, event: Event, seen_by: SeenBy | None) -> bool:
        """Return True if the user caused the event or may see its live workload. Other events need the database."""
        if seen_by is None or event.actor == seen_by.user:
            return True
        about = None if event.workload is None else self._mirror.workloads.get(event.workload)
        return about is not None and (about.user == seen_by.user or about.project in seen_by.projects)


@dataclass(frozen=True, slots=True)
class _PendingStop:
    name: str
    build: Callable[[Draft], None]


class UnrecordedStops:
    """Stops that nodes have executed and that are not in the database yet.

    If the control plane dies before the write, nodes still report these programs as stopped. Only workloads in the
    queue or on unreachable nodes then have to be stopped again.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._pending: deque[_PendingStop] = deque()

    async def stop(self, workload: Workload, index: int | None, grace_s: float, build: Callable[[Draft], None]) -> str:
        """Stop the programs of a workload now, and write the stop when the database is back. Return a summary."""
        replicas = self._placed(workload, index)
        missed = 0
        for replica in replicas:
            try:
                await self._engine.ports.fabric.link(replica.node or "").end(replica.key, grace_s)
            except GpupoolError as error:
                log.warning("a stop did not reach its node", key=replica.key, code=error.code)
                missed += 1
        self._pending.append(_PendingStop(workload.name, build))
        stopped = len(replicas) - missed
        log.warning("stopped without the database", workload=workload.name, programs=stopped)
        summary = f"stopped {stopped} of {len(replicas)} programs" if replicas else "no program was running"
        return f"{summary}; the stop will be recorded when the database is back"

    def _placed(self, workload: Workload, index: int | None) -> Sequence[Replica]:
        mirror = self._engine.mirror
        own = [row for row in mirror.replicas.get(workload.id, {}).values() if row.state.placed]
        own = [row for row in own if index in {None, row.index}]
        exec_keys = [key for row in own if row.lease is not None for key in mirror.execs.get(row.lease, ())]
        execs = [row for row in (mirror.replica(*key) for key in exec_keys) if row is not None]
        programs = [] if workload.kind is WorkloadKind.LEASE else own
        return list({row.key: row for row in (*programs, *execs)}.values())

    async def run(self) -> None:
        """Write pending stops, for ever."""
        while True:
            await asyncio.sleep(RETRY_DELAY_S)
            while self._pending:
                try:
                    await self._engine.transact(self._pending[0].build)
                except GpupoolError as error:
                    if is_outage(error):
                        break
                    log.warning("a stop could not be recorded", workload=self._pending[0].name, code=error.code)
                self._pending.popleft()
