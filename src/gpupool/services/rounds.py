"""When a gang that runs may have more members."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping

from gpupool.domain.ids import WorkloadId
from gpupool.domain.workload import OnMemberEnd, ReplicaState, Workload

GROW_AFTER_S = 300.0  # a round that could be larger is let run for so long before more members join by a new one


class Rounds:
    """Who waits until the round that runs has been given its time."""

    def __init__(self) -> None:
        self._growing: list[tuple[float, WorkloadId]] = []  # a heap

    def closed(self, workload: Workload, counts: Mapping[ReplicaState, int], now: float) -> bool:
        """Whether members of a gang have to wait because others run or end."""
        at = opens_at(workload, counts)
        if at is None or at <= now:
            return False
        if at < math.inf and (at, workload.id) not in self._growing:
            heapq.heappush(self._growing, (at, workload.id))
        return True

    def due(self, now: float) -> bool:
        """Whether ``take_due`` has somebody."""
        return bool(self._growing and self._growing[0][0] <= now)

    def take_due(self, now: float) -> Iterable[WorkloadId]:
        """Gangs that may have more members from now on."""
        while self.due(now):
            yield heapq.heappop(self._growing)[1]


def opens_at(workload: Workload, counts: Mapping[ReplicaState, int]) -> float | None:
    """When more members of a gang may be offered to the scheduler; None: at once, infinite: when its round has ended.

    Where one that joins makes all begin again, all who end are waited for, and a round is given some time.
    """
    if workload.framework is None or workload.on_member_end is not OnMemberEnd.RESTART or workload.wiring is None:
        return None
    if counts.get(ReplicaState.STOPPING):
        return math.inf
    if not (counts.get(ReplicaState.STARTING) or counts.get(ReplicaState.RUNNING)):
        return None
    return workload.wiring.formed_at + GROW_AFTER_S
