"""The queue as a list: who waits, in which order, and who stands before whom on what ground."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpupool.domain.ids import WorkloadId
from gpupool.domain.workload import ReplicaState, Workload
from gpupool.scheduling.queue import Group
from gpupool.scheduling.standing import ProjectStanding, Standings
from gpupool.scheduling.values import Held
from gpupool.services.engine import Engine

FRESH_S = 1.0


@dataclass(frozen=True, slots=True)
class Waiting:
    """A workload of which replicas wait.

    ``position`` counts entries of its project from 1 as ``why`` does: by priority, then place; 0: not in the queue
    now, for the reason ``held`` or because its parallelism is used up. ``place`` is the time at which its first entry
    counts as submitted. ``pending`` of its replicas wait, ``offered`` of them in the queue.
    """

    workload: Workload
    pending: int
    offered: int
    position: int = 0
    place: float = 0.0
    held: Held | None = None


@dataclass(frozen=True, slots=True)
class Queue:
    """Everybody who waits, first who is in the queue, by the turn of their projects and their position in them.

    ``standings`` are those of the same moment; they say why the projects come in this order.
    """

    waiting: tuple[Waiting, ...]
    standings: Standings

    @property
    def turns(self) -> dict[str, ProjectStanding]:
        """The projects by name whose work is in the queue."""
        return {standing.project: standing for standing in self.standings.projects if standing.position}


class QueueService:
    """Reads the scheduler's picture; everybody may see who waits."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._last: tuple[int, float, Queue] | None = None  # for all who look at the same moment

    async def queue(self) -> Queue:
        """The queue as it stands now; it may be a second old while nothing has happened."""
        news, now = self._engine.news, self._engine.ports.clock.now()
        if self._last is None or self._last[0] != news or not 0 <= now - self._last[1] < FRESH_S:
            self._last = (news, now, self._look())
        return self._last[2]

    def _look(self) -> Queue:
        standings = self._engine.demand.scheduler.standings(self._engine.ports.clock.now())
        turn = {standing.project: standing.position for standing in standings.projects}
        entries = self._entries()
        found = [self._waiting(workload, entries) for workload in self._engine.mirror.workloads.values()]
        waiting = [row for row in found if row is not None]
        waiting.sort(key=lambda row: _rank(row, turn))
        return Queue(tuple(waiting), standings)

    def ahead(self, of: Waiting, queue: Queue, most: int) -> Sequence[Waiting]:
        """Who stands before one that waits in its own project, the nearest last, at most ``most`` of them."""
        project = of.workload.project
        before = [r for r in queue.waiting if r.workload.project == project and 0 < r.position < of.position]
        return before[-most:] if most else ()

    def _entries(self) -> dict[WorkloadId, tuple[int, float, int]]:
        """By workload: the position and place of its first entry, and how many replicas are in the queue."""
        demand = self._engine.demand.scheduler.demand
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

    def _waiting(self, workload: Workload, entries: dict[WorkloadId, tuple[int, float, int]]) -> Waiting | None:
        pending = self._engine.mirror.counts.get(workload.id, Counter())[ReplicaState.PENDING]
        if not pending:
            return None
        if workload.id in entries:
            position, place, offered = entries[workload.id]
            return Waiting(workload, pending, offered, position, place)
        return Waiting(workload, pending, 0, held=self._engine.demand.held(workload))


def _places(groups: Iterable[Group]) -> Iterable[tuple[int, float, int, WorkloadId]]:
    for group in groups:
        for place, arrival, replica in group.entries:
            yield -group.priority, place, arrival, replica.workload


def _rank(row: Waiting, turn: dict[str, int]) -> tuple[bool, int, str, int, float]:
    project = row.workload.project
    return (not row.position, turn.get(project, 0), project, row.position, row.workload.created_at)
