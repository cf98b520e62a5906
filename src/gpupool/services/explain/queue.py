"""The queue as a list, in scheduling order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpupool.domain.ids import WorkloadId
from gpupool.domain.people.shares import ProjectShare, ShareReport
from gpupool.domain.work.workload import ReplicaState, Workload
from gpupool.scheduling.state.queue import Group
from gpupool.scheduling.values import BlockReason
from gpupool.services.control.engine import Engine

CACHE_S = 1.0


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """A workload with waiting replicas.

    ``position`` counts the entries of its project from 1, by priority and then ``place``. It is 0 for a workload that
    is not in the queue, for the reason ``held`` or because its parallelism is used up. ``place`` is the time from which
    its first entry counts as queued. ``pending`` replicas wait, ``offered`` of them in the queue.
    """

    workload: Workload
    pending: int
    offered: int
    position: int = 0
    place: float = 0.0
    held: BlockReason | None = None


@dataclass(frozen=True, slots=True)
class QueueReport:
    """All waiting workloads: first those in the queue, by the order of their projects and their position in them.

    ``standings`` explain the order of the projects at the same moment.
    """

    waiting: tuple[QueueEntry, ...]
    standings: ShareReport

    @property
    def turns(self) -> dict[str, ProjectShare]:
        """Return the projects with work in the queue, by name."""
        return {standing.project: standing for standing in self.standings.projects if standing.position}


class QueueService:
    """Reads the queue of the scheduler; all users may see it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._last: tuple[int, float, QueueReport] | None = None  # shared by requests at the same moment

    async def queue(self) -> QueueReport:
        """Return the current queue; it may be a second old if nothing has changed."""
        news, now = self._engine.news, self._engine.ports.clock.now()
        if self._last is None or self._last[0] != news or not 0 <= now - self._last[1] < CACHE_S:
            self._last = (news, now, self._read())
        return self._last[2]

    def _read(self) -> QueueReport:
        standings = self._engine.feed.scheduler.share_report(self._engine.ports.clock.now())
        turn = {standing.project: standing.position for standing in standings.projects}
        entries = self._entries()
        found = [self._waiting(workload, entries) for workload in self._engine.mirror.workloads.values()]
        waiting = [row for row in found if row is not None]
        waiting.sort(key=lambda row: _rank(row, turn))
        return QueueReport(tuple(waiting), standings)

    def ahead(self, of: QueueEntry, queue: QueueReport, most: int) -> Sequence[QueueEntry]:
        """Return up to ``most`` entries of the same project before this one, the nearest last."""
        project = of.workload.project
        before = [r for r in queue.waiting if r.workload.project == project and 0 < r.position < of.position]
        return before[-most:] if most else ()

    def _entries(self) -> dict[WorkloadId, tuple[int, float, int]]:
        """Return, by workload, the position and place of its first entry and its number of queued replicas."""
        demand = self._engine.feed.scheduler.demand
        by_project: dict[int, list[Group]] = {}
        for group in demand.groups():
            by_project.setdefault(group.account.project, []).append(group)
        found: dict[WorkloadId, tuple[int, float, int]] = {}
        offered: Counter[WorkloadId] = Counter()
        for groups in by_project.values():
            for position, (_, place, _, workload) in enumerate(sorted(_places(groups)), 1):
                offered[workload] += 1
                found.setdefault(workload, (position, place, 0))
        return {workload: (at, place, offered[workload]) for workload, (at, place, _) in found.items()}

    def _waiting(self, workload: Workload, entries: dict[WorkloadId, tuple[int, float, int]]) -> QueueEntry | None:
        pending = self._engine.mirror.counts.get(workload.id, Counter())[ReplicaState.PENDING]
        if not pending and workload.limits.separate_gpus and workload.id in entries:
            pending = 1  # its program runs and waits for GPUs
        if not pending:
            return None
        if workload.id in entries:
            position, place, offered = entries[workload.id]
            return QueueEntry(workload, pending, offered, position, place)
        return QueueEntry(workload, pending, 0, held=self._engine.feed.held(workload))


def _places(groups: Iterable[Group]) -> Iterable[tuple[int, float, int, WorkloadId]]:
    for group in groups:
        for place, arrival, replica in group.entries:
            yield -group.priority, place, arrival, replica.workload


def _rank(row: QueueEntry, turn: dict[str, int]) -> tuple[bool, int, str, int, float]:
    project = row.workload.project
    return (not row.position, turn.get(project, 0), project, row.position, row.workload.created_at)
